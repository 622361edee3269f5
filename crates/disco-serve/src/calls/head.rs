//! The begin of a call, up to its arguments.

use super::arguments::{Arguments, Head, Known};
use super::elements::{Elements, FUNCTION, FUNCTION_END, PARAMETER};
use super::form::{ARGS, CALL, CALL_ID, DEEPSEEK, FENCE};
use super::json::Scan;
use super::object::Object;
use super::pairs::Pairs;
use super::reading::{Not, either, named, past, until};
use super::{Form, Tool};

impl Form {
    /// The begin of a call behind the mark of calls, or behind another call. `object` keeps what is known of a text between two parts.
    pub(super) fn head(self, text: &str, object: &mut Object, tools: &[Tool]) -> Result<Head, Not> {
        let body = text.trim_start();
        let (name, rest) = match self {
            Self::Hermes | Self::Llama | Self::MistralList | Self::Granite | Self::Functools => {
                let start = text.len() - body.trim_start_matches(|c: char| c.is_whitespace() || c == '[').len();
                let head = object.read(&text[start..])?;
                return Ok(Head { length: start + head.length, ..head });
            }
            Self::Elements => {
                let (name, rest) = until(past(body, FUNCTION)?, '>')?;
                let first = rest.trim_start();
                either(past(first, PARAMETER), past(first, FUNCTION_END))?;
                let arguments = Known::Follow(Arguments::Elements(Elements::new(name, tools)));
                return Ok(Head { name: name.to_owned(), length: text.len() - first.len(), arguments });
            }
            Self::Mistral => mistral(body)?,
            Self::DeepSeek => {
                let (_, rest) = named(past(body, DEEPSEEK[1])?)?;
                let (name, rest) = named(past(rest, DEEPSEEK[2])?.trim_start())?;
                (name, past(rest.trim_start(), FENCE)?)
            }
            Self::DeepSeekPlain => {
                let (name, rest) = named(past(body, DEEPSEEK[1])?.trim_start())?;
                (name, past(rest.trim_start(), DEEPSEEK[2])?)
            }
            Self::Gemma => named(past(body, CALL)?.trim_start())?,
            // Its calls are messages of channels.
            Self::Harmony => return Err(Not::Ever),
        };
        let rest = rest.trim_start();
        past(rest, "{")?;
        let arguments =
            if self == Self::Gemma { Arguments::Pairs(Pairs::default()) } else { Arguments::Json(Scan::default()) };
        Ok(Head { name: name.to_owned(), length: text.len() - rest.len(), arguments: Known::Follow(arguments) })
    }
}

/// `NAME[ARGS]`, also with an id behind the name. Some tokenizers leave the mark out.
fn mistral(body: &str) -> Result<(&str, &str), Not> {
    let (name, mut rest) = named(body)?;
    loop {
        rest = rest.trim_start();
        if rest.starts_with('{') {
            return Ok((name, rest));
        }
        let behind_id = past(rest, CALL_ID).and_then(|rest| Ok(named(rest.trim_start())?.1));
        rest = either(behind_id, past(rest, ARGS))?;
    }
}
