//! The description of the server for programs that make clients, in the form of OpenAPI 3.1.

use serde_json::{Map, Value, json};

use super::route::{Route, is_of_anthropic, is_open};

/// The document about these routes, for a server with or without a token. Requests have exact schemas, and replies only media
/// types.
pub(super) fn document(routes: &[Route], has_token: bool) -> Value {
    let mut schemas =
        Map::from_iter([("Error".to_owned(), error()), ("AnthropicError".to_owned(), error_of_anthropic())]);
    let mut paths = Map::new();
    for route in routes {
        schemas.extend(route.bodies.iter().map(|body| (body.name.to_owned(), body.schema())));
        paths
            .insert(route.path.replace("{*", "{"), json!({route.method().to_lowercase(): operation(route, has_token)}));
    }
    let mut components = json!({"schemas": schemas});
    if has_token {
        components["securitySchemes"] = json!({
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        });
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "disco-serve",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Fields that a schema does not have are ignored. A field that is null counts as absent.",
        },
        "paths": paths,
        "components": components,
    })
}

fn operation(route: &Route, has_token: bool) -> Value {
    let contents = |types: &[&str], schema: Value| {
        let contents = types.iter().map(|kind| ((*kind).to_owned(), json!({"schema": schema})));
        Value::Object(contents.collect())
    };
    let named = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let error = named(if is_of_anthropic(route.path) { "AnthropicError" } else { "Error" });
    let id: String = route.path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let mut operation = json!({
        "operationId": id.trim_matches('_'),
        "summary": route.does,
        "responses": {
            "200": {"description": "The reply", "content": contents(route.replies, json!({}))},
            "default": {"description": "An error", "content": contents(&["application/json"], error)},
        },
    });
    let forms: Vec<_> = route.bodies.iter().map(|body| named(body.name)).collect();
    let schema = match &forms[..] {
        [] => None,
        [only] => Some(only.clone()),
        all => Some(json!({"anyOf": all})),
    };
    if let Some(schema) = schema {
        operation["requestBody"] = json!({"required": true, "content": contents(&["application/json"], schema)});
    }
    if let Some((_, name)) = route.path.split_once("{*") {
        let name = name.trim_end_matches('}');
        operation["parameters"] = json!([{"name": name, "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    if has_token && !is_open(route.path) {
        operation["security"] = json!([{"bearer": []}, {"key": []}]);
    }
    operation
}

fn error() -> Value {
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {"error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": text, "type": text, "param": {"type": ["string", "null"]}, "code": text},
        }},
    })
}

fn error_of_anthropic() -> Value {
    let text = json!({"type": "string"});
    let error =
        json!({"type": "object", "required": ["message", "type"], "properties": {"message": text, "type": text}});
    json!({
        "type": "object",
        "required": ["type", "error"],
        "properties": {"type": {"const": "error"}, "error": error},
    })
}
