//! Anthropic's interface.

use std::sync::Arc;

use disco_serve::engine::{End, Event};
use serde_json::{Value, json};

use super::double::text;
use super::model::{TEXT, bytes, with_template};
use super::server::Server;

const MESSAGES: &str = "/v1/messages";
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}\
    {{ call.function.arguments | tojson }}{% endfor %};{% endfor %}{% if tools %}{{ tools | tojson }}{# <tool_call> #}{% endif %}{# </think> #}";

fn message(more: Value) -> Value {
    let mut body = json!({"model": "tiny", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn tools() -> Value {
    json!([{"name": "weather", "description": "x", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}])
}

#[tokio::test]
async fn a_message_has_thoughts_texts_and_calls() {
    const SAID: &str = "<think>Hm.</think>Let me see.\n<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>";
    let server = Server::with_template(TEMPLATE, text(SAID)).await;
    let thinking = json!({"type": "enabled", "budget_tokens": 1024});
    let whole = server.post(MESSAGES, message(json!({"tools": tools(), "thinking": thinking}))).await.json();
    let [thought, said, call] = whole["content"].as_array().unwrap().as_slice() else { panic!("{whole}") };
    assert_eq!(*thought, json!({"type": "thinking", "thinking": "Hm.", "signature": ""}));
    assert_eq!(*said, json!({"type": "text", "text": "Let me see."}));
    assert_eq!(
        (&call["type"], &call["name"], &call["input"]),
        (&json!("tool_use"), &json!("weather"), &json!({"city": "Oslo"}))
    );
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("tool_use"))
    );
    assert!(whole["usage"]["input_tokens"].as_u64() > Some(0) && whole["usage"]["output_tokens"].as_u64() > Some(50));

    let body = message(json!({"tools": tools(), "thinking": thinking, "stream": true}));
    let events = server.events(MESSAGES, body).await;
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let starts: Vec<_> = events.iter().filter(|event| event["type"] == "content_block_start").collect();
    let blocks: Vec<_> = starts.iter().map(|event| event["content_block"]["type"].as_str().unwrap()).collect();
    assert_eq!(blocks, ["thinking", "text", "tool_use"]);
    assert_eq!(starts.iter().map(|event| event["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(starts[2]["content_block"]["input"], json!({}));
    let all = |index: u64, name: &str| {
        let deltas = events.iter().filter(|event| event["type"] == "content_block_delta" && event["index"] == index);
        deltas.filter_map(|event| event["delta"][name].as_str()).collect::<String>()
    };
    assert_eq!((all(0, "thinking"), all(1, "text")), ("Hm.".to_owned(), "Let me see.".to_owned()));
    assert_eq!(all(2, "partial_json"), "{\"city\":\"Oslo\"}");
    let last = &events[events.len() - 2];
    assert_eq!((&last["delta"]["stop_reason"], &last["usage"]), (&json!("tool_use"), &whole["usage"]));

    // Thoughts are for those who ask for them.
    let whole = server.post(MESSAGES, message(json!({"tools": tools()}))).await.json();
    assert_eq!(whole["content"][0]["type"], "text");
}

#[tokio::test]
async fn a_message_says_why_it_ends() {
    let cut: Vec<_> = bytes("abc").into_iter().map(Event::Token).chain([Event::End(End::Length)]).collect();
    for (said, more, reason, sequence) in [
        (text("It rains."), json!({}), "end_turn", Value::Null),
        (cut, json!({}), "max_tokens", Value::Null),
        (text("It rains."), json!({"stop_sequences": ["x", "ns"]}), "stop_sequence", json!("ns")),
    ] {
        let server = Server::with_template(TEMPLATE, said).await;
        let whole = server.post(MESSAGES, message(more.clone())).await.json();
        assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!(reason), &sequence), "{whole}");
        let mut more = more;
        more["stream"] = json!(true);
        let events = server.events(MESSAGES, message(more)).await;
        let delta = &events[events.len() - 2]["delta"];
        assert_eq!((&delta["stop_reason"], &delta["stop_sequence"]), (&json!(reason), &sequence));
    }
}

#[tokio::test]
async fn the_template_gets_instructions_calls_and_results() {
    let template = with_template(TEMPLATE);
    let (server, mut double) = Server::start_with(move |app| app.model.text = Arc::clone(&template)).await;
    let format = json!({"type": "json_schema", "schema": {"type": "object"}});
    let body = message(json!({
        "output_config": {"format": format, "effort": "low"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "ok"}, {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Oslo"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "and?"},
            ]},
        ],
    }));
    let (address, text) = (server.address, body.to_string());
    tokio::spawn(async move { super::client::post(address, MESSAGES, &text).await });
    let taken = double.take().await;
    assert!(taken.request().grammar.is_some());
    let prompt: Vec<u32> = taken.request().prompt.to_vec();
    let expected = "system:Be kind.;user:hi;assistant:okweather{\"city\": \"Oslo\"};tool:rain;user:and?;";
    assert_eq!(TEXT.decode(&prompt).unwrap(), expected);
    let count = server.post("/v1/messages/count_tokens", body).await.json();
    assert_eq!(count, json!({"input_tokens": prompt.len()}));
}

#[tokio::test]
async fn the_beginning_of_an_answer_is_continued() {
    let template = with_template(TEMPLATE);
    let (server, mut double) = Server::start_with(move |app| app.model.text = Arc::clone(&template)).await;
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I am"}]);
    let (address, body) = (server.address, message(json!({"messages": messages})).to_string());
    tokio::spawn(async move { super::client::post(address, MESSAGES, &body).await });
    assert_eq!(TEXT.decode(&double.take().await.request().prompt).unwrap(), "user:hi;assistant:I am");
}

#[tokio::test]
async fn errors_have_the_form_of_the_interface() {
    let server = Server::with_template(TEMPLATE, text("x")).await;
    for (more, status, kind, expected) in [
        (json!({"max_tokens": null}), 400, "invalid_request_error", "`max_tokens` is missing"),
        (
            json!({"model": "other"}),
            404,
            "not_found_error",
            "the model \"other\" is not served here; the server has the model \"tiny\"",
        ),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            400,
            "invalid_request_error",
            "`tools[0].type` is \"web_search_20250305\"; the server has tools of the type \"custom\" only",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            400,
            "invalid_request_error",
            "`messages[0].content[0].image` is not supported: the model takes only text",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]}]}),
            400,
            "invalid_request_error",
            "`messages[0].content[0].tool_result.content[0].image` is not supported: the model takes only text",
        ),
        (
            json!({"output_config": {"format": {"type": "xml"}}}),
            400,
            "invalid_request_error",
            "`output_config.format.type` must be \"json_schema\"",
        ),
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": 1}}}),
            400,
            "invalid_request_error",
            "`output_config.format.schema` must be an object",
        ),
        (
            json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
            400,
            "invalid_request_error",
            "`context_management.edits[0].type` is not supported by this server, which has edits of the type \
             \"clear_thinking_20251015\" only",
        ),
        (json!({"mcp_servers": [{}]}), 400, "invalid_request_error", "`mcp_servers` is not supported by this server"),
    ] {
        let reply = server.post(MESSAGES, message(more)).await;
        assert_eq!(reply.status, status, "{reply:?}");
        assert_eq!(reply.json(), json!({"type": "error", "error": {"type": kind, "message": expected}}));
    }
    let reply = server.post("/v1/messages/nothing", message(json!({}))).await;
    assert_eq!((reply.status, &reply.json()["type"]), (404, &json!("error")));
}

#[tokio::test]
async fn errors_of_the_context_have_the_words_that_clients_look_for() {
    let server = Server::with_template(TEMPLATE, text("x")).await;
    for (words, max_tokens) in [(10, 1000), (1100, 1), (10_000, 1)] {
        let body =
            message(json!({"messages": [{"role": "user", "content": "q ".repeat(words)}], "max_tokens": max_tokens}));
        let count = server.post("/v1/messages/count_tokens", body.clone()).await.json()["input_tokens"].clone();
        let expected = match words {
            10 => format!("input length and `max_tokens` exceed context limit: {count} + 1000 > 1000: the prompt has"),
            1100 => format!("prompt is too long: {count} tokens > 1000 maximum: the prompt has"),
            _ => "prompt is too long: the prompt has more than 1000 tokens".to_owned(),
        };
        let reply = server.post(MESSAGES, body).await;
        let error = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(reply.status == 400 && error.starts_with(&expected), "{error}: {expected}");
    }
}

#[tokio::test]
async fn tokens_that_the_cache_had_are_counted_apart() {
    let said: Vec<_> = [Event::Begun { cached: 4 }].into_iter().chain(text("x")).collect();
    let server = Server::with_template(TEMPLATE, said).await;
    let all =
        server.post("/v1/messages/count_tokens", message(json!({}))).await.json()["input_tokens"].as_u64().unwrap();
    let usage = |uncached: u64, cached: u32, output: u32| {
        json!({
            "input_tokens": uncached, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0, "output_tokens": output,
        })
    };
    let whole = server.post(MESSAGES, message(json!({}))).await.json();
    assert_eq!(whole["usage"], usage(all - 4, 4, 2));
    let events = server.events(MESSAGES, message(json!({"stream": true}))).await;
    assert_eq!(events[0]["message"]["usage"], usage(all, 0, 0));
    assert_eq!(events[events.len() - 2]["usage"], usage(all - 4, 4, 2));
}
