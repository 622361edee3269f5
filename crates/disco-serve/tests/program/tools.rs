//! Calls of tools by a model with random weights, which the grammar of each form holds to the schemas.

use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};

use super::server::{Server, model};

/// What a template shows of each form of calls.
const FORMS: [(&str, &str); 11] = [
    ("hermes", "<tool_call>"),
    ("elements", "<tool_call><function=example>"),
    ("llama", "<|start_header_id|>{\"name\": function name, \"parameters\": {}}"),
    ("mistral-list", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS][ARGS]"),
    ("granite", "<|tool_call|>"),
    ("functools", "functools"),
    ("deepseek", "<｜tool▁call▁begin｜>```json"),
    ("deepseek-plain", "<｜tool▁call▁begin｜>"),
    ("gemma", "<|tool_call>"),
    ("harmony", "<|channel|>"),
];

/// A tiny model whose chat template knows tools and shows a form of calls.
pub(crate) fn with_form(folder: &Path, form: &str) {
    fs::copy(model("llama-3").join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        // The end of texts is no mark of gpt-oss.
        let text = fs::read_to_string(model("llama-3").join(file)).unwrap().replace("<|end|>", "<|eot|>");
        fs::write(folder.join(file), text).unwrap();
    }
    let config = fs::read(model("llama-3").join("config.json")).unwrap();
    let mut config: Json = serde_json::from_slice(&config).unwrap();
    config["max_position_embeddings"] = 1024.into();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let template = format!(
        "{{{{# {form} #}}{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}{{% for call in m.tool_calls or [] %}}\
         {{{{ call.function | tojson }}}}{{% endfor %}}\n{{% endfor %}}{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}"
    );
    fs::write(folder.join("chat_template.jinja"), template.replacen("{{#", "{#", 1)).unwrap();
}

fn tools() -> Json {
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["C", "F"]},
    }, "required": ["city", "days", "unit"], "additionalProperties": false});
    let function = |name: &str, parameters: Json| json!({"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}});
    json!([
        function("weather", weather),
        function("now", json!({"type": "object", "properties": {}, "additionalProperties": false}))
    ])
}

fn check(call: &Json) {
    let arguments: Json = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    match call["function"]["name"].as_str().unwrap() {
        "weather" => {
            assert!(arguments["city"].as_str().is_some_and(|city| city.chars().count() <= 8), "{call}");
            assert!(arguments["days"].as_i64().is_some_and(|days| (1..=7).contains(&days)), "{call}");
            assert!(["C", "F"].map(Json::from).contains(&arguments["unit"]), "{call}");
        }
        name => assert_eq!((name, arguments), ("now", json!({})), "{call}"),
    }
}

/// The calls of a stream, put together as clients do it.
fn streamed(body: &str) -> (Vec<Json>, String) {
    let (mut calls, mut finish) = (Vec::<Json>::new(), String::new());
    for data in body.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let chunk: Json = serde_json::from_str(&format!("{{{data}")).unwrap();
        for choice in chunk["choices"].as_array().unwrap() {
            finish.extend(choice["finish_reason"].as_str());
            for delta in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                let arguments = delta["function"]["arguments"].as_str().unwrap();
                let is_new = delta["index"] == calls.len();
                match calls.last_mut().filter(|_| !is_new) {
                    Some(call) => {
                        let all = call["function"]["arguments"].as_str().unwrap().to_owned() + arguments;
                        call["function"]["arguments"] = all.into();
                    }
                    None => calls.push(delta.clone()),
                }
            }
        }
    }
    (calls, finish)
}

#[test]
fn calls_that_are_demanded_follow_their_schemas_in_each_form() {
    for (name, form) in FORMS {
        let folder = tempfile::tempdir().unwrap();
        with_form(folder.path(), form);
        let server = Server::start(folder.path(), &[]);
        let ask = |more: Json| {
            let mut body = json!({
                "messages": [{"role": "user", "content": "Is it raining?"}], "tools": tools(), "max_tokens": 250,
                "temperature": 1.5, "parallel_tool_calls": false, "seed": 1,
            });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            server.post("/v1/chat/completions", &body)
        };
        let mut complete = 0;
        for seed in 0..6 {
            let answer = ask(json!({"tool_choice": "required", "seed": seed}));
            assert_eq!(answer.status, 200, "{name}: {answer:?}");
            let choice = &answer.json()["choices"][0];
            if choice["finish_reason"] == "length" {
                continue;
            }
            complete += 1;
            let calls = choice["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{name}: {answer:?}"));
            assert_eq!((calls.len(), &choice["message"]["content"]), (1, &Json::Null), "{name}: {answer:?}");
            check(&calls[0]);
            assert_eq!(choice["finish_reason"], "tool_calls");
            let (found, finish) = streamed(&ask(json!({"tool_choice": "required", "seed": seed, "stream": true})).body);
            assert_eq!((&found[0]["function"], finish.as_str()), (&calls[0]["function"], "tool_calls"), "{name}");
        }
        // What the model thinks before in a channel is often too long.
        let least = if name == "harmony" { 1 } else { 3 };
        assert!(complete >= least, "{name}: {complete} of 6 texts are complete");
        let named = json!({"tool_choice": {"type": "function", "function": {"name": "now"}}});
        let choice = &ask(named).json()["choices"][0];
        if choice["finish_reason"] != "length" {
            let function = &choice["message"]["tool_calls"][0]["function"];
            assert_eq!(*function, json!({"name": "now", "arguments": "{}"}), "{name}");
            assert_eq!(choice["finish_reason"], "stop", "{name}");
        }
        // Of one's own accord, at most one call, and nothing that is none. A schema of the answer is for texts without calls.
        let seven = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 7}}});
        for more in
            [json!({"max_tokens": 60}), json!({"response_format": seven}), json!({"response_format": seven, "seed": 1})]
        {
            let choice = &ask(more.clone()).json()["choices"][0];
            let message = &choice["message"];
            if choice["finish_reason"] != "tool_calls" && !message["tool_calls"].is_null() {
                // The last call is cut.
                continue;
            }
            message["tool_calls"].as_array().into_iter().flatten().for_each(|call| {
                let arguments = call["function"]["arguments"].as_str().unwrap();
                // Numbers can be of any size.
                let parsed = serde_json::from_str::<serde::de::IgnoredAny>(arguments);
                assert!(parsed.is_ok(), "{name}, {more}: {choice}");
            });
            if choice["finish_reason"] == "stop" && !more["response_format"].is_null() {
                assert_eq!(message["content"].as_str().unwrap().trim(), "7", "{name}: {choice}");
            }
        }
    }
}
