//! The channels of gpt-oss, a format named harmony: a text is messages, each with a header of a role, a channel, and perhaps a recipient.
//!
//! ```text
//! <|channel|>analysis<|message|>THOUGHT<|end|><|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
//! ```
//!
//! The prompt has the first role already. The recipient stands behind the role or behind the channel. A message in the channel `analysis`
//! is reasoning, one to a function a call, and all others are text. A message can't have the marks in its text.

use std::sync::Arc;

use super::json::Scan;
use super::reading::{MAX_NAME, Not, past};
use super::{Part, Tool};
use crate::text::undecided;

pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const START: &str = "<|start|>";
pub(super) const END: &str = "<|end|>";
pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const CONSTRAIN: &str = "<|constrain|>";
/// These two end a text, and are no part of it unless the engine goes on.
const ENDS: [&str; 2] = ["<|call|>", "<|return|>"];
/// All marks but the first.
pub(super) const MARKS: [&str; 6] = [START, END, MESSAGE, CONSTRAIN, ENDS[0], ENDS[1]];
/// What ends a message.
const CLOSES: [&str; 5] = [END, ENDS[0], ENDS[1], START, CHANNEL];
/// What a header has.
const HEADS: [&str; 4] = [CHANNEL, START, MESSAGE, CONSTRAIN];
const FUNCTIONS: &str = "functions.";

/// Parts a text of messages.
#[derive(Debug)]
pub(super) struct Channels {
    tools: Arc<[Tool]>,
    /// Whether reasoning is a part of its own, and no text.
    separates: bool,
    state: State,
    held: String,
    /// Whether there has been reasoning, and text: another message of the kind begins a line.
    has: [bool; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// In a header.
    Header,
    /// In a message that has had some text, or none so far.
    Message {
        is_reasoning: bool,
        is_begun: bool,
    },
    /// Before the arguments of a call of this function.
    Called(String),
    Arguments(Scan),
    /// Behind them.
    Behind,
}

/// Before a text.
const SAYING: State = State::Message { is_reasoning: false, is_begun: false };

impl Channels {
    /// A text whose prompt ends behind the first role, or inside of a message of text.
    pub(super) fn new(tools: Arc<[Tool]>, separates: bool, is_begun: bool) -> Self {
        let message = State::Message { is_reasoning: false, is_begun: true };
        let state = if is_begun { message } else { State::Header };
        Self { tools, separates, state, held: String::new(), has: [false; 2] }
    }

    /// Whether the text so far ends inside of the reasoning.
    pub(super) fn is_thinking(&self) -> bool {
        self.separates && matches!(self.state, State::Message { is_reasoning: true, .. })
    }

    /// Adds a part.
    pub(super) fn push(&mut self, part: &str) -> Vec<Part> {
        self.held.push_str(part);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// The parts of the text that was held back, after the last part.
    pub(super) fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        match self.state.clone() {
            // The text is cut before the arguments.
            State::Called(name) if self.held.trim().is_empty() => parts.push(Part::Begin(name)),
            State::Behind | State::Arguments(_) => {}
            State::Header if HEADS.iter().any(|mark| self.held.contains(mark)) => {}
            State::Header | State::Called(_) => {
                self.state = SAYING;
                self.say(self.held.len(), &mut parts);
            }
            State::Message { .. } => self.say(self.held.len(), &mut parts),
        }
        self.held.clear();
        parts
    }

    /// Does what can be done with the held text. Returns whether there is more to do.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match &mut self.state {
            State::Header => match header(&self.held, &self.tools) {
                Ok((length, next)) => {
                    self.held.drain(..length);
                    self.state = match next {
                        State::Called(_) if self.tools.is_empty() => SAYING,
                        State::Message { is_reasoning: true, .. } if !self.separates => SAYING,
                        next => next,
                    };
                    true
                }
                Err(Not::Yet) => false,
                Err(Not::Ever) => {
                    // A message would end at this mark again.
                    if let Some(rest) = self.held.trim_start().strip_prefix(CHANNEL) {
                        self.held = rest.to_owned();
                    }
                    self.state = SAYING;
                    true
                }
            },
            State::Message { .. } => {
                let end = CLOSES.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark))).min();
                let length = end.map_or_else(|| undecided_of(&self.held), |(place, _)| place);
                self.say(length, parts);
                if let Some((_, mark)) = end {
                    self.leave(mark);
                }
                end.is_some()
            }
            State::Called(name) => {
                let name = name.clone();
                let body = self.held.trim_start();
                let start = self.held.len() - body.len();
                if body.starts_with('{') {
                    parts.push(Part::Begin(name));
                    self.held.drain(..start);
                    self.state = State::Arguments(Scan::default());
                } else if let Some(mark) = CLOSES.into_iter().find(|mark| body.starts_with(mark)) {
                    called(name, parts);
                    self.held.drain(..start);
                    self.leave(mark);
                } else if CLOSES.iter().any(|mark| mark.starts_with(body)) {
                    return false;
                } else {
                    self.state = SAYING;
                }
                true
            }
            State::Arguments(scan) => {
                let mut json = String::new();
                let (length, is_end) = scan.compact(&self.held, &mut json).within(&self.held);
                self.held.drain(..length);
                if !json.is_empty() {
                    parts.push(Part::Arguments(json));
                }
                if is_end {
                    parts.push(Part::End);
                    self.state = State::Behind;
                }
                is_end
            }
            State::Behind => {
                let end = CLOSES.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark))).min();
                self.held.drain(..end.map_or_else(|| undecided_of(&self.held), |(place, _)| place));
                if let Some((_, mark)) = end {
                    self.leave(mark);
                }
                end.is_some()
            }
        }
    }

    /// Ends a message at the mark with which the held text begins.
    fn leave(&mut self, mark: &str) {
        if mark != CHANNEL {
            self.held.drain(..mark.len());
        }
        self.state = State::Header;
    }

    /// Shows some bytes of a message.
    fn say(&mut self, length: usize, parts: &mut Vec<Part>) {
        let State::Message { is_reasoning, is_begun } = &mut self.state else { return };
        if length == 0 {
            return;
        }
        let mut text: String = self.held.drain(..length).collect();
        let is_first = !std::mem::replace(is_begun, true);
        let has_before = std::mem::replace(&mut self.has[usize::from(*is_reasoning)], true);
        if is_first && has_before {
            text.insert(0, '\n');
        }
        parts.push(if *is_reasoning { Part::Reasoning(text) } else { Part::Text(text) });
    }
}

fn called(name: String, parts: &mut Vec<Part>) {
    parts.extend([Part::Begin(name), Part::Arguments("{}".to_owned()), Part::End]);
}

/// Where the end of a text begins that may be the begin of a mark.
fn undecided_of(text: &str) -> usize {
    CLOSES.iter().map(|mark| undecided(text, mark)).min().unwrap_or(text.len())
}

/// The length of a header with its mark, and what follows it.
fn header(text: &str, tools: &[Tool]) -> Result<(usize, State), Not> {
    let rest = text.trim_start();
    // What a header can begin with.
    if !HEADS.iter().chain(&["assistant", "to=", "json"]).any(|begin| past(rest, begin) != Err(Not::Ever)) {
        return Err(Not::Ever);
    }
    let Some(end) = rest.find(MESSAGE) else {
        return Err(if rest.len() <= MAX_NAME { Not::Yet } else { Not::Ever });
    };
    let header = &rest[..end];
    let is_end = |c: char| c.is_whitespace() || c == '<';
    let word = |mark: &str| {
        let found = header.split_once(mark)?.1;
        found.split(is_end).next()
    };
    let length = text.len() - rest.len() + end + MESSAGE.len();
    // Some models leave out the first part of the name.
    let is_tool = |name: &&str| tools.iter().any(|tool| tool.name == *name);
    let name = word("to=").and_then(|to| to.strip_prefix(FUNCTIONS).or(Some(to).filter(is_tool)));
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        return Ok((length, State::Called(name.to_owned())));
    }
    let is_reasoning = word(CHANNEL) == Some("analysis");
    Ok((length, State::Message { is_reasoning, is_begun: false }))
}

#[cfg(test)]
mod tests {
    use super::super::Form;
    use super::*;
    use crate::calls::rendered::{called, parsed};

    #[test]
    fn a_header_without_an_end_is_text() {
        let long = format!("{CHANNEL}analysis{}", " word".repeat(80));
        for cut in 1..long.len() {
            let mut channels = Channels::new([].into(), true, false);
            let mut parts = channels.push(&long[..cut]);
            parts.extend(channels.push(&long[cut..]));
            parts.extend(channels.finish());
            let text: String =
                parts.into_iter().map(|part| if let Part::Text(text) = part { text } else { String::new() }).collect();
            assert!(text.ends_with(" word word"), "{cut}: {text}");
        }
    }

    #[test]
    fn headers_are_read_as_models_write_them() {
        let call = || vec![called("f", "{\"a\":1}")];
        for (text, said, calls) in [
            (" to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"a\": 1}<|call|>", "", call()),
            ("<|channel|>commentary to=f<|message|>{\"a\": 1}", "", call()),
            (
                "<|channel|>commentary to=functions.f<|channel|>commentary json<|message|> {\"a\": 1}x<|end|>",
                "",
                call(),
            ),
            (
                "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|><|call|>",
                "",
                vec![called("f", "{}")],
            ),
            (
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
                "Hm.Yes.",
                vec![],
            ),
            ("<|channel|>final<|message|>A <|end or <|start", "A <|end or <|start", vec![]),
            ("<|channel|>commentary to=functions.f<|message|>none", "none", vec![]),
            ("<|channel|>commentary to=python<|message|>1 + 1", "1 + 1", vec![]),
            ("<|channel|>fin", "", vec![]),
            ("It rains <|end|>.", "It rains \n.", vec![]),
        ] {
            for cut in 0..text.len() {
                assert_eq!(parsed(Form::Harmony, text, &[cut]), (said.to_owned(), calls.clone()), "{text} at {cut}");
            }
        }
    }
}
