//! Requests for vectors of texts, and for scores of pairs of texts.

use std::sync::Arc;

use serde_json::Value;

use super::fields::token;
use super::order::check_model;
use super::{ApiError, EMBED, Fields, Known, Object, RERANK, SCORE};

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
    pub(crate) pairs: Vec<(Arc<str>, String)>,
    pub(crate) cut: Cut,
    /// Whether a score is what the model says, instead of its sigmoid; `None`: as the model recommends.
    pub(crate) is_raw: Option<bool>,
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
    /// A field has a value that it can't have, or asks for something that is not supported.
    pub(crate) fn parse(object: Object, model: Known<'_>) -> Result<Self, ApiError> {
        const NAME: &str = "input";
        let fields = &mut object.fields(&EMBED)?;
        check_model(fields, model.name)?;
        let tokens = |values: &[Value]| {
            let tokens = values.iter().map(|value| token(NAME, value, model.vocabulary));
            tokens.collect::<Result<_, _>>().map(Input::Tokens)
        };
        let one = |value: Value| match value {
            Value::Array(values) => tokens(&values),
            text => Ok(Input::Text(text.as_str().unwrap_or_default().to_owned())),
        };
        let inputs = match fields.value(NAME)?.unwrap_or_default() {
            Value::Array(values) if values.first().is_some_and(Value::is_number) => vec![tokens(&values)?],
            Value::Array(values) => values.into_iter().map(one).collect::<Result<_, _>>()?,
            value => vec![one(value)?],
        };
        let is_base64 = fields.text("encoding_format")?.is_some_and(|format| format == "base64");
        Ok(Self { inputs, cut: cut(fields)?, is_base64, dimensions: fields.count("dimensions")? })
    }
}

impl Score {
    /// # Errors
    /// A field has a value that it can't have, or asks for something that is not supported.
    pub(crate) fn parse(object: Object, model: Known<'_>) -> Result<Self, ApiError> {
        let fields = &mut object.fields(&SCORE)?;
        check_model(fields, model.name)?;
        let [first, second] = [texts(fields, "text_1")?, texts(fields, "text_2")?];
        let pairs = match (&first[..], second.len()) {
            ([only], _) => with_each(only, second),
            (all, count) if all.len() == count => first.into_iter().map(Arc::from).zip(second).collect(),
            _ => return Err(ApiError::param("text_2", "must have as many texts as `text_1`, unless that is one")),
        };
        Ok(Self { pairs, cut: cut(fields)?, is_raw: is_raw(fields)? })
    }
}

impl Rerank {
    /// # Errors
    /// A field has a value that it can't have, or asks for something that is not supported.
    pub(crate) fn parse(object: Object, model: Known<'_>) -> Result<Self, ApiError> {
        let fields = &mut object.fields(&RERANK)?;
        check_model(fields, model.name)?;
        let query = fields.text("query")?.unwrap_or_default();
        let documents = texts(fields, "documents")?;
        let top = fields.count("top_n")?.unwrap_or(documents.len());
        let returns_documents = fields.bool("return_documents")?.unwrap_or(true);
        let pairs = with_each(&query, documents);
        let score = Score { pairs, cut: cut(fields)?, is_raw: is_raw(fields)? };
        Ok(Self { score, top, returns_documents })
    }
}

/// Pairs of one text with each of others.
fn with_each(one: &str, others: Vec<String>) -> Vec<(Arc<str>, String)> {
    let one: Arc<str> = one.into();
    others.into_iter().map(|other| (one.clone(), other)).collect()
}

/// The field `raw_scores`, and vLLM's names for its contrary.
fn is_raw(fields: &mut Fields) -> Result<Option<bool>, ApiError> {
    let [raw, activation, old] =
        [fields.bool("raw_scores")?, fields.bool("use_activation")?, fields.bool("activation")?];
    Ok(raw.or(activation.or(old).map(|activates| !activates)))
}

/// A text, or several ones, which may be objects with a `text`.
fn texts(fields: &mut Fields, name: &str) -> Result<Vec<String>, ApiError> {
    let one = |value: &Value| match value {
        Value::Object(object) => object.get("text").and_then(Value::as_str).map(str::to_owned),
        text => text.as_str().map(str::to_owned),
    };
    let values = match fields.value(name)?.unwrap_or_default() {
        Value::Array(values) => values,
        value => vec![value],
    };
    let texts =
        values.iter().map(|value| one(value).ok_or_else(|| ApiError::param(name, "has an object without a `text`")));
    texts.collect()
}

/// The fields `truncate`, and vLLM's `truncate_prompt_tokens`, which is a number of tokens, or -1 for those that the model takes.
fn cut(fields: &mut Fields) -> Result<Cut, ApiError> {
    let cuts = fields.bool("truncate")?.unwrap_or(false);
    Ok(match fields.integer("truncate_prompt_tokens")? {
        None => Cut { most: usize::MAX, cuts },
        Some(most) => Cut { most: usize::try_from(most).unwrap_or(usize::MAX), cuts: true },
    })
}
