//! OpenAI's newer interface.

use std::sync::Arc;

use disco_serve::engine::{End, Event};
use serde_json::{Value, json};

use super::double::text;
use super::model::{TEXT, bytes, with_template};
use super::server::Server;

const RESPONSES: &str = "/v1/responses";
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}{{ m.content }}{% for call in m.tool_calls or [] %}\
    {{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %};{% endfor %}\
    {% if tools %}{{ tools | tojson }}{# <tool_call> #}{% endif %}{# </think> #}";

fn tools() -> Value {
    json!([
        {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
        {"type": "web_search"},
    ])
}

async fn events(server: &Server, body: Value) -> Vec<Value> {
    let events = server.events(RESPONSES, body).await;
    let numbers: Vec<_> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    events
}

#[tokio::test]
async fn a_response_has_reasoning_messages_and_calls() {
    const SAID: &str = "<think>Hm.</think>Let me see.\n<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>";
    let server = Server::with_template(TEMPLATE, text(SAID)).await;
    let whole = server.post(RESPONSES, json!({"input": "hi", "tools": tools(), "metadata": {"a": "b"}})).await.json();
    assert_eq!(
        (&whole["object"], &whole["status"], &whole["metadata"]),
        (&json!("response"), &json!("completed"), &json!({"a": "b"}))
    );
    let kinds: Vec<_> = whole["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert_eq!(whole["output"][0]["content"][0]["text"], "Hm.");
    assert_eq!(whole["output"][1]["content"][0]["text"], "Let me see.");
    assert_eq!(whole["output"][2]["arguments"], "{\"city\":\"Oslo\"}");
    assert_eq!(whole["tools"], tools());
    // A byte is a token here: from the last one of the mark that begins the reasoning to the last but one of the mark that ends it.
    let thought = 1 + "Hm.".len() + "</think".len();
    assert_eq!(whole["usage"]["output_tokens_details"]["reasoning_tokens"], thought);

    let events = events(&server, json!({"input": "hi", "tools": tools(), "stream": true})).await;
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    let mut kinds: Vec<_> = kinds[2..].to_vec();
    kinds.dedup();
    let of_item = |name: &'static str| [format!("response.{name}.delta"), format!("response.{name}.done")];
    let part = |name: &'static str| {
        let [delta, done] = of_item(name);
        [
            "response.output_item.added".into(),
            "response.content_part.added".into(),
            delta,
            done,
            "response.content_part.done".into(),
            "response.output_item.done".into(),
        ]
    };
    let [delta, done] = of_item("function_call_arguments");
    let call: [String; 4] = ["response.output_item.added".into(), delta, done, "response.output_item.done".into()];
    let expected = [&part("reasoning_text")[..], &part("output_text"), &call, &["response.completed".into()]].concat();
    assert_eq!(kinds, expected);
    let last = events.last().unwrap();
    let items: Vec<_> = events.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    let items: Vec<_> = items.iter().map(|event| event["item"].clone()).collect();
    assert_eq!(last["response"]["output"], Value::Array(items));
    assert_eq!(last["response"]["usage"], whole["usage"]);
}

#[tokio::test]
async fn functions_of_a_namespace_have_its_name() {
    let parameters = json!({"type": "object", "properties": {}});
    let tools = json!([
        {"type": "function", "name": "open", "parameters": parameters},
        {"type": "namespace", "name": "files", "description": "About files.", "tools": [
            {"type": "function", "name": "open", "description": "Opens one.", "parameters": parameters},
            {"type": "custom", "name": "patch"},
        ]},
    ]);
    let input = json!([
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "a", "namespace": "files", "name": "open", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "ok"},
    ]);
    let template = with_template(TEMPLATE);
    let (server, mut double) = Server::start_with(move |app| app.model.text = Arc::clone(&template)).await;
    let choice = json!({"type": "function", "namespace": "files", "name": "open"});
    let body = json!({"input": input, "tools": tools, "tool_choice": choice}).to_string();
    let address = server.address;
    tokio::spawn(async move { super::client::post(address, RESPONSES, &body).await });
    let prompt = TEXT.decode(&double.take().await.request().prompt).unwrap();
    assert!(prompt.starts_with("user:hi;assistant:files.open{};tool:ok;"), "{prompt}");
    let listed: Value = serde_json::from_str(&prompt[prompt.find('[').unwrap()..]).unwrap();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|it| it["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["open", "files.open"]);
    assert_eq!(listed[1]["function"]["description"], "About files.\n\nOpens one.");

    for (name, namespace) in [("open", Value::Null), ("files.open", json!("files"))] {
        let said = format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {{}}}}</tool_call>");
        let server = Server::with_template(TEMPLATE, text(&said)).await;
        let whole = server.post(RESPONSES, json!({"input": "hi", "tools": tools})).await.json();
        let call = &whole["output"][0];
        assert_eq!((&call["name"], &call["namespace"]), (&json!("open"), &namespace), "{whole}");
    }
}

#[tokio::test]
async fn a_response_that_is_cut_is_incomplete() {
    let cut: Vec<_> = bytes("abc").into_iter().map(Event::Token).chain([Event::End(End::Length)]).collect();
    let server = Server::with_template(TEMPLATE, cut).await;
    let whole = server.post(RESPONSES, json!({"input": "hi"})).await.json();
    assert_eq!(
        (&whole["status"], &whole["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(whole["output"][0]["status"], "incomplete");
    let events = events(&server, json!({"input": "hi", "stream": true})).await;
    assert_eq!(events.last().unwrap()["type"], "response.incomplete");
}

#[tokio::test]
async fn the_template_gets_all_items() {
    let template = with_template(TEMPLATE);
    let (server, mut double) = Server::start_with(move |app| app.model.text = Arc::clone(&template)).await;
    let body = json!({
        "instructions": "Be kind.", "max_output_tokens": 7,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true}},
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
            {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{\"city\": \"Oslo\"}"},
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "rain"}]},
        ],
    });
    let (address, text) = (server.address, body.to_string());
    tokio::spawn(async move { super::client::post(address, RESPONSES, &text).await });
    let taken = double.take().await;
    let expected = "system:Be kind.\n\nBe brief.;user:hi;assistant:Hm.okweather{\"city\": \"Oslo\"};tool:rain;";
    assert_eq!(TEXT.decode(&taken.request().prompt).unwrap(), expected);
    assert!(taken.request().grammar.is_some() && taken.request().max_tokens == 7);
}

#[tokio::test]
async fn what_would_need_storage_is_refused() {
    let server = Server::with_template(TEMPLATE, text("x")).await;
    for (body, param) in [
        (json!({"input": "hi", "previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"input": "hi", "background": true}), "background"),
        (json!({}), "input"),
        (json!({"input": "hi", "guided_regex": "("}), "guided_regex"),
        (json!({"input": "hi", "logit_bias": {"9999": 1}}), "logit_bias"),
        (json!({"input": "hi", "top_logprobs": 2}), "top_logprobs"),
        (json!({"input": "hi", "max_tokens": 2}), "max_tokens"),
        (json!({"input": "hi", "response_format": {"type": "json_object"}}), "response_format"),
        (json!({"input": "hi", "include": ["message.output_text.logprobs"]}), "include"),
        (json!({"input": "hi", "truncation": "auto"}), "truncation"),
        (json!({"input": "hi", "text": {"verbosity": "low"}}), "verbosity"),
        (json!({"input": "hi", "text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"input": "hi", "text": {"format": {"type": "json_schema", "schema": 1}}}), "text.format.schema"),
        (
            json!({"input": "hi", "tools": tools(), "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]}}),
            "tool_choice",
        ),
        (json!({"input": [{"type": "computer_call"}]}), "input[0].type"),
    ] {
        let reply = server.post(RESPONSES, body).await;
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{reply:?}");
    }
}
