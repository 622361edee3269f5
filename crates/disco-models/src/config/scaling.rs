//! Base and scaling of the frequencies of rotary embeddings.

use serde_json::Value as Json;

use super::{json, missing};
use crate::ModelError;

/// Scaling of the frequencies of rotary embeddings.
#[derive(Clone, Debug, PartialEq)]
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
    /// LongRoPE: divisors of each frequency, for sequences within the original context and for longer ones, and a factor of
    /// the rotated elements. A text that outgrows the original context is computed again from its beginning, as
    /// transformers does. Source: <https://arxiv.org/abs/2402.13753>.
    Long {
        /// The divisors within the original context.
        short: Vec<f32>,
        /// The divisors beyond it.
        long: Vec<f32>,
        /// The original context.
        context: usize,
        /// The factor of the rotated elements.
        attention: f32,
    },
    /// A larger base for sequences beyond the original context, which grows with their length. Earlier tokens keep the
    /// rotation that they were computed with, as in transformers.
    Dynamic {
        /// How much longer sequences can be.
        factor: f32,
        /// The original context.
        context: usize,
    },
    /// [`Long`](Self::Long) with the divisors in the tensors `rope_factors_short.weight` and `rope_factors_long.weight` of a
    /// GGUF file.
    LongInFile {
        /// The original context.
        context: usize,
        /// The factor of the rotated elements.
        attention: f32,
    },
    /// The divisor of each frequency is in the tensor `rope_freqs.weight` of a GGUF file.
    InFile,
    /// The highest frequencies are divided by a factor, and pairs with lower ones are not rotated. Source: transformers.
    Proportional {
        /// The share of the pairs that is rotated.
        share: f32,
        /// The factor.
        factor: f32,
    },
}

/// The tensor of [`Scaling::InFile`], which is in GGUF files.
pub(crate) const DIVISORS: &str = "rope_freqs.weight";

/// The tensors of [`Scaling::LongInFile`]: for sequences within the original context, and for longer ones.
pub(crate) const LONG_DIVISORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

impl Scaling {
    /// The names of the tensors with divisors.
    pub(crate) fn tensors(&self) -> &'static [&'static str] {
        match self {
            Self::InFile => &[DIVISORS],
            Self::LongInFile { .. } => &LONG_DIVISORS,
            _ => &[],
        }
    }

    /// Reads the value `json` of the key `parent` of `config`.
    ///
    /// `context` is that of the whole model.
    pub(crate) fn from_json(config: &Json, context: usize, parent: &str, json: &Json) -> Result<Self, ModelError> {
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
            // The second is the older name.
            Some("longrope" | "su") => Self::long_from_json(config, context, parent, json),
            Some("proportional") => Ok(Self::Proportional {
                share: json::float(json, "partial_rotary_factor")?.unwrap_or(1.0) as f32,
                factor: json::float(json, "factor")?.unwrap_or(1.0) as f32,
            }),
            Some("dynamic") => Ok(Self::Dynamic { factor: number("factor")? as f32, context }),
            other => {
                Err(ModelError::Feature { feature: format!("rope scaling {:?}", other.unwrap_or("without a type")) })
            }
        }
    }

    fn long_from_json(config: &Json, context: usize, parent: &str, json: &Json) -> Result<Self, ModelError> {
        let divisors = |key: &str| {
            let numbers = json[key].as_array().and_then(|all| all.iter().map(Json::as_f64).collect::<Option<Vec<_>>>());
            let numbers =
                numbers.ok_or_else(|| json::wrong(&format!("{parent}.{key}"), "a list of numbers", &json[key]));
            Ok::<_, ModelError>(numbers?.into_iter().map(|number| number as f32).collect::<Vec<_>>())
        };
        let key = "original_max_position_embeddings";
        let [whole, own] = [json::number(config, key)?, json::number(json, key)?];
        if whole.is_some() && own.is_some() && whole != own {
            return Err(ModelError::Inconsistent(format!("both {key} and {parent}.{key} are set, and differ")));
        }
        let original = whole.or(own);
        // As transformers: without an original context, all sequences are short ones.
        let ratio = original.map_or(1.0, |original| context as f64 / original as f64);
        let context = original.unwrap_or(context);
        let factor = json::float(json, "factor")?.unwrap_or(ratio);
        let attention = match json::float(json, "attention_factor")? {
            Some(attention) => attention,
            None if factor > 1.0 => (1.0 + factor.ln() / (context as f64).ln()).sqrt(),
            None => 1.0,
        };
        Ok(Self::Long {
            short: divisors("short_factor")?,
            long: divisors("long_factor")?,
            context,
            attention: attention as f32,
        })
    }

    /// The context that the scaling is made for; 0 if that of the model counts.
    pub(crate) fn context(&self) -> usize {
        match self {
            Self::Yarn { factor, context, .. } | Self::Dynamic { factor, context } => {
                (*context as f32 * factor) as usize
            }
            _ => 0,
        }
    }

    fn yarn_from_json(parent: &str, json: &Json, context: usize) -> Result<Self, ModelError> {
        let number = |key: &str| json::float(json, key);
        let factor = number("factor")?.ok_or_else(|| missing(&format!("{parent}.factor")))?;
        let original = json::number(json, "original_max_position_embeddings")?;
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
            context: original.unwrap_or(context),
            attention: attention as f32,
            truncates: json::flag(json, "truncate")?.unwrap_or(true),
        })
    }
}
