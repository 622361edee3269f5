//! Each route and each field of `/openapi.json`, sent to the server.

use std::collections::BTreeMap;

use disco_serve::http::BearerToken;
use serde_json::{Value, json};

use super::client::{Response, exchange, get};
use super::double::text;
use super::server::Server;

/// Values of all types of JSON, some of which each schema excludes.
fn values() -> Vec<Value> {
    let list = json!([true, "\u{1}", -1e17, 0.5, 1e17, -2, [], [true], [[]], {"x": 1}]);
    list.as_array().unwrap().clone()
}

/// Whether a schema of the document permits a value.
fn permits(schema: &Value, value: &Value) -> bool {
    let integer = || value.as_f64().is_some_and(|number| number.fract() == 0.0);
    let is_of = |kind: &Value| match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => integer(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    };
    let bound = |name: &str, size: f64| {
        schema[name].as_f64().is_none_or(|bound| if name.starts_with("min") { size >= bound } else { size <= bound })
    };
    let sized = |least, most, size: f64| bound(least, size) && bound(most, size);
    let is_within = match value {
        Value::Number(number) => sized("minimum", "maximum", number.as_f64().unwrap()),
        Value::String(text) => sized("minLength", "maxLength", text.len() as f64),
        Value::Object(fields) if schema.get("propertyNames").is_some() => {
            // The only pattern.
            assert_eq!(schema["propertyNames"]["pattern"], "^[0-9]+$");
            sized("minProperties", "maxProperties", fields.len() as f64)
                && fields.keys().all(|name| name.parse::<u32>().is_ok())
                && fields.values().all(|value| permits(&schema["additionalProperties"], value))
        }
        Value::Array(values) => {
            let items = schema.get("items");
            sized("minItems", "maxItems", values.len() as f64)
                && values.iter().all(|value| items.is_none_or(|items| permits(items, value)))
        }
        _ => true,
    };
    let equals = |other: &Value| other == value || (value.is_number() && other.as_f64() == value.as_f64());
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.clone(),
        Value::Null => Vec::new(),
        kind => vec![kind.clone()],
    };
    is_within
        && (kinds.is_empty() || kinds.iter().any(is_of))
        && schema["enum"].as_array().is_none_or(|values| values.iter().any(equals))
        && schema.get("const").is_none_or(equals)
        && schema["anyOf"].as_array().is_none_or(|schemas| schemas.iter().any(|schema| permits(schema, value)))
}

/// Values of a schema: bounds of numbers, and all words.
fn examples(schema: &Value) -> Vec<Value> {
    if let Some(words) = schema["enum"].as_array() {
        return words.clone();
    }
    if let Some(schemas) = schema["anyOf"].as_array() {
        return schemas.iter().flat_map(examples).collect();
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str()).unwrap_or_default();
    let bounds = [&schema["minimum"], &schema["maximum"]].into_iter().filter(|bound| !bound.is_null()).cloned();
    match kind {
        "boolean" => vec![json!(true), json!(false)],
        "string" => vec![json!("x")],
        "number" => bounds.collect(),
        "integer" => bounds.chain([json!(1)]).collect(),
        "object" => vec![json!({})],
        "array" => {
            let each = &examples(&schema["items"])[0];
            vec![json!([each])]
        }
        _ => vec![schema.get("const").cloned().unwrap_or_default()],
    }
}

/// Values that mean more than their schemas say: those to try, instead of the examples of the schema.
fn own_examples(path: &str, field: &str) -> Option<Vec<Value>> {
    let values = match field {
        "model" => json!(["tiny"]),
        "messages" => json!([[{"role": "user", "content": "x"}]]),
        "system" => json!(["x", [{"type": "text", "text": "x"}]]),
        "input" if path == "/v1/responses" => json!(["x", [{"role": "user", "content": "x"}]]),
        "tools" => json!([[]]),
        "tool_choice" if path.starts_with("/v1/messages") => json!([{"type": "auto"}]),
        "tool_choice" => json!(["auto", "none"]),
        "include" => json!([["reasoning.encrypted_content"]]),
        "response_format" => json!([{"type": "text"}, {"type": "json_object"}]),
        "output_format" => json!([{"type": "json_schema", "schema": {}}]),
        "guided_json" | "json_schema" => json!([{}, "{}", true]),
        "guided_grammar" => json!(["start: \"a\""]),
        "min_tokens" => json!([0, 9]),
        "documents" | "text_1" | "text_2" => json!(["x", {"text": "x"}, ["x"], [{"text": "x"}]]),
        // Fewer do not leave a text.
        "truncate_prompt_tokens" => json!([-1, 9]),
        "logit_bias" => json!([{}, {"1": -100, "2": 0.5}]),
        "dimensions" => json!([1, 2]),
        _ => return None,
    };
    Some(values.as_array().unwrap().clone())
}

/// Values that are to be accepted.
fn accepted(path: &str, field: &str, schema: &Value) -> Vec<Value> {
    match (schema.get("type").or(schema.get("anyOf")), schema.get("enum")) {
        // What is not supported has the values of its schema, and what has no effect any.
        (None, Some(_)) => examples(schema),
        (None, None) => values(),
        _ => own_examples(path, field).unwrap_or_else(|| examples(schema)),
    }
}

/// Other fields that a field needs.
fn beside(path: &str, field: &str) -> Value {
    match field {
        "stream_options" if path != "/v1/responses" => json!({"stream": true}),
        "top_logprobs" if path == "/v1/chat/completions" => json!({"logprobs": true}),
        "continue_final_message" => {
            let name = if path == "/v1/responses" { "input" } else { "messages" };
            json!({name: [{"role": "assistant", "content": "x"}]})
        }
        _ => json!({}),
    }
}

/// The least that a request of a schema needs.
fn least(path: &str, schema: &Value) -> Value {
    let required = schema["required"].as_array().unwrap();
    let fields = required.iter().map(|name| {
        let name = name.as_str().unwrap();
        (name.to_owned(), accepted(path, name, &schema["properties"][name])[0].clone())
    });
    Value::Object(fields.collect())
}

async fn ask(server: &Server, path: &str, least: &Value, field: &str, value: &Value) -> Response {
    let mut body = least.clone();
    body.as_object_mut().unwrap().extend(beside(path, field).as_object().unwrap().clone());
    body[field] = value.clone();
    server.post(path, body).await
}

/// The name of the field in an error, without a part of it.
fn field_of(path: &str, reply: &Response) -> String {
    let error = &reply.json()["error"];
    if path.starts_with("/v1/messages") {
        let message = error["message"].as_str().unwrap();
        return message.split(['`', '.', '[']).nth(1).unwrap_or_default().to_owned();
    }
    error["param"].as_str().unwrap_or_default().split(['.', '[']).next().unwrap().to_owned()
}

/// Sends each field of these routes. Returns how many fields there were of each path.
async fn send_all(server: &Server, paths: &[&str]) -> BTreeMap<String, usize> {
    let document = get(server.address, "/openapi.json").await.json();
    let mut counts = BTreeMap::new();
    for path in paths {
        let schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let forms = schema["anyOf"].as_array().cloned().unwrap_or_else(|| vec![schema.clone()]);
        for form in forms {
            let name = form["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
            let schema = &document["components"]["schemas"][name];
            let least = least(path, schema);
            let fields = schema["properties"].as_object().unwrap();
            *counts.entry((*path).to_owned()).or_default() += fields.len();
            for (field, schema) in fields {
                for value in accepted(path, field, schema) {
                    assert!(permits(schema, &value), "{path}: {field}: {value} is not in {schema}");
                    let reply = ask(server, path, &least, field, &value).await;
                    assert_eq!(reply.status, 200, "{path}: {field}: {value}: {reply:?}");
                }
                for value in values().iter().filter(|value| !permits(schema, value)) {
                    let reply = ask(server, path, &least, field, value).await;
                    let refused = (reply.status, field_of(path, &reply));
                    assert_eq!(refused, (400, field.clone()), "{path}: {field}: {value}: {reply:?}");
                }
            }
        }
    }
    counts
}

#[tokio::test]
async fn each_field_of_texts_is_obeyed_refused_or_without_effect_as_its_schema_says() {
    let template = "{{ reasoning_effort }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let server = Server::with_template(template, text("x")).await;
    let paths = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/tokenize",
        "/detokenize",
    ];
    let counts = send_all(&server, &paths).await;
    assert!(counts["/v1/chat/completions"] > 100 && counts["/v1/responses"] > counts["/v1/chat/completions"]);
}

#[tokio::test]
async fn each_field_of_vectors_is_obeyed_refused_or_without_effect_as_its_schema_says() {
    for (name, paths) in [
        ("bert-mean", &["/v1/embeddings"][..]),
        ("xlm-roberta-reranker", &["/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score"]),
    ] {
        let server = Server::encoding(name, |_| ()).await;
        let counts = send_all(&server, paths).await;
        assert_eq!(counts.len(), paths.len());
    }
}

#[tokio::test]
async fn each_route_of_the_document_is_there_and_has_its_method_only() {
    let (server, _engine) = Server::answering(|_| text("x")).await;
    let document = get(server.address, "/openapi.json").await.json();
    assert_eq!(document["components"].get("securitySchemes"), None);
    let paths = document["paths"].as_object().unwrap();
    for (path, operations) in paths {
        let path = path.replace("{model}", "tiny");
        let methods: Vec<_> = operations.as_object().unwrap().keys().collect();
        for method in ["get", "post"] {
            let reply = match method {
                "get" => get(server.address, &path).await,
                _ => server.post(&path, json!({})).await,
            };
            let is_known = methods.iter().any(|known| *known == method);
            assert_eq!(reply.status == 405, !is_known, "{method} {path}: {reply:?}");
            assert_ne!(reply.status, 404, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_document_needs_the_token_and_says_which_routes_do() {
    let (server, _double) = Server::start_with(|app| app.token = Some(BearerToken::new("secret").unwrap())).await;
    assert_eq!(get(server.address, "/openapi.json").await.status, 401);
    let request = "GET /openapi.json HTTP/1.1\r\nhost: x\r\nx-api-key: secret\r\n\r\n";
    let document = exchange(server.address, request.as_bytes()).await.json();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let operation = operations.as_object().unwrap().values().next().unwrap();
        let is_open = operation.get("security").is_none();
        // Of a POST, only the refusal of the method would come behind the token.
        let status = get(server.address, &path.replace("{model}", "tiny")).await.status;
        assert_eq!(status != 401, is_open, "{path}");
    }
}
