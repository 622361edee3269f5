//! The choice of tokens that a model recommends.

use std::fmt;

use serde_json::Value as Json;

use super::json;
use crate::ModelError;

/// How tokens are chosen for requests that do not say it. The usual values leave the probabilities of the model as they are.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SamplingDefaults {
    /// See [`Sampler::temperature`](crate::Sampler::temperature).
    pub temperature: f64,
    /// See [`Sampler::top_p`](crate::Sampler::top_p).
    pub top_p: f64,
    /// See [`Sampler::top_k`](crate::Sampler::top_k).
    pub top_k: u32,
    /// See [`Sampler::min_p`](crate::Sampler::min_p).
    pub min_p: f64,
    /// See [`Params::repetition_penalty`](crate::serving::Params::repetition_penalty).
    pub repetition_penalty: f64,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, repetition_penalty: 1.0 }
    }
}

impl SamplingDefaults {
    /// The values of a `generation_config.json`; the usual ones for keys that it does not have.
    pub(crate) fn from_json(json: &Json) -> Result<Self, ModelError> {
        let usual = Self::default();
        let number = |key, usual| json::float(json, key).map(|number| number.unwrap_or(usual));
        let penalty = "repetition_penalty";
        let values = Self {
            temperature: number("temperature", usual.temperature)?,
            top_p: number("top_p", usual.top_p)?,
            // Some files turn it off by -1.
            top_k: number("top_k", usual.top_k.into())? as u32,
            min_p: number("min_p", usual.min_p)?,
            repetition_penalty: number(penalty, usual.repetition_penalty)?,
        };
        // A logit is divided by it.
        if values.repetition_penalty > 0.0 {
            Ok(values)
        } else {
            Err(json::wrong(penalty, "a number above 0", &json[penalty]))
        }
    }
}

/// The values that differ from the usual ones.
impl fmt::Display for SamplingDefaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        let values = [
            ("temperature", self.temperature, usual.temperature),
            ("top_p", self.top_p, usual.top_p),
            ("top_k", self.top_k.into(), usual.top_k.into()),
            ("min_p", self.min_p, usual.min_p),
            ("repetition_penalty", self.repetition_penalty, usual.repetition_penalty),
        ];
        let values = values.into_iter().filter(|(_, value, usual)| value != usual);
        let values: Vec<_> = values.map(|(name, value, _)| format!("{name} {value}")).collect();
        f.write_str(&values.join(", "))
    }
}
