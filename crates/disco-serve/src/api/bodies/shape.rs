//! What values a field can have: one description for handlers, for the guide and for JSON Schema.

use serde_json::{Value, json};

/// The values of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    Bool,
    /// A text of so many bytes.
    Text {
        least: usize,
        most: usize,
    },
    /// One of these texts.
    Word(&'static [&'static str]),
    Number {
        least: f64,
        most: f64,
    },
    /// An integer, which some clients write as `1.0`.
    Integer {
        least: i64,
        most: i64,
    },
    /// An integer that is at least `least`; -1, which is no limit for some clients, counts as absent.
    Limit {
        least: i64,
    },
    /// A token of some vocabulary. The handler, which knows the vocabulary, checks it again.
    Token,
    Object,
    /// An object with so many tokens at most, each with such a value.
    OfTokens {
        most: usize,
        of: &'static Self,
    },
    List {
        least: usize,
        most: usize,
        of: &'static Self,
    },
    /// Any of these.
    Either(&'static [Self]),
}

/// Why a value has not the shape.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    part: String,
    why: String,
}

/// Any text.
pub(super) const TEXT: Shape = Shape::Text { least: 0, most: usize::MAX };

/// A list of these without a bound.
pub(super) const fn list(of: &'static Shape) -> Shape {
    Shape::List { least: 0, most: usize::MAX, of }
}

/// An integer that is at least `least`.
pub(super) const fn count(least: i64) -> Shape {
    Shape::Integer { least, most: i64::MAX }
}

/// An integer, which some clients write as `1.0`.
pub(in crate::api) fn integer(value: &Value) -> Option<i64> {
    let whole = || value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 2f64.powi(53));
    value.as_i64().or_else(|| whole().map(|number| number as i64))
}

impl Shape {
    /// Why a value can't be that of a field: the part of the value, as it follows the field's name, and what is wrong with it.
    pub(in crate::api) fn fault(&self, value: &Value) -> Option<(String, String)> {
        self.check(value).err().map(|Fault { part, why }| (part, why))
    }

    /// # Errors
    /// The value has another shape.
    fn check(&self, value: &Value) -> Result<(), Fault> {
        let fault = |why: String| Err(Fault { part: String::new(), why });
        match *self {
            _ if !self.is_kind_of(value) => fault(format!("must be {}", self.kinds())),
            Self::Bool | Self::Object | Self::Token => Ok(()),
            Self::Text { least, most } => match value.as_str().map_or(0, str::len) {
                0 if least > 0 => fault("can't be an empty string".to_owned()),
                length if length > most => fault(format!("can be a string of at most {most} bytes")),
                _ => Ok(()),
            },
            Self::Word(words) => match value.as_str() {
                Some(word) if words.contains(&word) => Ok(()),
                _ => fault(format!("must be {}", self.words())),
            },
            Self::Number { least, most } => match value.as_f64() {
                Some(number) if !(least..=most).contains(&number) => {
                    fault(format!("must be between {least} and {most}, not {number}"))
                }
                _ => Ok(()),
            },
            Self::Integer { least, most } => match integer(value) {
                Some(number) if number < least && most == i64::MAX => {
                    fault(format!("must be at least {least}, not {number}"))
                }
                Some(number) if !(least..=most).contains(&number) => {
                    fault(format!("must be between {least} and {most}, not {number}"))
                }
                _ => Ok(()),
            },
            Self::Limit { least } => match integer(value) {
                Some(number) if number < least && number != -1 => {
                    fault(format!("must be at least {least}, not {number}"))
                }
                _ => Ok(()),
            },
            Self::OfTokens { most, of } => {
                let entries = value.as_object().into_iter().flatten();
                let count = entries.clone().count();
                if count > most {
                    return fault(format!("can have at most {most} entries, not {count}"));
                }
                for (key, value) in entries {
                    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_digit()) {
                        return fault(format!("has {key:?} for a token"));
                    }
                    of.check(value).map_err(|Fault { part, why }| Fault { part: format!(".{key}{part}"), why })?;
                }
                Ok(())
            }
            Self::List { least, most, of } => {
                let values = value.as_array().map(Vec::as_slice).unwrap_or_default();
                if values.len() < least {
                    return fault(format!("needs at least {least} {}", of.plural(least)));
                }
                if values.len() > most {
                    return fault(format!("can have at most {most} entries, not {}", values.len()));
                }
                values.iter().enumerate().try_for_each(|(index, value)| {
                    of.check(value).map_err(|Fault { part, why }| Fault { part: format!("[{index}]{part}"), why })
                })
            }
            Self::Either(shapes) => {
                let of_kind = shapes.iter().filter(|shape| shape.is_kind_of(value));
                let mut faults = of_kind.map(|shape| shape.check(value)).collect::<Vec<_>>();
                match faults.pop() {
                    Some(Err(only)) if faults.is_empty() => Err(only),
                    Some(last) if last.is_err() && faults.iter().all(Result::is_err) => {
                        fault(format!("must be {}", self.words()))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// Whether a value has this type of JSON.
    fn is_kind_of(&self, value: &Value) -> bool {
        match self {
            Self::Token => integer(value).is_some_and(|token| u32::try_from(token).is_ok()),
            Self::Bool => value.is_boolean(),
            Self::Text { .. } | Self::Word(_) => value.is_string(),
            Self::Number { .. } => value.is_number(),
            Self::Integer { .. } | Self::Limit { .. } => integer(value).is_some(),
            Self::Object | Self::OfTokens { .. } => value.is_object(),
            Self::List { .. } => value.is_array(),
            Self::Either(shapes) => shapes.iter().any(|shape| shape.is_kind_of(value)),
        }
    }

    /// The type of JSON in words, for a value of another type.
    fn kinds(&self) -> String {
        match self {
            Self::Bool => "a boolean".to_owned(),
            Self::Text { .. } => "a string".to_owned(),
            Self::Number { .. } => "a number".to_owned(),
            Self::Integer { .. } | Self::Limit { .. } => "an integer".to_owned(),
            Self::OfTokens { .. } => Self::Object.words(),
            Self::List { most: usize::MAX, .. } => self.words(),
            Self::List { .. } => "a list".to_owned(),
            _ => self.words(),
        }
    }

    /// The values in words, which follow "must be".
    pub(crate) fn words(&self) -> String {
        match *self {
            Self::Bool => "a boolean".to_owned(),
            Self::Text { least: 0, most: usize::MAX } => "a string".to_owned(),
            Self::Text { most: usize::MAX, .. } => "a string that is not empty".to_owned(),
            Self::Text { least, most } => format!("a string of {least} to {most} bytes"),
            Self::Word(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("one of {}", words.join(", "))
            }
            Self::Number { least, most } => format!("a number from {least} to {most}"),
            Self::Integer { least: i64::MIN, most: i64::MAX } => "an integer of 64 bits".to_owned(),
            Self::Integer { least, most: i64::MAX } => format!("an integer of at least {least}"),
            Self::Integer { least, most } => format!("an integer from {least} to {most}"),
            Self::Limit { least } => format!("an integer of at least {least}, or -1"),
            Self::Token => "a token".to_owned(),
            Self::Object => "an object".to_owned(),
            Self::OfTokens { most, of } => format!("an object: for each of at most {most} tokens {}", of.words()),
            Self::List { least: 0, most: usize::MAX, of } => format!("a list of {}", of.plural(2)),
            Self::List { least, most: usize::MAX, of } => format!("a list of at least {least} {}", of.plural(least)),
            Self::List { least: 0, most, of } => format!("a list of at most {most} {}", of.plural(most)),
            Self::List { least, most, of } => format!("a list of {least} to {most} {}", of.plural(most)),
            Self::Either(shapes) => joined(shapes.iter().map(Self::words)),
        }
    }

    /// So many of the values, in words.
    fn plural(&self, count: usize) -> String {
        let noun = match self {
            Self::Bool => "boolean".to_owned(),
            Self::Text { least: 0, most: usize::MAX } => "string".to_owned(),
            Self::Text { least, most } => {
                let bound =
                    if *most == usize::MAX { "not empty".to_owned() } else { format!("{least} to {most} bytes") };
                return format!("string{} ({bound})", if count == 1 { "" } else { "s" });
            }
            Self::Word(_) => return self.words(),
            Self::Number { .. } => "number".to_owned(),
            Self::Integer { .. } | Self::Limit { .. } => "integer".to_owned(),
            Self::Token => "token".to_owned(),
            Self::Object | Self::OfTokens { .. } => "object".to_owned(),
            Self::List { of, .. } => {
                return format!("list{} of {}", if count == 1 { "" } else { "s" }, of.plural(2));
            }
            Self::Either(shapes) => return joined(shapes.iter().map(|shape| shape.plural(count))),
        };
        if count == 1 { noun } else { noun + "s" }
    }

    /// The JSON Schema of the values.
    pub(super) fn schema(&self) -> Value {
        let mut schema = match *self {
            Self::Bool => json!({"type": "boolean"}),
            Self::Text { .. } => json!({"type": "string"}),
            Self::Word(words) => json!({"type": "string", "enum": words}),
            Self::Number { least, most } => json!({"type": "number", "minimum": least, "maximum": most}),
            Self::Integer { .. } => json!({"type": "integer"}),
            Self::Limit { least } => json!({"anyOf": [{"type": "integer", "minimum": least}, {"const": -1}]}),
            Self::Token => json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
            Self::Object => json!({"type": "object"}),
            Self::OfTokens { most, of } => json!({
                "type": "object", "maxProperties": most,
                "propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": of.schema(),
            }),
            Self::List { of, .. } => json!({"type": "array", "items": of.schema()}),
            Self::Either(shapes) => json!({"anyOf": shapes.iter().map(Self::schema).collect::<Vec<_>>()}),
        };
        match *self {
            Self::Integer { least, most } => {
                if least != i64::MIN {
                    schema["minimum"] = least.into();
                }
                if most != i64::MAX {
                    schema["maximum"] = most.into();
                }
            }
            // The bound of bytes is the same of characters, of which each has a byte or more.
            Self::Text { least, most } => bound(&mut schema, ("minLength", least), ("maxLength", most)),
            Self::List { least, most, .. } => bound(&mut schema, ("minItems", least), ("maxItems", most)),
            _ => {}
        }
        schema
    }
}

fn bound(schema: &mut Value, (lower, least): (&str, usize), (upper, most): (&str, usize)) {
    if least != 0 {
        schema[lower] = least.into();
    }
    if most != usize::MAX {
        schema[upper] = most.into();
    }
}

/// A list in words, with "or" before the last one.
fn joined(words: impl Iterator<Item = String>) -> String {
    let words: Vec<_> = words.collect();
    match &words[..] {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: Shape = Shape::List { least: 1, most: 3, of: &Shape::Token };

    #[test]
    fn a_fault_names_the_part_and_the_bound() {
        const TEXTS: Shape = list(&Shape::Text { least: 1, most: 4 });
        const BIASES: Shape = Shape::OfTokens { most: 1, of: &Shape::Number { least: -1.0, most: 1.0 } };
        const NESTED: Shape = list(&Shape::Either(&[TEXT, TOKENS]));
        for (shape, value, part, why) in [
            (Shape::Number { least: 0.0, most: 1.0 }, json!(3), "", "must be between 0 and 1, not 3"),
            (Shape::Number { least: 0.0, most: 1.0 }, json!("1"), "", "must be a number"),
            (count(0), json!(-1), "", "must be at least 0, not -1"),
            (count(0), json!(1.5), "", "must be an integer"),
            (Shape::Limit { least: 1 }, json!(-2), "", "must be at least 1, not -2"),
            (Shape::Word(&["a", "b"]), json!("c"), "", "must be one of \"a\", \"b\""),
            (TEXTS, json!(["a", ""]), "[1]", "can't be an empty string"),
            (TEXTS, json!(["abcde"]), "[0]", "can be a string of at most 4 bytes"),
            (TEXTS, json!({}), "", "must be a list of strings (1 to 4 bytes)"),
            (BIASES, json!({"7": 2}), ".7", "must be between -1 and 1, not 2"),
            (BIASES, json!({"7": 1, "8": 1}), "", "can have at most 1 entries, not 2"),
            (BIASES, json!({"x": 1}), "", "has \"x\" for a token"),
            (BIASES, json!([]), "", "must be an object"),
            (TOKENS, json!([]), "", "needs at least 1 token"),
            (NESTED, json!(["a", []]), "[1]", "needs at least 1 token"),
            (NESTED, json!([true]), "[0]", "must be a string or a list of 1 to 3 tokens"),
        ] {
            assert_eq!(shape.check(&value).unwrap_err(), Fault { part: part.to_owned(), why: why.to_owned() });
        }
    }

    #[test]
    fn an_integer_may_be_written_as_a_float_and_a_limit_be_absent() {
        count(0).check(&json!(2.0)).unwrap();
        Shape::Limit { least: 1 }.check(&json!(-1)).unwrap();
        TOKENS.check(&json!([1, 2, 3])).unwrap();
        assert_eq!(integer(&json!(2.0)), Some(2));
    }
}
