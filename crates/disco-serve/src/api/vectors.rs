//! Requests for vectors of texts, and for scores of pairs of texts.

use serde_json::Value;

use super::fields::token;
use super::order::check_model;
use super::{ApiError, Fields, Known};

/// The most texts of a request.
const MAX_TEXTS: usize = 2048;

/// A text, or its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

/// What becomes of texts with more tokens than the model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The most tokens, or fewer if the model takes fewer.
    pub(crate) most: usize,
    /// Whether texts are cut, instead of refused.
    pub(crate) cuts: bool,
}

/// A request for vectors.
#[derive(Debug)]
pub(crate) struct Embed {
    pub(crate) inputs: Vec<Input>,
    pub(crate) cut: Cut,
    pub(crate) is_base64: bool,
    /// The number of elements, if not all.
    pub(crate) dimensions: Option<usize>,
}

/// A request for scores of pairs.
#[derive(Debug)]
pub(crate) struct Score {
    pub(crate) pairs: Vec<(String, String)>,
    pub(crate) cut: Cut,
}

/// A request for the order of documents.
#[derive(Debug)]
pub(crate) struct Rerank {
    pub(crate) score: Score,
    /// The number of documents in the reply, the best ones.
    pub(crate) top: usize,
    pub(crate) returns_documents: bool,
}

impl Embed {
    /// # Errors
    /// A field has a value that it can't have.
    pub(crate) fn parse(mut fields: Fields, model: Known<'_>) -> Result<Self, ApiError> {
        const NAME: &str = "input";
        let fields = &mut fields;
        check_model(fields, model.name)?;
        let tokens = |values: &[Value]| {
            let tokens = values.iter().map(|value| token(NAME, value, model.vocabulary));
            tokens.collect::<Result<_, _>>().map(Input::Tokens)
        };
        let one = |value: Value| match value {
            Value::String(text) => Ok(Input::Text(text)),
            Value::Array(values) if !values.is_empty() => tokens(&values),
            _ => Err(ApiError::param(NAME, "must have strings or lists of tokens, none of the lists empty")),
        };
        let inputs = match fields.take(NAME) {
            None => return Err(ApiError::param(NAME, "is missing")),
            Some(Value::Array(values)) if values.first().is_some_and(Value::is_number) => vec![tokens(&values)?],
            Some(Value::Array(values)) if (1..=MAX_TEXTS).contains(&values.len()) => {
                values.into_iter().map(one).collect::<Result<_, _>>()?
            }
            Some(Value::Array(_)) => return Err(ApiError::param(NAME, format!("must have 1 to {MAX_TEXTS} texts"))),
            Some(value) => vec![one(value)?],
        };
        let is_base64 = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => return Err(ApiError::param("encoding_format", "must be \"float\" or \"base64\"")),
        };
        Ok(Self { inputs, cut: cut(fields)?, is_base64, dimensions: fields.count("dimensions", 1)? })
    }
}

impl Score {
    /// # Errors
    /// A field has a value that it can't have.
    pub(crate) fn parse(mut fields: Fields, model: Known<'_>) -> Result<Self, ApiError> {
        let fields = &mut fields;
        check_model(fields, model.name)?;
        let [first, second] = [texts(fields, "text_1")?, texts(fields, "text_2")?];
        let pairs = match (&first[..], second.len()) {
            ([only], _) => second.into_iter().map(|text| (only.clone(), text)).collect(),
            (all, count) if all.len() == count => first.into_iter().zip(second).collect(),
            _ => return Err(ApiError::param("text_2", "must have as many texts as `text_1`, unless that is one")),
        };
        Ok(Self { pairs, cut: cut(fields)? })
    }
}

impl Rerank {
    /// # Errors
    /// A field has a value that it can't have.
    pub(crate) fn parse(mut fields: Fields, model: Known<'_>) -> Result<Self, ApiError> {
        let fields = &mut fields;
        check_model(fields, model.name)?;
        let query = fields.text("query")?.ok_or_else(|| ApiError::param("query", "is missing"))?;
        let documents = texts(fields, "documents")?;
        let top = fields.count("top_n", 1)?.unwrap_or(documents.len());
        let returns_documents = fields.bool("return_documents")?.unwrap_or(true);
        let pairs = documents.into_iter().map(|document| (query.clone(), document)).collect();
        Ok(Self { score: Score { pairs, cut: cut(fields)? }, top, returns_documents })
    }
}

/// A text, or several ones, which may be objects with a `text`.
fn texts(fields: &mut Fields, name: &str) -> Result<Vec<String>, ApiError> {
    let one = |value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Object(mut object) => match object.remove("text") {
            Some(Value::String(text)) => Ok(text),
            _ => Err(ApiError::param(name, "must have strings")),
        },
        _ => Err(ApiError::param(name, "must have strings")),
    };
    match fields.take(name) {
        None => Err(ApiError::param(name, "is missing")),
        Some(Value::Array(values)) if (1..=MAX_TEXTS).contains(&values.len()) => values.into_iter().map(one).collect(),
        Some(Value::Array(_)) => Err(ApiError::param(name, format!("must have 1 to {MAX_TEXTS} texts"))),
        Some(value) => Ok(vec![one(value)?]),
    }
}

/// The fields `truncate`, and vLLM's `truncate_prompt_tokens`, which is a number of tokens, or -1 for those that the model takes.
fn cut(fields: &mut Fields) -> Result<Cut, ApiError> {
    let cuts = fields.bool("truncate")?.unwrap_or(false);
    Ok(match fields.integer("truncate_prompt_tokens", -1..=i64::from(u32::MAX))? {
        None => Cut { most: usize::MAX, cuts },
        Some(-1) => Cut { most: usize::MAX, cuts: true },
        Some(most) => Cut { most: most as usize, cuts: true },
    })
}
