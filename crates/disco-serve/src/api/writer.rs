//! How the answers of an interface are written.

use serde_json::Value;

use super::finished::{Ending, Reply, Said, Usage};
use super::{ApiError, Format};

/// Writes the answer to one request, at once or as the events of a stream, in the form of an interface.
pub(crate) trait Writer: Send {
    /// The events before those of the texts, of which there are so many. The prompts have `prompt` tokens.
    fn opening(&mut self, texts: usize, prompt: usize) -> String;

    /// The events of a part of a text, and of its end.
    fn part(&mut self, index: usize, said: &Said, ending: Option<&Ending>) -> String;

    /// What keeps a stream open while there is no event, for this reason: a comment, unless clients of the interface count events only.
    fn waiting(&mut self, reason: &str) -> String {
        format!(": {reason}\n\n")
    }

    /// The events behind all texts.
    fn closing(&mut self, usage: Usage) -> String;

    /// The last event of a stream that an error ends.
    fn error(&mut self, error: &ApiError) -> String;

    /// The answer that is no stream.
    fn whole(&mut self, replies: &[Reply], usage: Usage) -> Value;
}

/// An event of a stream without a name.
pub(super) fn data(object: &Value) -> String {
    format!("data: {object}\n\n")
}

/// An event that has the name of its type.
pub(super) fn named(object: &Value) -> String {
    format!("event: {}\ndata: {object}\n\n", object["type"].as_str().unwrap_or_default())
}

impl Writer for Format {
    fn opening(&mut self, texts: usize, _: usize) -> String {
        (0..texts).filter_map(|index| Format::opening(self, index)).map(|opening| data(&opening)).collect()
    }

    fn part(&mut self, index: usize, said: &Said, ending: Option<&Ending>) -> String {
        let delta = (!said.is_empty()).then(|| data(&self.delta(index, said)));
        let ending = ending.map(|ending| data(&self.ending(index, ending.finish)));
        delta.into_iter().chain(ending).collect()
    }

    fn closing(&mut self, usage: Usage) -> String {
        self.usage(usage).map(|usage| data(&usage)).unwrap_or_default() + "data: [DONE]\n\n"
    }

    fn error(&mut self, error: &ApiError) -> String {
        data(&error.object())
    }

    fn whole(&mut self, replies: &[Reply], usage: Usage) -> Value {
        Format::whole(self, replies, usage)
    }
}
