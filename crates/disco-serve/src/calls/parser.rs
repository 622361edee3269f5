//! Parting calls from a text that grows.

use std::sync::Arc;

use super::{Call, Form, Tool};
use crate::text::undecided;

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Call(Call),
}

/// Finds the calls of a growing text. Text that may begin a call, and white space before one, is held back until the next part
/// decides it, so the result does not depend on the parts.
#[derive(Debug)]
pub(crate) struct Parser {
    form: Form,
    tools: Arc<[Tool]>,
    state: State,
    held: String,
    /// The white space before the mark that begins calls.
    space: String,
    /// Where the search for the end of a call goes on.
    searched: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come.
    Begin,
    Text,
    /// Behind the mark that begins calls.
    Marked,
    /// In a text that may be a call without a mark.
    Bare,
    /// Behind a call.
    Behind,
}

impl Parser {
    pub(crate) fn new(form: Form, tools: Arc<[Tool]>) -> Self {
        Self { form, tools, state: State::Begin, held: String::new(), space: String::new(), searched: 0 }
    }

    /// Adds a part.
    pub(crate) fn push(&mut self, part: &str) -> Vec<Part> {
        self.held.push_str(part);
        let mut parts = Vec::new();
        loop {
            let goes_on = match self.state {
                State::Begin | State::Text | State::Behind => self.text(&mut parts),
                State::Marked => self.marked(&mut parts),
                State::Bare => false,
            };
            if !goes_on {
                return parts;
            }
        }
    }

    /// The parts of the text that was held back, after the last part.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let begin = self.form.begin();
        match self.state {
            State::Behind if held.trim().is_empty() => Vec::new(),
            State::Marked => match self.form.read(&held, &self.tools) {
                Some(calls) => calls.into_iter().map(Part::Call).collect(),
                None => vec![Part::Text(format!("{}{begin}{held}", self.space))],
            },
            State::Bare => {
                match self.form.read(&held, &self.tools).filter(|calls| calls.iter().all(|it| self.knows(it))) {
                    Some(calls) => calls.into_iter().map(Part::Call).collect(),
                    None => vec![Part::Text(held)],
                }
            }
            _ if held.is_empty() => Vec::new(),
            _ => vec![Part::Text(held)],
        }
    }

    fn knows(&self, call: &Call) -> bool {
        self.tools.iter().any(|tool| tool.name == call.name)
    }

    /// Text up to the next call. Returns whether there is more to do.
    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        if self.state == State::Begin && self.form.may_be_bare() && self.held.trim_start().starts_with('{') {
            self.state = State::Bare;
            return false;
        }
        let begin = self.form.begin();
        let (end, is_marked) = match self.held.find(begin) {
            Some(place) => (place, true),
            None => (undecided(&self.held, begin), false),
        };
        let text = self.held[..end].trim_end();
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
            self.state = State::Text;
        }
        if is_marked {
            self.space = self.held[text.len()..end].to_owned();
            self.held.drain(..end + begin.len());
            (self.state, self.searched) = (State::Marked, 0);
        } else {
            let shown = text.len();
            self.held.drain(..shown);
        }
        is_marked
    }

    /// Calls up to the mark that ends them: the first one behind which the text is calls. Texts in arguments may have others.
    fn marked(&mut self, parts: &mut Vec<Part>) -> bool {
        let begin = self.form.begin();
        if self.form.is_refuted_by(&self.held) {
            parts.push(Part::Text(std::mem::take(&mut self.space) + begin));
            self.state = State::Text;
            return true;
        }
        let Some(end) = self.form.end() else { return false };
        while let Some(place) = self.held[self.searched..].find(end).map(|place| self.searched + place) {
            self.searched = place + end.len();
            let mut calls = self.form.read(&self.held[..place], &self.tools);
            // What came before may have been no call.
            if let (None, Some(last)) = (&calls, self.held[..place].rfind(begin))
                && !self.form.may_hold_calls(&self.held)
            {
                calls = self.form.read(&self.held[last + begin.len()..place], &self.tools);
                if calls.is_some() {
                    let text = self.held[..last].trim_end();
                    parts.push(Part::Text(format!("{}{begin}{text}", std::mem::take(&mut self.space))));
                }
            }
            if let Some(calls) = calls {
                parts.extend(calls.into_iter().map(Part::Call));
                self.held.drain(..self.searched);
                self.state = State::Behind;
                return true;
            }
        }
        // A mark may have come in part.
        self.searched = undecided(&self.held, end);
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn tools() -> Arc<[Tool]> {
        let schema =
            json!({"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}});
        let tool = |name: &str| Tool { name: name.into(), parameters: schema.clone(), is_strict: false };
        [tool("f"), tool("get_weather")].into()
    }

    /// Calls as a model of this form writes them.
    fn written(form: Form, calls: &[Call]) -> String {
        let with = |key: &str| {
            let object = |call: &Call| format!("{{\"name\": \"{}\", \"{key}\": {}}}", call.name, call.arguments);
            calls.iter().map(object).collect::<Vec<_>>()
        };
        let each = |write: &dyn Fn(&Call) -> String| calls.iter().map(write).collect::<Vec<_>>();
        match form {
            Form::Hermes => {
                let calls = with("arguments").into_iter().map(|call| format!("<tool_call>\n{call}\n</tool_call>"));
                calls.collect::<Vec<_>>().join("\n")
            }
            Form::Elements => each(&|call| {
                let arguments: serde_json::Map<_, _> = serde_json::from_str(&call.arguments).unwrap();
                let parameter = |(key, value): (&String, &serde_json::Value)| {
                    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    format!("<parameter={key}>\n{value}\n</parameter>\n")
                };
                let parameters: String = arguments.iter().map(parameter).collect();
                format!("<tool_call>\n<function={}>\n{parameters}</function>\n</tool_call>", call.name)
            })
            .join("\n"),
            Form::Llama => with("parameters").join("; "),
            Form::MistralList => format!("[TOOL_CALLS][{}]", with("arguments").join(", ")),
            Form::Mistral => each(&|call| format!("[TOOL_CALLS]{}[ARGS]{}", call.name, call.arguments)).concat(),
            Form::Granite => format!("<|tool_call|>[{}]", with("arguments").join(", ")),
            Form::Functools => format!("functools[{}]", with("arguments").join(",")),
            Form::DeepSeek | Form::DeepSeekPlain => {
                let calls = each(&|Call { name, arguments }| match form {
                    Form::DeepSeek => format!(
                        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
                    ),
                    _ => format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"),
                });
                format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", calls.join("\n"))
            }
        }
    }

    /// The text and the calls of a text that comes in parts which end at these bytes.
    fn parsed(form: Form, text: &str, cuts: &[usize]) -> (String, Vec<Call>) {
        let mut parser = Parser::new(form, tools());
        let mut start = 0;
        let ends = cuts.iter().map(|cut| text.floor_char_boundary(*cut)).chain([text.len()]);
        let mut parts = Vec::new();
        for end in ends.filter(|end| *end > 0) {
            parts.extend(parser.push(&text[start..end]));
            start = end;
        }
        parts.extend(parser.finish());
        let (mut shown, mut calls) = (String::new(), Vec::new());
        for part in parts {
            match part {
                Part::Text(text) => shown += &text,
                Part::Call(call) => calls.push(call),
            }
        }
        (shown, calls)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn calls_are_read_wherever_the_text_is_cut(
            form in prop::sample::select(&Form::ALL[..]),
            calls in prop::collection::vec((prop::bool::ANY, "[a-z <>/_\"\\\\{}\\[\\]é]{0,12}", any::<i32>()), 1..4),
            said in "[A-Za-z <\\[]{0,8}",
        ) {
            let calls: Vec<_> = calls.into_iter().map(|(first, text, count)| {
                // A text with the mark that ends calls, which some forms can hold.
                let text = if first && form == Form::Hermes { format!("</tool_call>{text}") } else { text };
                let name = if first { "f" } else { "get_weather" };
                Call { name: name.into(), arguments: json!({"text": text, "count": count}).to_string() }
            }).collect();
            // A call of Llama is the whole text.
            let said = if form == Form::Llama { String::new() } else { said };
            let text = format!("{said}{}", written(form, &calls));
            for cut in 0..text.len() {
                let (shown, found) = parsed(form, &text, &[cut]);
                prop_assert_eq!(shown, said.trim_end(), "{:?} at {}: {}", form, cut, text);
                prop_assert_eq!(&found, &calls, "{:?} at {}: {}", form, cut, text);
            }
            let all: Vec<_> = (1..text.len()).collect();
            prop_assert_eq!(parsed(form, &text, &all), (said.trim_end().to_owned(), calls));
        }

        #[test]
        fn a_text_without_calls_stays_as_it_is(
            form in prop::sample::select(&Form::ALL[..]), text in "[a-z <>/_|\\[\\]{}\"\n]{0,40}", cut in 0usize..40,
        ) {
            prop_assert_eq!(parsed(form, &text, &[cut.min(text.len())]), (text, vec![]));
        }
    }

    #[test]
    fn what_is_no_call_is_text() {
        for (form, text) in [
            (Form::Hermes, "<tool_call>{\"name\": \"f\", \"argu"),
            (Form::Hermes, "<tool_call>{\"name\": 1}</tool_call>"),
            (Form::Llama, "{\"name\": \"unknown\", \"parameters\": {}}"),
            (Form::Llama, "{\"a\": 1}"),
            (Form::Mistral, "[TOOL_CALLS]f[ARGS]{"),
            (Form::Functools, "import functools\nfrom functools [ import\n"),
            (Form::Hermes, "Use the tag  <tool_call> like this:\n<tool_call>{\"a\": 1}</tool_call>\n"),
        ] {
            assert_eq!(parsed(form, text, &[]), (text.to_owned(), vec![]), "{form:?}");
        }
    }

    #[test]
    fn a_call_behind_one_that_is_none_is_read() {
        let (none, one) = ("a <tool_call>{\"b\"}</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>");
        let text = format!("{none}\n{one}");
        let call = Call { name: "f".into(), arguments: "{}".into() };
        for cut in 0..text.len() {
            assert_eq!(parsed(Form::Hermes, &text, &[cut]), (none.to_owned(), vec![call.clone()]));
        }
    }

    #[test]
    fn a_call_in_an_argument_is_a_text() {
        let inner = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
        let arguments = json!({"text": format!("Example:\n{inner}")}).to_string();
        let outer = Call { name: "f".into(), arguments };
        let text = written(Form::Elements, std::slice::from_ref(&outer));
        for cut in 0..text.len() {
            assert_eq!(parsed(Form::Elements, &text, &[cut]), (String::new(), vec![outer.clone()]), "{cut}");
        }
    }

    #[test]
    fn missing_arguments_are_an_empty_object() {
        for text in ["<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>\n<function=f>\n</function>\n</tool_call>"]
        {
            let form = if text.contains("function=") { Form::Elements } else { Form::Hermes };
            let call = Call { name: "f".into(), arguments: "{}".into() };
            assert_eq!(parsed(form, text, &[]), (String::new(), vec![call]));
        }
    }
}
