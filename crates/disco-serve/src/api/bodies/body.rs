//! Which fields a request has.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::shape::Shape;

/// A field that its handler obeys.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) is_required: bool,
    /// What it does, for the guide.
    pub(crate) does: &'static str,
}

/// Fields that would change the reply and are not supported.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The values that change nothing, as JSON with ` or ` between them: these are accepted.
    pub(crate) harmless: &'static str,
    /// Advice for the client, which completes the sentence of the error.
    pub(crate) instead: &'static str,
    pub(crate) names: &'static [&'static str],
}

/// Fields that some requests have in common.
#[derive(Debug)]
pub(crate) struct Part {
    /// Its heading in the guide.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test writes the guide"))]
    pub(crate) title: &'static str,
    pub(crate) obeyed: &'static [Field],
    /// Fields that change nothing in a reply of this server.
    pub(crate) without_effect: &'static [&'static str],
    pub(crate) refused: &'static [Refused],
}

/// The fields of a request: those of all its parts. If two parts have a field, the first one decides.
#[derive(Debug)]
pub(crate) struct Body {
    /// Its name in schemas.
    pub(crate) name: &'static str,
    pub(crate) parts: &'static [&'static Part],
}

/// What becomes of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    Obeyed(&'static Field),
    WithoutEffect,
    Refused(&'static Refused),
}

/// A field that is obeyed.
pub(super) const fn obeyed(name: &'static str, shape: Shape, does: &'static str) -> Field {
    Field { name, shape, is_required: false, does }
}

/// The same that each request needs.
pub(super) const fn required(name: &'static str, shape: Shape, does: &'static str) -> Field {
    Field { name, shape, is_required: true, does }
}

/// Fields that are refused, unless they have these values.
pub(super) const fn refused(harmless: &'static str, instead: &'static str, names: &'static [&'static str]) -> Refused {
    Refused { harmless, instead, names }
}

impl Refused {
    /// Whether a value changes nothing.
    pub(crate) fn is_harmless(&self, value: &Value) -> bool {
        let number = value.as_f64();
        self.values().any(|harmless| harmless == *value || (number.is_some() && number == harmless.as_f64()))
    }

    /// The values that change nothing.
    pub(crate) fn values(&self) -> impl Iterator<Item = Value> {
        self.harmless.split(" or ").filter_map(|value| serde_json::from_str(value).ok())
    }
}

impl Body {
    /// All fields in the order of the parts, each once, with what becomes of it.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (&'static str, Rule)> {
        let mut names = BTreeSet::new();
        self.parts.iter().flat_map(|part| part.rules()).filter(move |(name, _)| names.insert(*name))
    }

    /// What becomes of a field; `None` if it is not known.
    pub(crate) fn rule(&self, name: &str) -> Option<Rule> {
        let mut rules = self.parts.iter().flat_map(|part| part.rules());
        rules.find(|(known, _)| *known == name).map(|(_, rule)| rule)
    }

    /// The JSON Schema of the body. Fields that are `null` count as absent.
    pub(crate) fn schema(&self) -> Value {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for (name, rule) in self.rules() {
            let schema = match rule {
                Rule::Obeyed(field) => {
                    let mut schema = field.shape.schema();
                    if field.is_required {
                        required.push(name)
                    } else {
                        permit_null(&mut schema)
                    }
                    schema["description"] = field.does.into();
                    schema
                }
                Rule::WithoutEffect => json!({"description": "Has no effect."}),
                Rule::Refused(refused) => {
                    let values: Vec<_> = refused.values().chain([Value::Null]).collect();
                    json!({"enum": values, "description": format!("Is not supported{}.", refused.instead)})
                }
            };
            properties.insert(name.to_owned(), schema);
        }
        json!({"type": "object", "required": required, "properties": properties})
    }
}

impl Part {
    fn rules(&self) -> impl Iterator<Item = (&'static str, Rule)> {
        let obeyed = self.obeyed.iter().map(|field| (field.name, Rule::Obeyed(field)));
        let without_effect = self.without_effect.iter().map(|name| (*name, Rule::WithoutEffect));
        let refused = self.refused.iter();
        let refused = refused.flat_map(|each| each.names.iter().map(move |name| (*name, Rule::Refused(each))));
        obeyed.chain(without_effect).chain(refused)
    }
}

fn permit_null(schema: &mut Value) {
    if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        values.push(Value::Null);
    }
    if let Some(shapes) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        shapes.push(json!({"type": "null"}));
    }
    if let Some(kind) = schema.get_mut("type") {
        *kind = json!([kind.take(), "null"]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::*;

    #[test]
    fn a_part_has_each_field_once_and_harmless_values_are_json() {
        for body in all() {
            for part in body.parts {
                let names: Vec<_> = part.rules().map(|(name, _)| name).collect();
                assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{}", part.title);
                for refused in part.refused {
                    let count = refused.harmless.split(" or ").filter(|value| !value.is_empty()).count();
                    assert_eq!(refused.values().count(), count, "{}", refused.harmless);
                }
            }
        }
    }
}
