//! Keywords of schemas that forbid nothing here, and that the compiler does not know.

use serde_json::Value;

/// Keywords whose values are schemas by names.
const BY_NAMES: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// Keywords whose values are schemas, or lists of schemas.
const INNER: [&str; 7] = ["additionalItems", "additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems"];

/// Removes `propertyNames` of any texts, which libraries such as zod write for each record, and `uniqueItems` of `false`.
pub(super) fn remove(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    schema.retain(|keyword, value| match keyword.as_str() {
        "propertyNames" => !is_any_text(value),
        "uniqueItems" => *value != false,
        _ => true,
    });
    for (keyword, value) in schema {
        let keyword = keyword.as_str();
        match value {
            Value::Object(schemas) if BY_NAMES.contains(&keyword) => schemas.values_mut().for_each(remove),
            Value::Array(schemas) if INNER.contains(&keyword) => schemas.iter_mut().for_each(remove),
            schema if INNER.contains(&keyword) => remove(schema),
            _ => {}
        }
    }
}

/// Whether a schema permits all texts. Names of properties are texts.
fn is_any_text(schema: &Value) -> bool {
    match schema {
        Value::Object(schema) => schema.iter().all(|(keyword, value)| keyword == "type" && value == "string"),
        schema => *schema == true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_keywords_that_forbid_nothing_are_removed() {
        let names = json!({"pattern": "^a"});
        let mut schema = json!({
            "propertyNames": {"type": "string"}, "uniqueItems": true, "const": {"propertyNames": true},
            "properties": {"propertyNames": {"type": "string"}, "a": {"anyOf": [{"propertyNames": {}, "type": "object"}]}},
            "items": {"uniqueItems": false, "propertyNames": names}, "$defs": {"b": {"propertyNames": true}},
        });
        let expected = json!({
            "uniqueItems": true, "const": {"propertyNames": true},
            "properties": {"propertyNames": {"type": "string"}, "a": {"anyOf": [{"type": "object"}]}},
            "items": {"propertyNames": names}, "$defs": {"b": {}},
        });
        remove(&mut schema);
        assert_eq!(schema, expected);
    }
}
