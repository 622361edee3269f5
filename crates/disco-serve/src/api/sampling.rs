//! The fields that say how tokens are chosen and when a text ends.

use disco_models::Sampler;
use disco_models::serving::Params;
use serde_json::Value;

use super::fields::token;
use super::{ApiError, Fields, Known};

/// The most stop strings.
const MAX_STOPS: usize = 16;
/// The most bytes of a stop string.
const MAX_STOP_BYTES: usize = 256;
/// The most entries of `logit_bias`, and of `stop_token_ids`.
const MAX_TOKENS_LISTED: usize = 1024;
/// The most alternatives in the logprobs of a token.
pub(super) const MAX_LOGPROBS: i64 = 20;

/// The fields that chats and completions have in common, without logprobs.
///
/// # Errors
/// A field has a value that it can't have.
pub(super) fn params(fields: &mut Fields, model: Known<'_>) -> Result<Params, ApiError> {
    let Known { vocabulary, ends, sampling, .. } = model;
    let ignores_ends = fields.bool("ignore_eos")?.unwrap_or(false);
    let mut all_ends = if ignores_ends { Vec::new() } else { ends.to_vec() };
    for value in fields.list("stop_token_ids", MAX_TOKENS_LISTED)?.unwrap_or_default() {
        all_ends.push(token("stop_token_ids", &value, vocabulary)?);
    }
    all_ends.sort_unstable();
    all_ends.dedup();
    let mut sampler = Sampler::new(
        fields.number("temperature", 0.0..=2.0)?.unwrap_or(sampling.temperature),
        fields.number("top_p", 0.0..=1.0)?.unwrap_or(sampling.top_p),
        0,
    );
    let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?.unwrap_or(sampling.top_k.into()).max(0);
    sampler.top_k = u32::try_from(top_k).unwrap_or(u32::MAX);
    sampler.min_p = fields.number("min_p", 0.0..=1.0)?.unwrap_or(sampling.min_p);
    let mut params = Params::new(sampler);
    params.presence_penalty = fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0);
    params.frequency_penalty = fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0);
    let penalty = fields.number("repetition_penalty", 0.01..=100.0)?;
    params.repetition_penalty = penalty.unwrap_or(sampling.repetition_penalty);
    params.bias = logit_bias(fields, vocabulary)?;
    params.ends = all_ends;
    let min_tokens = u32::try_from(fields.count("min_tokens", 0)?.unwrap_or(0));
    params.min_tokens = min_tokens.map_err(|_| ApiError::param("min_tokens", "is too large"))?;
    Ok(params)
}

fn logit_bias(fields: &mut Fields, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let entries = fields.object(NAME)?.unwrap_or_default();
    if entries.len() > MAX_TOKENS_LISTED {
        return Err(ApiError::param(NAME, format!("can have at most {MAX_TOKENS_LISTED} entries")));
    }
    let mut biases = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let number = key.parse::<i64>().map_or(Value::String(key), Value::from);
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let bias = bias.ok_or_else(|| ApiError::param(NAME, "must have numbers between -100 and 100"))?;
        biases.push((token(NAME, &number, vocabulary)?, bias as f32));
    }
    biases.sort_unstable_by_key(|(token, _)| *token);
    biases.dedup_by_key(|(token, _)| *token);
    Ok(biases)
}

/// The stop strings: a text or a list of texts.
///
/// # Errors
/// The field is something else; a stop string is empty or too long, or there are too many.
pub(super) fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    const NAME: &str = "stop";
    let stops = match fields.take(NAME) {
        None => Vec::new(),
        Some(Value::Array(stops)) => stops,
        Some(stop) => vec![stop],
    };
    if stops.len() > MAX_STOPS {
        return Err(ApiError::param(NAME, format!("can have at most {MAX_STOPS} entries, not {}", stops.len())));
    }
    let text = |stop| match stop {
        Value::String(stop) if stop.is_empty() => Err(ApiError::param(NAME, "can't be an empty string")),
        Value::String(stop) if stop.len() > MAX_STOP_BYTES => {
            Err(ApiError::param(NAME, format!("can have strings of at most {MAX_STOP_BYTES} bytes")))
        }
        Value::String(stop) => Ok(stop),
        _ => Err(ApiError::param(NAME, "must be a string or a list of strings")),
    };
    stops.into_iter().map(text).collect()
}
