//! The entry points of the fuzz targets.

use disco_models::SamplingDefaults;
use llguidance::toktrie::ApproximateTokEnv;
use llguidance::{Matcher, ParserFactory};

use crate::api::{Kind, Known, Message, Object, Order, Wanted};
use crate::calls::{Form, Part, Parting, Tool};
use crate::grammar::{Constraint, Grammar, LIMITS};
use crate::text::{Marks, Reasoning};
use crate::trace::Context;

/// Parses `bytes` as the body of a chat, a completion, a message and a response. Returns how many of these are valid.
pub fn body(bytes: &[u8]) -> usize {
    let model = Known {
        name: "model",
        vocabulary: 512,
        ends: &[2],
        sampling: SamplingDefaults::default(),
        is_on_the_host: true,
    };
    let parse = |read: &dyn Fn(Object) -> bool| Object::parse(bytes).is_ok_and(read);
    let valid = [
        parse(&|object| Order::parse(Kind::Chat, object, model).is_ok()),
        parse(&|object| Order::parse(Kind::Completion, object, model).is_ok()),
        parse(&|object| Message::parse(object, false, model).is_ok()),
        parse(&|object| Wanted::parse(object, model).is_ok()),
    ];
    valid.into_iter().filter(|is_valid| *is_valid).count()
}

/// Reads `bytes` as the headers of a trace, a line each. Returns whether there is one; what is read is written back the same.
pub fn context(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let (parent, state) = text.split_once('\n').unwrap_or((&text, ""));
    let Some(context) = Context::parse(parent, state) else { return false };
    let written = Context::response(context.trace, context.span, context.is_sampled);
    assert_eq!(Context::parse(&written, &context.state).as_ref(), Some(&context), "{written}");
    true
}

/// Parts `bytes` as a text of each form of calls, whole and in two parts. Returns the number of calls.
pub fn parts(bytes: &[u8]) -> usize {
    let Some((cut, bytes)) = bytes.split_first() else { return 0 };
    let text = String::from_utf8_lossy(bytes);
    let (first, second) = text.split_at(text.floor_char_boundary(usize::from(*cut)));
    let tools = || [Tool { name: "f".into(), parameters: serde_json::json!({}), is_strict: false }].into();
    let marks = Marks::of("</think>").unwrap_or_else(|| unreachable!("the marks are known"));
    let mut calls = 0;
    for form in Form::ALL {
        let parted = |parts: &[&str]| {
            let reasoning = Some(Reasoning::new(marks, cut.is_multiple_of(2)));
            let mut parting = match form {
                Form::Harmony => Parting::channels(tools(), true, cut.is_multiple_of(2)),
                form => Parting::new(reasoning, Some((form, tools()))),
            };
            let (mut said, mut calls) = ([String::new(), String::new()], Vec::new());
            for (index, part) in parts.iter().enumerate() {
                for part in parting.push((*part).to_owned(), index + 1 == parts.len()) {
                    match part {
                        Part::Reasoning(reasoning) => said[0] += &reasoning,
                        Part::Text(text) => said[1] += &text,
                        Part::Begin(name) => calls.push((name, String::new(), false)),
                        Part::Arguments(more) => {
                            calls.iter_mut().last().into_iter().for_each(|(_, all, _)| *all += &more)
                        }
                        Part::End => {
                            calls.iter_mut().last().into_iter().for_each(|(_, _, is_complete)| *is_complete = true)
                        }
                    }
                }
            }
            (said, calls)
        };
        let whole = parted(&[&text]);
        assert_eq!(parted(&[first, second]), whole, "{form:?}");
        calls += whole.1.len();
    }
    calls
}

/// Compiles `bytes` as a schema, an expression and a grammar, and follows each for some tokens. Returns how many could be compiled.
pub fn grammar(bytes: &[u8]) -> usize {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let schema = serde_json::from_str(&text).ok().and_then(|schema| Grammar::schema(schema).ok());
    let all = schema.into_iter().chain([Grammar::Regex(text.clone()), Grammar::Lark(text)]);
    let follows = |grammar: Grammar| {
        let mut factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).ok()?;
        *factory.limits_mut() = LIMITS;
        factory.quiet();
        let mut constraint = Constraint::new(Matcher::new(factory.create_parser(grammar.compilable().ok()?)));
        for step in 0..20 {
            let mask = constraint.mask().ok()?;
            // Behind a complete text, only its end can follow.
            let Some(token) = (0..256).map(|token| (token + 37 * step) % 256).find(|token| mask.has(*token)) else {
                break;
            };
            constraint.consume(token).ok()?;
        }
        Some(())
    };
    all.filter_map(follows).count()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_valid_is_counted() {
        assert_eq!(super::body(br#"{"prompt": "x"}"#), 1);
        assert_eq!(
            super::body(br#"{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "input": "x"}"#),
            2
        );
        assert_eq!(super::body(br#"{"input": "x"}"#), 1);
        assert_eq!(super::body(b"{}"), 0);
        assert!(super::context(b"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more\na=1"));
        assert!(!super::context(b"00-0-0-01"));
        assert_eq!(super::parts(b"\x05<tool_call>{\"name\": \"f\"}</tool_call>"), 1);
        assert_eq!(super::grammar(br#"{"type": "array", "items": {}}"#), 1);
        assert_eq!(super::grammar(b"start: \"a\""), 2);
    }
}
