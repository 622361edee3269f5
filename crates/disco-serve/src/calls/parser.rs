//! Parting calls from a text that grows.

use std::sync::Arc;

use super::arguments::{Arguments, Known};
use super::json::{Reach, Scan};
use super::object::Object;
use super::reading::{Not, Taken, past};
use super::{Form, Part, Tool};
use crate::text::undecided;

/// Finds the calls of a growing text. Text that may begin a call, and white space before one, is held back until the next part
/// decides it, so the result does not depend on the parts.
#[derive(Debug)]
pub(super) struct Parser {
    form: Form,
    tools: Arc<[Tool]>,
    state: State,
    held: String,
    /// What stands before a call that has begun, and is text if it is none: white space and the mark that begins calls.
    before: String,
}

#[derive(Debug)]
enum State {
    /// Nothing but white space has come.
    Begin,
    Text,
    /// In what may be the begin of a call.
    Head(Object),
    Arguments(Arguments),
    /// In the rest of an object, behind the arguments.
    Rest(Scan),
    /// Behind a call, before what ends calls.
    After,
    /// Behind calls.
    Behind,
}

impl Parser {
    pub(super) fn new(form: Form, tools: Arc<[Tool]>) -> Self {
        Self { form, tools, state: State::Begin, held: String::new(), before: String::new() }
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
        let held = std::mem::take(&mut self.held);
        let text = match self.state {
            State::Begin | State::Text => held,
            State::Head(_) => std::mem::take(&mut self.before) + &held,
            State::Arguments(_) | State::Rest(_) => String::new(),
            State::Behind | State::After => {
                let rest = held.trim();
                let ends = self.form.end().into_iter().chain(self.form.closes().iter().copied());
                let is_cut = matches!(self.state, State::After) && ends.into_iter().any(|end| end.starts_with(rest));
                if rest.is_empty() || is_cut { String::new() } else { held }
            }
        };
        if text.is_empty() { Vec::new() } else { vec![Part::Text(text)] }
    }

    /// Does what can be done with the held text. Returns whether there is more to do.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match &mut self.state {
            State::Begin | State::Text | State::Behind => self.text(parts),
            State::Head(object) => match self.form.head(&self.held, object, &self.tools) {
                Ok(head) => {
                    self.held.drain(..head.length);
                    parts.push(Part::Begin(head.name));
                    self.state = match head.arguments {
                        Known::Follow(arguments) => State::Arguments(arguments),
                        Known::Are(arguments) => {
                            parts.extend([Part::Arguments(arguments), Part::End]);
                            State::After
                        }
                    };
                    true
                }
                Err(Not::Yet) => false,
                Err(Not::Ever) => {
                    let before = std::mem::take(&mut self.before);
                    parts.extend((!before.is_empty()).then_some(Part::Text(before)));
                    self.state = State::Text;
                    true
                }
            },
            State::Arguments(arguments) => {
                let Taken { json, length, is_end } = arguments.take(&self.held);
                self.held.drain(..length);
                if !json.is_empty() {
                    parts.push(Part::Arguments(json));
                }
                if is_end {
                    parts.push(Part::End);
                    self.state = if self.form.has_objects() { State::Rest(Scan::inside()) } else { State::After };
                }
                is_end
            }
            State::Rest(scan) => match scan.follow(&self.held) {
                Reach::On => {
                    self.held.clear();
                    false
                }
                Reach::End(length) | Reach::Broken(length) => {
                    self.held.drain(..length);
                    self.state = State::After;
                    true
                }
            },
            State::After => self.after(),
        }
    }

    /// Text up to the next call.
    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        let is_begin = matches!(self.state, State::Begin);
        if is_begin && self.form.may_be_bare() && self.held.trim_start().starts_with('{') {
            self.before.clear();
            self.state = State::Head(Object::of(&self.tools));
            return true;
        }
        let begin = self.form.begin();
        let (end, is_marked) = match self.held.find(begin) {
            Some(place) => (place, true),
            None => (undecided(&self.held, begin), false),
        };
        let shown = self.held[..end].trim_end().len();
        if shown > 0 {
            parts.push(Part::Text(self.held[..shown].to_owned()));
            self.state = State::Text;
        }
        if is_marked {
            self.before = self.held[shown..end + begin.len()].to_owned();
            self.held.drain(..end + begin.len());
            self.state = State::Head(Object::default());
        } else {
            self.held.drain(..shown);
        }
        is_marked
    }

    /// What follows a call: what ends calls, another call, or text.
    fn after(&mut self) -> bool {
        let rest = self.held.trim_start();
        let end = self.form.end();
        let mut may_follow = rest.is_empty();
        for mark in self.form.closes().iter().copied().chain(end) {
            match past(rest, mark) {
                Ok(behind) => {
                    self.held = behind.to_owned();
                    if Some(mark) == end {
                        self.state = State::Behind;
                    }
                    return true;
                }
                Err(not) => may_follow |= not == Not::Yet,
            }
        }
        // Between objects stand commas or, in calls of Llama, semicolons.
        let is_between = |c: char| c.is_whitespace() || (self.form.has_objects() && [',', ';', '['].contains(&c));
        let next = rest.trim_start_matches(is_between);
        may_follow |= next.is_empty();
        let marks = [(Some(self.form.begin()), true), (self.form.next(), false)];
        for (mark, is_begin) in marks.into_iter().filter_map(|(mark, is_begin)| Some((mark?, is_begin))) {
            match past(next, mark) {
                Ok(behind) => {
                    let next = if is_begin { behind } else { next };
                    self.before = self.held[..self.held.len() - next.len()].to_owned();
                    self.held = next.to_owned();
                    let is_bare = self.form.may_be_bare() && !is_begin;
                    let object = if is_bare { Object::of(&self.tools) } else { Object::default() };
                    self.state = State::Head(object);
                    return true;
                }
                Err(not) => may_follow |= not == Not::Yet,
            }
        }
        if !may_follow {
            self.state = State::Behind;
        }
        !may_follow
    }
}

#[cfg(test)]
mod tests {
    use super::super::rendered::{called, parsed};
    use super::*;

    #[test]
    fn what_is_no_call_is_text() {
        for (form, text) in [
            (Form::Hermes, "<tool_call>{\"name\": \"f\", \"argu"),
            (Form::Hermes, "<tool_call>{\"name\": 1}</tool_call>"),
            (Form::Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"),
            (Form::Llama, "{\"name\": \"unknown\", \"parameters\": {}}"),
            (Form::Llama, "{\"a\": 1}"),
            (Form::Mistral, "[TOOL_CALLS]f[ARGS]"),
            (Form::Functools, "import functools\nfrom functools [ import functools[x]\n"),
            (Form::Elements, "<tool_call>\n<function=f>\nx"),
            (Form::Gemma, "<|tool_call>call:f <tool_call|>"),
            (Form::Hermes, "Use the tag  <tool_call> like this:\n<tool_call>{\"a\": 1}</tool_call>\n"),
        ] {
            for cut in 0..text.len() {
                assert_eq!(parsed(form, text, &[cut]), (text.to_owned(), vec![]), "{form:?} at {cut}");
            }
        }
    }

    #[test]
    fn a_call_behind_one_that_is_none_is_read() {
        let none = "a <tool_call>{\"b\"}</tool_call>";
        let text = format!("{none}\n<tool_call>{{\"name\": \"f\"}}</tool_call>");
        for cut in 0..text.len() {
            assert_eq!(parsed(Form::Hermes, &text, &[cut]), (none.to_owned(), vec![called("f", "{}")]));
        }
    }

    #[test]
    fn arguments_come_in_any_place_and_as_a_text() {
        for (text, arguments) in [
            ("{\"name\": \"f\"}", "{}"),
            ("{\"name\": \"f\", \"arguments\": null}", "{}"),
            ("{\"arguments\": {\"a\": \"}\"}, \"name\": \"f\"}", "{\"a\":\"}\"}"),
            ("{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}", "{\"a\": 1}"),
            ("{\"id\": 7, \"name\": \"f\", \"parameters\": {\"a\": 1}, \"type\": [\"}\"]}", "{\"a\":1}"),
        ] {
            let text = format!("<tool_call>{text}</tool_call>\nDone.");
            for cut in 0..text.len() {
                let expected = ("\nDone.".to_owned(), vec![called("f", arguments)]);
                assert_eq!(parsed(Form::Hermes, &text, &[cut]), expected, "{text} at {cut}");
            }
        }
    }

    /// A call that has begun stays one: arguments are sent while they come.
    #[test]
    fn arguments_that_are_cut_or_no_json_stay_arguments() {
        for (form, text, arguments, said) in [
            (Form::Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x", "{\"a\":\"x", ""),
            (Form::Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1</tool_call> x", "{\"a\":1", " x"),
            (Form::Mistral, "[TOOL_CALLS]f[ARGS]{", "{", ""),
            (
                Form::Elements,
                "<tool_call>\n<function=f>\n<parameter=text>\na\n</parameter>\n<parameter=b",
                "{\"text\":\"a\"",
                "",
            ),
            (
                Form::Elements,
                "<tool_call><function=f><parameter=text>a</parameter></tool_call>",
                "{\"text\":\"a\"}",
                "",
            ),
            (Form::Gemma, "<|tool_call>call:f{text:<|\"|>a", "{\"text\":\"a", ""),
        ] {
            for cut in 0..text.len() {
                let (shown, calls) = parsed(form, text, &[cut]);
                assert_eq!((shown.as_str(), calls.len()), (said, 1), "{form:?} at {cut}");
                assert_eq!(
                    (calls[0].name.as_str(), calls[0].arguments.as_str()),
                    ("f", arguments),
                    "{form:?} at {cut}"
                );
            }
        }
    }

    #[test]
    fn names_and_pieces_of_arguments_come_with_their_text() {
        let mut parser = Parser::new(Form::Hermes, [].into());
        let mut next = |text: &str| parser.push(text);
        assert_eq!(next("<tool_call>\n{\"name\": \"f\", \"arguments\": "), []);
        assert_eq!(next("{\"te"), [Part::Begin("f".into()), Part::Arguments("{\"te".into())]);
        assert_eq!(next("xt\":\"a</"), [Part::Arguments("xt\":\"a</".into())]);
        assert_eq!(next("\"}"), [Part::Arguments("\"}".into()), Part::End]);
        assert_eq!(next("}\n</tool_call>"), []);
        let mut parser = Parser::new(Form::Elements, [].into());
        let mut next = |text: &str| parser.push(text);
        assert_eq!(next("<tool_call>\n<function=f>\n<parameter="), [Part::Begin("f".into())]);
        assert_eq!(next("a>\n1\n</parameter>\n"), []);
        assert_eq!(next("<parameter=b>"), [Part::Arguments("{\"a\":1".into())]);
        assert_eq!(next("\nx\n</parameter>\n</function>"), [Part::Arguments(",\"b\":\"x\"}".into()), Part::End]);
    }
}
