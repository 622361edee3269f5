//! The fields that constrain a text: OpenAI's `response_format`, and those of vLLM and SGLang.

use serde_json::{Map, Value};

use super::{ApiError, Fields};
use crate::grammar::Grammar;

/// The most texts of a choice.
const MAX_CHOICES: usize = 1024;

/// A grammar that a client asks for, and the field that has it.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) param: String,
    pub(crate) grammar: Grammar,
}

/// Takes the fields that constrain a text.
///
/// # Errors
/// A field is malformed, or there are two.
pub(super) fn asked(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    let mut all = Vec::new();
    if let Some(format) = fields.object("response_format")? {
        all.extend(of_format(format)?);
    }
    if let Some(outputs) = fields.object("structured_outputs")? {
        let of = |name: &str| format!("structured_outputs.{name}");
        for (name, value) in outputs.into_iter().filter(|(_, value)| !value.is_null()) {
            all.push((of(&name), one(&name, value).ok_or_else(|| unsupported(&of(&name)))?));
        }
    }
    for (param, name) in [
        ("guided_json", "json"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
        ("json_schema", "json"),
        ("regex", "regex"),
    ] {
        let found = fields.take(param).and_then(|value| one(name, value));
        all.extend(found.map(|grammar| (param.to_owned(), grammar)));
    }
    let mut asked = None;
    for (param, grammar) in all {
        let grammar = grammar.map_err(|why| ApiError::param(&param, why))?;
        if let Some(Asked { param: other, .. }) = asked.replace(Asked { param: param.clone(), grammar }) {
            return Err(ApiError::param(param, format!("can't constrain the text beside `{other}`")));
        }
    }
    Ok(asked)
}

type Read = Result<Grammar, String>;

/// OpenAI's field; llama.cpp has a schema in it in another place.
fn of_format(mut format: Map<String, Value>) -> Result<Option<(String, Read)>, ApiError> {
    const NAME: &str = "response_format";
    let kind = format.remove("type");
    match kind.as_ref().and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(match format.remove("schema").filter(|schema| !schema.is_null()) {
            Some(schema) => (format!("{NAME}.schema"), Grammar::schema(schema)),
            None => (NAME.to_owned(), Ok(Grammar::any_object())),
        })),
        Some("json_schema") => {
            let schema = format.get_mut("json_schema").and_then(|it| it.as_object_mut()?.remove("schema"));
            let name = format!("{NAME}.json_schema.schema");
            match schema {
                Some(schema) => Ok(Some((name, Grammar::schema(schema)))),
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

/// A grammar by vLLM's name of its kind; `None` if it is not known, or a flag that is not set.
fn one(name: &str, value: Value) -> Option<Read> {
    Some(match (name, value) {
        ("json", Value::String(text)) => match serde_json::from_str(&text) {
            Ok(schema) => Grammar::schema(schema),
            Err(error) => Err(format!("is no JSON: {error}")),
        },
        ("json", schema) => Grammar::schema(schema),
        ("json_object", Value::Bool(true)) => Ok(Grammar::any_object()),
        ("regex", Value::String(regex)) => Ok(Grammar::Regex(regex)),
        ("grammar", Value::String(grammar)) => lark(grammar),
        ("regex" | "grammar", _) => Err("must be a string".to_owned()),
        ("choice", Value::Array(texts)) if (1..=MAX_CHOICES).contains(&texts.len()) => {
            let texts = texts.into_iter().map(|text| match text {
                Value::String(text) if !text.is_empty() => Ok(text),
                _ => Err("must have strings, none of them empty".to_owned()),
            });
            texts.collect::<Result<Vec<_>, _>>().map(|texts| Grammar::choice(&texts))
        }
        ("choice", _) => Err(format!("must be a list of 1 to {MAX_CHOICES} strings")),
        _ => return None,
    })
}

fn lark(grammar: String) -> Read {
    if grammar.contains("::=") {
        return Err("is GBNF; the server takes grammars in Lark's notation".to_owned());
    }
    Ok(Grammar::Lark(grammar))
}

fn unsupported(param: &str) -> ApiError {
    ApiError::param(param, "is not supported by this server")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<Option<Asked>, String> {
        asked(&mut Fields::parse(body.to_string().as_bytes()).unwrap()).map_err(|error| error.to_string())
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
        assert!(read(json!({"response_format": {"type": "text"}})).unwrap().is_none());
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
            (json!({"guided_json": [1]}), "`guided_json` must be an object"),
            (json!({"guided_json": deep}), "`guided_json` has more than 64 levels"),
            (json!({"guided_choice": []}), "`guided_choice` must be a list of 1 to 1024 strings"),
            (json!({"guided_choice": ["a", ""]}), "`guided_choice` must have strings, none of them empty"),
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
