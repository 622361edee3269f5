//! A grammar that a client sends: refused, or followed for some tokens. None makes a panic.

#![no_main]

use std::convert::Infallible;

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), Infallible> {
    disco_serve::fuzzing::grammar(bytes);
    Ok(())
}

fn seeds() -> Vec<Vec<u8>> {
    let grammars = [
        r##"{"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}, "c": {"enum": [1, "x", null]}}, "required": ["a"],
            "additionalProperties": false, "$defs": {"b": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 1}]}}}"##,
        r#"{"type": "array", "items": {"type": "string", "pattern": "^[a-c]+$", "format": "date"}, "minItems": 1, "maxItems": 3}"#,
        r#"(a|bc){2,3}[^d-f]*\d?"#,
        "start: a b? \"c\"\na[lazy]: /(?s:.*)/ \"x\"\nb: %json {\"type\": \"boolean\"}\n",
    ];
    grammars.map(|grammar| grammar.as_bytes().to_vec()).into()
}
