//! Base and scaling of the frequencies of rotary embeddings.

use serde_json::Value as Json;

use super::family::Family;
use super::{json, missing};
use crate::ModelError;

/// Scaling of the frequencies of rotary embeddings.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Scaling {
    /// The frequencies are used as they are.
    None,
    /// All frequencies are divided by a factor.
    Linear {
        /// The factor.
        factor: f32,
    },
    /// Low frequencies are divided by a factor, high ones are kept, and those between are interpolated.
    Llama3 {
        /// The factor of low frequencies.
        factor: f32,
        /// Number of rotations in the original context below which a frequency is low.
        low: f32,
        /// Number of rotations in the original context above which a frequency is high.
        high: f32,
        /// The original context.
        context: usize,
    },
    /// YaRN: high frequencies are kept, low ones are divided by a factor, those between are interpolated, and the rotated
    /// elements are scaled. Source: <https://arxiv.org/abs/2309.00071>.
    Yarn {
        /// The factor of low frequencies.
        factor: f32,
        /// Number of rotations in the original context above which a frequency is high.
        fast: f32,
        /// Number of rotations in the original context below which a frequency is low.
        slow: f32,
        /// The original context.
        context: usize,
        /// The factor of the rotated elements.
        attention: f32,
        /// Whether the borders between the frequencies are whole elements.
        truncates: bool,
    },
    /// The divisor of each frequency is in the tensor `rope_freqs.weight` of a GGUF file.
    InFile,
}

/// Base and scaling of the frequencies, from `rope_parameters` (transformers 5) or from `rope_theta` and `rope_scaling`.
pub(super) fn rope_from_json(json: &Json) -> Result<(f32, Scaling), ModelError> {
    let parameters = &json["rope_parameters"];
    let context = json::number(json, "max_position_embeddings")?;
    let family = Family::of(json)?;
    // The parameters of layers with a window are among the features of the family.
    let full = &parameters["full_attention"];
    let parameters = if family.has_window_rope() && full.is_object() { full } else { parameters };
    let default = family.rope_base();
    let base = |json: &Json| Ok::<_, ModelError>(json::float(json, "rope_theta")?.unwrap_or(default) as f32);
    match json::float(json, "partial_rotary_factor")? {
        None | Some(1.0) => (),
        Some(factor) => return Err(ModelError::Feature { feature: format!("partial_rotary_factor {factor}") }),
    }
    if parameters.is_null() {
        return Ok((base(json)?, Scaling::from_json("rope_scaling", &json["rope_scaling"], context)?));
    }
    if parameters.as_object().is_none_or(|values| values.values().any(Json::is_object)) {
        return Err(ModelError::Feature { feature: "rope_parameters that differ between layers".into() });
    }
    let differs = |key: &&str| !json[*key].is_null() && json[*key] != parameters[*key];
    let both = ["rope_theta", "rope_scaling"].into_iter().find(differs);
    if let Some(key) = both {
        return Err(ModelError::Inconsistent(format!("both rope_parameters and {key} are set; remove {key}")));
    }
    match json::float(parameters, "partial_rotary_factor")? {
        None | Some(1.0) => Ok((base(parameters)?, Scaling::from_json("rope_parameters", parameters, context)?)),
        Some(factor) => Err(ModelError::Feature { feature: format!("partial_rotary_factor {factor}") }),
    }
}

impl Scaling {
    /// Reads the value `json` of the key `parent`. `context` is that of the whole model.
    fn from_json(parent: &str, json: &Json, context: Option<usize>) -> Result<Self, ModelError> {
        if json.is_null() {
            return Ok(Self::None);
        }
        let number = |key: &str| json::float(json, key)?.ok_or_else(|| missing(&format!("{parent}.{key}")));
        match json["rope_type"].as_str().or(json["type"].as_str()) {
            Some("default") => Ok(Self::None),
            None if json["factor"].is_null() => Ok(Self::None),
            Some("linear") => Ok(Self::Linear { factor: number("factor")? as f32 }),
            Some("llama3") => Ok(Self::Llama3 {
                factor: number("factor")? as f32,
                low: number("low_freq_factor")? as f32,
                high: number("high_freq_factor")? as f32,
                context: number("original_max_position_embeddings")? as usize,
            }),
            Some("yarn") => Self::yarn_from_json(parent, json, context),
            other => {
                Err(ModelError::Feature { feature: format!("rope scaling {:?}", other.unwrap_or("without a type")) })
            }
        }
    }

    /// The context that the scaling is made for; 0 if that of the model counts.
    pub(super) fn context(self) -> usize {
        match self {
            Self::Yarn { factor, context, .. } => (context as f32 * factor) as usize,
            _ => 0,
        }
    }

    fn yarn_from_json(parent: &str, json: &Json, context: Option<usize>) -> Result<Self, ModelError> {
        let number = |key: &str| json::float(json, key);
        let factor = number("factor")?.ok_or_else(|| missing(&format!("{parent}.factor")))?;
        let original = json::number(json, "original_max_position_embeddings")?.or(context);
        // The factor of the elements as transformers computes it: given, from two scales, or from the factor.
        let scale = |of: f64| if factor <= 1.0 { 1.0 } else { 0.1 * of * factor.ln() + 1.0 };
        let attention = match (number("attention_factor")?, number("mscale")?, number("mscale_all_dim")?) {
            (Some(attention), ..) => attention,
            (None, Some(of), Some(all)) if of != 0.0 && all != 0.0 => scale(of) / scale(all),
            _ => scale(1.0),
        };
        Ok(Self::Yarn {
            factor: factor as f32,
            fast: number("beta_fast")?.unwrap_or(32.0) as f32,
            slow: number("beta_slow")?.unwrap_or(1.0) as f32,
            context: original.ok_or_else(|| missing(&format!("{parent}.original_max_position_embeddings")))?,
            attention: attention as f32,
            truncates: json::flag(json, "truncate")?.unwrap_or(true),
        })
    }
}
