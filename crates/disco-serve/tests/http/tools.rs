//! Calls of tools over HTTP.

use std::sync::Arc;

use serde_json::{Value, json};

use super::double::text;
use super::model::{bytes, with_template};
use super::server::Server;

const CHAT: &str = "/v1/chat/completions";
/// Shows the form of Hermes.
const TEMPLATE: &str = "{{ messages[0].content }}{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}";

fn chat(more: Value) -> Value {
    let weather = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let mut body = json!({
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": weather}}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn calls_are_parted_from_the_text() {
    const SAID: &str = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"</tool_call>\"}}\n\
        </tool_call>\n<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>";
    let server = Server::with_template(TEMPLATE, text(SAID)).await;
    let choice = server.post(CHAT, chat(json!({}))).await.json()["choices"][0].clone();
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let functions: Vec<_> = calls.iter().map(|call| call["function"].clone()).collect();
    let expected = ["{\"city\":\"</tool_call>\"}", "{}"].map(|it| json!({"name": "weather", "arguments": it}));
    assert_eq!(functions, expected);
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!("Let me see."), &json!("tool_calls"))
    );
    assert!(calls[0]["id"] != calls[1]["id"] && calls[0]["type"] == "function");

    let chunks = server.stream(CHAT, chat(json!({"stream": true}))).await.objects().await;
    let deltas: Vec<_> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let content: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    let calls: Vec<_> = deltas.iter().filter_map(|delta| delta["tool_calls"].as_array()).flatten().collect();
    assert_eq!(content, "Let me see.");
    assert_eq!(calls.iter().map(|call| call["index"].clone()).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(calls.iter().map(|call| call["function"].clone()).collect::<Vec<_>>(), expected);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn a_text_without_calls_is_as_without_tools() {
    let server = Server::with_template(TEMPLATE, text("It rains {\"a\": 1} <tool")).await;
    let choice = server.post(CHAT, chat(json!({}))).await.json()["choices"][0].clone();
    assert_eq!(choice["message"]["content"], "It rains {\"a\": 1} <tool");
    assert_eq!((&choice["message"]["tool_calls"], &choice["finish_reason"]), (&Value::Null, &json!("stop")));
}

#[tokio::test]
async fn demanded_calls_have_a_grammar_of_the_models_form() {
    let template = with_template(TEMPLATE);
    let (server, mut double) = Server::start_with(move |app| app.model.text = Arc::clone(&template)).await;
    let strict = json!([{"type": "function", "function": {
        "name": "weather", "strict": true, "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo"]}},
            "required": ["city"], "additionalProperties": false},
    }}]);
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    for (more, allowed, refused) in [
        (json!({"tool_choice": "required"}), call, "Let"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
            call,
            "<tool_call>\n{\"name\": \"n",
        ),
        (json!({"tools": strict}), call, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"B"),
        (json!({"tools": strict}), "It rains, and I need no tool.", "a <tool_call>\n{\"name\": \"w\""),
        (json!({"parallel_tool_calls": false}), call, ""),
        // What the client asks for is the text of an answer without calls.
        (json!({"guided_regex": "It [a-z]+."}), "It rains.", "It rains. <tool_call>"),
        (
            json!({"guided_regex": "It [a-z]+.", "tools": strict}),
            call,
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"B",
        ),
        (json!({"response_format": {"type": "json_object"}}), call, "Let"),
        (json!({"response_format": {"type": "json_object"}, "tool_choice": "required"}), call, "{"),
    ] {
        let (server, body) = (server.address, chat(more.clone()));
        let client = tokio::spawn(async move { super::client::post(server, CHAT, &body.to_string()).await });
        let taken = double.take().await;
        let grammar = taken.request().grammar.clone().unwrap();
        let consume = |text: &str| {
            let mut grammar = grammar.clone();
            bytes(text).into_iter().try_for_each(|token| {
                let mask = grammar.mask()?;
                if mask.has(token.id) { grammar.consume(token.id) } else { Err(format!("{text}: {}", token.id)) }
            })
        };
        consume(allowed).unwrap_or_else(|why| panic!("{more}: {why}"));
        assert!(refused.is_empty() || consume(refused).is_err(), "{more}: {refused}");
        drop(taken);
        drop(client);
    }
}

#[tokio::test]
async fn the_tool_whose_schema_has_an_unknown_keyword_is_named() {
    let server = Server::with_template(TEMPLATE, text("x")).await;
    let function = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "strict": true, "parameters": parameters}});
    // What zod writes for a record.
    let record = json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}});
    for (last, expected) in [
        (json!({"propertyNames": {"type": "string"}}), None),
        (
            json!({"uniqueItems": true}),
            Some("`tools` of \"last\": the schema can't be compiled: Unimplemented keys: [\"uniqueItems\"]"),
        ),
    ] {
        let tools = json!([function("first", record.clone()), function("last", last)]);
        for more in [json!({"tools": tools}), json!({"tools": tools, "response_format": {"type": "json_object"}})] {
            let reply = server.post(CHAT, chat(more)).await;
            let why = (reply.status != 200).then(|| reply.error()["message"].as_str().unwrap().to_owned());
            assert_eq!(why.as_deref(), expected, "{reply:?}");
        }
    }
}

#[tokio::test]
async fn what_is_no_tool_is_refused_by_name() {
    let server = Server::with_template(TEMPLATE, text("x")).await;
    let of_type = |kind: &str| json!({"tools": [{"type": kind}]});
    for (more, param) in [
        (of_type("web_search"), "tools[0].type"),
        (of_type("function"), "tools[0].function.name"),
        (json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}), "tools[0].function.name"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]}),
            "tools[0].function.parameters",
        ),
        (json!({"tool_choice": "sometimes"}), "tool_choice"),
        (json!({"tool_choice": "required", "ignore_eos": true}), "tools"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "other"}}}), "tool_choice"),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (json!({"guided_regex": "("}), "guided_regex"),
    ] {
        let reply = server.post(CHAT, chat(more.clone())).await;
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{more}: {reply:?}");
    }
    for (template, expected) in [
        (
            "{{ messages[0].content }}",
            "the chat can't be turned into a text: the chat template of the model has no tools",
        ),
        ("{{ tools }}", "`tools` can't be called: the form in which the model writes calls is not known to the server"),
    ] {
        let server = Server::with_template(template, text("x")).await;
        assert_eq!(server.post(CHAT, chat(json!({}))).await.error()["message"], expected);
        assert_eq!(server.post(CHAT, chat(json!({"tool_choice": "none"}))).await.status, 200);
    }
}
