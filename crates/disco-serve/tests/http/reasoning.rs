//! What a model thinks before it answers.

use std::sync::Arc;

use serde_json::{Value, json};

use super::double::text;
use super::model::{bytes, with_template};
use super::server::Server;

const CHAT: &str = "/v1/chat/completions";
/// A template whose prompt begins the reasoning, and one that leaves it to the model.
const OPEN: &str = "{{ messages[-1].content }}<think>\n{# </think> #}";
const CLOSED: &str = "{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% endfor %}{# </think> #}";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn reasoning_is_parted_from_the_text() {
    for (template, said, reasoning, content) in [
        (OPEN, "Let me see.</think>\n\nIt rains.", json!("Let me see."), json!("It rains.")),
        (OPEN, "Let me see.", json!("Let me see."), Value::Null),
        (CLOSED, "<think>a</think>b", json!("a"), json!("b")),
        (CLOSED, "It rains.", Value::Null, json!("It rains.")),
    ] {
        let server = Server::with_template(template, text(said)).await;
        let message = server.post(CHAT, chat(json!({}))).await.json()["choices"][0]["message"].clone();
        assert_eq!((&message["reasoning_content"], &message["content"]), (&reasoning, &content), "{said}");
        assert_eq!(message["reasoning"], reasoning);
        let chunks = server.stream(CHAT, chat(json!({"stream": true}))).await.objects().await;
        let all = |name: &str| {
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str()).collect::<String>()
        };
        assert_eq!(
            (all("reasoning"), all("content")),
            [&reasoning, &content].map(|it| it.as_str().unwrap_or("").to_owned()).into()
        );
        let message = server.post(CHAT, chat(json!({"separate_reasoning": false}))).await.json();
        assert_eq!(message["choices"][0]["message"]["content"], said);
    }
}

#[tokio::test]
async fn earlier_reasoning_is_the_templates_by_both_names() {
    let template = with_template(CLOSED);
    let (server, mut double) = Server::start_with(move |app| app.model.text = Arc::clone(&template)).await;
    for name in ["reasoning", "reasoning_content"] {
        let messages = json!([{"role": "assistant", "content": "b", name: "a"}, {"role": "user", "content": "c"}]);
        let (address, body) = (server.address, json!({"messages": messages}).to_string());
        tokio::spawn(async move { super::client::post(address, CHAT, &body).await });
        let prompt: Vec<u32> = double.take().await.request().prompt.to_vec();
        assert_eq!(super::model::TEXT.decode(&prompt).unwrap(), "abc", "{name}");
    }
}

#[tokio::test]
async fn a_grammar_begins_behind_the_reasoning() {
    let template =
        with_template(&OPEN.replace("<think>", "{% if tools %}{{ tools }}{# <tool_call> #}{% endif %}<think>"));
    let (server, mut double) = Server::start_with(move |app| app.model.text = Arc::clone(&template)).await;
    let tools = json!([{"type": "function", "function": {"name": "now", "parameters": {}}}]);
    for (more, said) in [
        (json!({"guided_json": {"type": "object", "properties": {"a": {"type": "integer"}}}}), "{\"a\": 1}"),
        (json!({"guided_regex": "a/b"}), "a/b"),
        (json!({"guided_regex": "a\\/b\\\\"}), "a/b\\"),
        (json!({"guided_choice": ["a{b"]}), "a{b"),
        (
            json!({"tools": tools, "tool_choice": "required"}),
            "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
        ),
    ] {
        let (address, body) = (server.address, chat(more.clone()).to_string());
        tokio::spawn(async move { super::client::post(address, CHAT, &body).await });
        let taken = double.take().await;
        let grammar = taken.request().grammar.clone().unwrap();
        let consume = |text: &str| {
            let mut grammar = grammar.clone();
            bytes(text).into_iter().try_for_each(|token| {
                let mask = grammar.mask()?;
                if mask.has(token.id) { grammar.consume(token.id) } else { Err(format!("{text}: {}", token.id)) }
            })
        };
        for thought in ["Hm, {a} <thin.</think>\n\n", "</think>"] {
            consume(&format!("{thought}{said}")).unwrap_or_else(|why| panic!("{more}: {why}"));
            assert!(consume(&format!("{thought}!")).is_err(), "{more}");
        }
    }
}
