//! The fields that constrain a text: OpenAI's `response_format`, and those of vLLM and SGLang.

use serde_json::{Map, Value};

use super::bodies::{CHOICE, JSON_SCHEMA, STRING, Shape};
use super::{ApiError, Fields};
use crate::grammar::Grammar;

/// A grammar that a client asks for, and the field that has it.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) param: String,
    pub(crate) grammar: Grammar,
}

/// The fields of vLLM and SGLang, and the kind of grammar that each one has.
const FIELDS: [(&str, &str); 6] = [
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("json_schema", "json"),
    ("regex", "regex"),
];

/// Takes the fields that constrain a text.
///
/// # Errors
/// A field is malformed, or there are two.
pub(super) fn asked(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    let mut all = Vec::new();
    if let Some(format) = fields.object("response_format")? {
        all.extend(of_format(format)?);
    }
    let outputs = fields.object("structured_outputs")?.unwrap_or_default();
    for (kind, value) in outputs.into_iter().filter(|(_, value)| !value.is_null()) {
        all.extend(one(format!("structured_outputs.{kind}"), &kind, value)?);
    }
    for (param, kind) in FIELDS {
        if let Some(value) = fields.value(param)? {
            all.extend(one(param.to_owned(), kind, value)?);
        }
    }
    let mut all = all.into_iter();
    match (all.next(), all.next()) {
        (Some(Asked { param: other, .. }), Some(Asked { param, .. })) => {
            Err(ApiError::param(param, format!("can't constrain the text beside `{other}`")))
        }
        (only, _) => Ok(only),
    }
}

/// OpenAI's field; llama.cpp has a schema in it in another place.
fn of_format(mut format: Map<String, Value>) -> Result<Option<Asked>, ApiError> {
    const NAME: &str = "response_format";
    let kind = format.remove("type");
    match kind.as_ref().and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => match format.remove("schema").filter(|schema| !schema.is_null()) {
            Some(schema) => of_param(format!("{NAME}.schema"), Grammar::schema(schema)),
            None => of_param(NAME.to_owned(), Ok(Grammar::any_object())),
        },
        Some("json_schema") => {
            let schema = format.get_mut("json_schema").and_then(|it| it.as_object_mut()?.remove("schema"));
            let name = format!("{NAME}.json_schema.schema");
            match schema {
                Some(schema) => of_param(name, Grammar::schema(schema)),
                None => Err(ApiError::param(name, "is missing")),
            }
        }
        Some(other) => {
            let why = format!("is {other:?}; it can be \"text\", \"json_object\" or \"json_schema\"");
            Err(ApiError::param(format!("{NAME}.type"), why))
        }
        None => Err(ApiError::param(format!("{NAME}.type"), "must be a string")),
    }
}

/// A grammar by vLLM's name of its kind; `None` for a flag that is not set.
fn one(param: String, kind: &str, value: Value) -> Result<Option<Asked>, ApiError> {
    let shape = match kind {
        "json" => JSON_SCHEMA,
        "json_object" => Shape::Bool,
        "regex" | "grammar" => STRING,
        "choice" => CHOICE,
        _ => return Err(ApiError::param(param, "is not supported by this server")),
    };
    if let Some((part, why)) = shape.fault(&value) {
        return Err(ApiError::param(param + &part, why));
    }
    let grammar = match (kind, value) {
        ("json_object", Value::Bool(true)) => Ok(Grammar::any_object()),
        ("json", Value::String(text)) => match serde_json::from_str(&text) {
            Ok(schema) => Grammar::schema(schema),
            Err(error) => Err(format!("is no JSON: {error}")),
        },
        ("json", schema) => Grammar::schema(schema),
        ("regex", Value::String(regex)) => Ok(Grammar::Regex(regex)),
        ("grammar", Value::String(grammar)) if grammar.contains("::=") => {
            Err("is GBNF; the server takes grammars in Lark's notation".to_owned())
        }
        ("grammar", Value::String(grammar)) => Ok(Grammar::Lark(grammar)),
        ("choice", Value::Array(texts)) => {
            let texts: Vec<_> = texts.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            Ok(Grammar::choice(&texts))
        }
        _ => return Ok(None),
    };
    of_param(param, grammar)
}

fn of_param(param: String, grammar: Result<Grammar, String>) -> Result<Option<Asked>, ApiError> {
    match grammar {
        Ok(grammar) => Ok(Some(Asked { param, grammar })),
        Err(why) => Err(ApiError::param(param, why)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{COMPLETION, Object};
    use super::*;

    fn read(mut body: Value) -> Result<Option<Asked>, String> {
        body["prompt"] = "x".into();
        let object = Object::parse(body.to_string().as_bytes()).unwrap();
        asked(&mut object.fields(&COMPLETION).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn all_servers_names_of_a_schema_are_the_same_grammar() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let expected = Grammar::schema(schema.clone()).unwrap();
        for body in [
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}}}),
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            json!({"structured_outputs": {"json": schema, "regex": null}}),
            json!({"guided_json": schema}),
            json!({"guided_json": schema.to_string()}),
            json!({"json_schema": schema.to_string()}),
        ] {
            assert_eq!(read(body.clone()).unwrap().unwrap().grammar, expected, "{body}");
        }
        for none in
            [json!({"response_format": {"type": "text"}}), json!({"structured_outputs": {"json_object": false}})]
        {
            assert!(read(none).unwrap().is_none());
        }
    }

    #[test]
    fn options_of_the_compiler_are_not_the_clients() {
        let grammar = |schema| Grammar::schema(schema).unwrap();
        assert_eq!(grammar(json!({"x-guidance": {"lenient": true}})), grammar(json!({})));
        assert_eq!(grammar(json!(true)), grammar(json!({})));
    }

    #[test]
    fn what_is_no_grammar_is_refused_by_name() {
        let deep = (0..70).fold(json!({}), |inner, _| json!({"items": inner}));
        for (body, expected) in [
            (
                json!({"response_format": {"type": "xml"}}),
                "`response_format.type` is \"xml\"; it can be \"text\", \"json_object\" or \"json_schema\"",
            ),
            (json!({"response_format": {"type": "json_schema"}}), "`response_format.json_schema.schema` is missing"),
            (json!({"guided_json": "{"}), "`guided_json` is no JSON: EOF while parsing an object at line 1 column 1"),
            (json!({"guided_json": [1]}), "`guided_json` must be an object, a string or a boolean"),
            (json!({"guided_json": deep}), "`guided_json` has more than 64 levels"),
            (json!({"guided_choice": []}), "`guided_choice` needs at least 1 string (not empty)"),
            (json!({"guided_choice": ["a", ""]}), "`guided_choice[1]` can't be an empty string"),
            (json!({"regex": 1}), "`regex` must be a string"),
            (
                json!({"guided_grammar": "root ::= \"a\""}),
                "`guided_grammar` is GBNF; the server takes grammars in Lark's notation",
            ),
            (
                json!({"structured_outputs": {"structural_tag": "x"}}),
                "`structured_outputs.structural_tag` is not supported by this server",
            ),
            (json!({"regex": "a", "guided_choice": ["b"]}), "`regex` can't constrain the text beside `guided_choice`"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err(), expected, "{body}");
        }
    }
}
