//! What a chat template makes of the roles and the calls of a chat.

use disco_models::text::{Chat, TextError};
use serde_json::{Value as Json, json};

use super::text::bytes;

/// A template that has all roles, and one that knows three.
const ANY: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}";
const KNOWN: &str = "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";

fn said(role: &str, content: &str) -> Json {
    json!({"role": role, "content": content})
}

#[test]
fn instructions_of_a_developer_are_the_systems_unless_the_template_has_this_role() {
    let chat = Chat::new(vec![said("developer", "Be kind."), said("user", "hi")]);
    let rendered = |template| bytes("gpt-2", template).render(&chat).unwrap();
    assert_eq!(rendered(KNOWN), "<system>Be kind.<user>hi");
    assert_eq!(rendered(ANY), "<system>Be kind.<user>hi");
    let named = format!("{ANY}{{# developer #}}");
    assert_eq!(rendered(&named), "<developer>Be kind.<user>hi");
}

#[test]
fn a_message_that_the_template_leaves_out_is_named_with_its_role() {
    // Takes a system's message at the beginning only.
    let first = "{% if messages[0].role == 'system' %}<{{ messages[0].content }}>{% set messages = messages[1:] %}{% endif %}\
                 {% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% elif m.role == 'assistant' %}.{% endif %}{% endfor %}";
    let cases = [
        (KNOWN, vec![said("user", "hi"), said("banana", "x")], Some((1, "banana"))),
        (KNOWN, vec![said("tool", "x"), said("user", "hi")], Some((0, "tool"))),
        (KNOWN, vec![said("banana", ""), said("user", "hi")], None),
        (ANY, vec![said("user", "hi"), said("banana", "x"), said("tool", "<|end|>")], None),
        (first, vec![said("system", "x"), said("user", "hi")], None),
        // What assistants have said need not be repeated.
        (first, vec![said("developer", "x"), said("user", "hi"), said("assistant", "yes")], None),
        (first, vec![said("user", "hi"), said("tool", "x")], Some((1, "tool"))),
    ];
    for (template, messages, expected) in cases {
        let (text, chat) = (bytes("gpt-2", template), Chat::new(messages));
        let found = [text.chat(&chat).map(drop), text.render(&chat).map(drop)].map(|result| match result {
            Ok(()) => None,
            Err(TextError::Role { message, role }) => Some((message, role)),
            Err(error) => panic!("{error}"),
        });
        let expected = expected.map(|(message, role)| (message, role.to_owned()));
        assert_eq!(found, [expected.clone(), expected], "{chat:?}");
    }
}

#[test]
fn messages_that_a_template_refuses_in_their_place_are_said_with_others_of_the_user() {
    // Qwen 3.5 and Mistral refuse instructions behind the first message, and Mistral two messages of the user in a row.
    let strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}\
                  {% if loop.index0 and m.role == messages[loop.index0 - 1].role %}{{ raise_exception('roles') }}{% endif %}\
                  <{{ m.role }}>{{ m.content }}{% endfor %}";
    let leaves_out = "{% for m in messages %}{% if m.role != 'system' or loop.first %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";
    for (messages, expected) in [
        (vec![said("user", "hi"), said("system", "Agents: a")], "<user>hi\n\nAgents: a"),
        (vec![said("system", "a"), said("developer", "b"), said("user", "hi")], "<system>a\n\nb<user>hi"),
        (
            vec![
                said("user", "hi"),
                said("assistant", "yes"),
                said("developer", "a"),
                said("system", "b"),
                said("user", "go"),
            ],
            "<user>hi<assistant>yes<user>a\n\nb\n\ngo",
        ),
    ] {
        for template in [strict, leaves_out] {
            let text = bytes("gpt-2", template);
            let chat = Chat::new(messages.clone());
            assert_eq!(text.render(&chat).unwrap(), expected);
            assert_eq!(text.decode(&text.chat(&chat).unwrap()).unwrap(), expected);
        }
        // A template that has them anywhere gets them where they are.
        let rendered = bytes("gpt-2", ANY).render(&Chat::new(messages.clone())).unwrap();
        assert_eq!(rendered.matches('<').count(), messages.len());
    }
    let twice = Chat::new(vec![said("system", "a"), said("user", "b"), said("user", "c")]);
    assert_eq!(bytes("gpt-2", strict).render(&twice).unwrap(), "<system>a<user>b\n\nc");
    // The error is that of the chat as it is.
    let refused = Chat::new(vec![said("assistant", "a"), said("assistant", "b"), said("system", "c")]);
    let error = bytes("gpt-2", strict).chat(&refused).unwrap_err().to_string();
    assert!(error.contains("roles"), "{error}");
}

#[test]
fn arguments_of_calls_are_objects_or_texts_as_the_template_takes_them() {
    let call = json!({"function": {"name": "get", "arguments": {"city": "Oslo", "days": 2}}});
    let chat = Chat::new(vec![said("user", "hi"), json!({"role": "assistant", "content": "", "tool_calls": [call]})]);
    let rendered = |walk: &str| {
        let template =
            format!("{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{walk}{{% endfor %}}{{% endfor %}}");
        bytes("gpt-2", &template).render(&chat)
    };
    let items = "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}";
    assert_eq!(rendered(items).unwrap(), "city=Oslo;days=2;");
    let text = r#"{"city": "Oslo", "days": 2}"#;
    assert_eq!(rendered("{{ c.function.arguments | tojson }}").unwrap(), text);
    // DeepSeek's.
    assert_eq!(rendered("{{ 'json:' + c.function.arguments }}").unwrap(), format!("json:{text}"));
    let error = rendered("{{ c.function.arguments + 1 }}").unwrap_err().to_string();
    assert!(error.contains("map"), "{error}");
}

#[test]
fn calls_that_a_template_leaves_out_are_refused() {
    let mut call = json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get"}}]});
    let text = bytes("gpt-2", ANY);
    let error = text.chat(&Chat::new(vec![call.clone()])).unwrap_err().to_string();
    assert!(error.ends_with("the chat template of the model has no tool_calls"), "{error}");
    call["tool_calls"] = json!([]);
    text.chat(&Chat::new(vec![call])).unwrap();
}
