//! The fields that say how tokens are chosen and when a text ends.

use disco_models::Sampler;
use disco_models::serving::Params;
use serde_json::Value;

use super::fields::token;
use super::{ApiError, Fields, Known};

/// The fields that chats and completions have in common, without logprobs.
///
/// # Errors
/// A field has a value that it can't have.
pub(super) fn params(fields: &mut Fields, model: Known<'_>) -> Result<Params, ApiError> {
    let Known { vocabulary, ends, sampling, .. } = model;
    let ignores_ends = fields.bool("ignore_eos")?.unwrap_or(false);
    let mut all_ends = if ignores_ends { Vec::new() } else { ends.to_vec() };
    for value in fields.list("stop_token_ids")? {
        all_ends.push(token("stop_token_ids", &value, vocabulary)?);
    }
    all_ends.sort_unstable();
    all_ends.dedup();
    let mut sampler = Sampler::new(
        fields.number("temperature")?.unwrap_or(sampling.temperature),
        fields.number("top_p")?.unwrap_or(sampling.top_p),
        0,
    );
    let top_k = fields.integer("top_k")?.unwrap_or(sampling.top_k.into()).max(0);
    sampler.top_k = u32::try_from(top_k).unwrap_or(u32::MAX);
    sampler.min_p = fields.number("min_p")?.unwrap_or(sampling.min_p);
    let mut params = Params::new(sampler);
    params.presence_penalty = fields.number("presence_penalty")?.unwrap_or(0.0);
    params.frequency_penalty = fields.number("frequency_penalty")?.unwrap_or(0.0);
    let penalty = fields.number("repetition_penalty")?;
    params.repetition_penalty = penalty.unwrap_or(sampling.repetition_penalty);
    params.bias = logit_bias(fields, vocabulary)?;
    params.ends = all_ends;
    params.min_tokens = fields.integer("min_tokens")?.and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
    Ok(params)
}

fn logit_bias(fields: &mut Fields, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let entries = fields.object(NAME)?.unwrap_or_default().into_iter().map(|(key, value)| {
        let number = key.parse::<i64>().map_or(Value::String(key), Value::from);
        Ok((token(NAME, &number, vocabulary)?, value.as_f64().unwrap_or_default() as f32))
    });
    let mut biases = entries.collect::<Result<Vec<_>, ApiError>>()?;
    biases.sort_unstable_by_key(|(token, _)| *token);
    biases.dedup_by_key(|(token, _)| *token);
    Ok(biases)
}

/// The stop strings: a text or a list of texts.
///
/// # Errors
/// The field is something else; a stop string is empty or too long, or there are too many.
pub(super) fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = match fields.value("stop")? {
        None => Vec::new(),
        Some(Value::Array(stops)) => stops,
        Some(stop) => vec![stop],
    };
    Ok(stops.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}
