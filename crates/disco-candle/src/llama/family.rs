//! Families of models: what each adds to llama, and how its `config.json` says so.

use serde_json::Value as Json;

use super::{LlamaError, json};

/// What a family adds to the transformer of llama.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Features {
    /// Biases of query, key and value.
    pub input_bias: bool,
    /// A bias of the attention's output.
    pub output_bias: bool,
    /// Biases of the feed-forward network.
    pub ffn_bias: bool,
    /// RMS norms of each head of query and key, before they are rotated.
    pub head_norms: bool,
    /// A token attends to this many last tokens, itself among them; `None`: to all.
    pub window: Option<usize>,
    /// Layers whose queries and keys are not rotated.
    pub unrotated: Vec<usize>,
    /// Factor of the embedded tokens.
    pub embedding_factor: f64,
    /// Factor of the products of query and key; `None`: the inverse root of the head's width.
    pub attention_factor: Option<f64>,
    /// Factor of what a layer adds to the hidden state.
    pub residual_factor: f64,
    /// Divisor of the logits.
    pub logits_divisor: f64,
}

impl Default for Features {
    /// Those of llama.
    fn default() -> Self {
        Self {
            input_bias: false,
            output_bias: false,
            ffn_bias: false,
            head_norms: false,
            window: None,
            unrotated: Vec::new(),
            embedding_factor: 1.0,
            attention_factor: None,
            residual_factor: 1.0,
            logits_divisor: 1.0,
        }
    }
}

/// Families that can be computed, by `model_type` and by `architectures` of `config.json`.
const FAMILIES: [(&str, &str); 6] = [
    ("llama", "LlamaForCausalLM"),
    ("mistral", "MistralForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("smollm3", "SmolLM3ForCausalLM"),
    ("granite", "GraniteForCausalLM"),
];

impl Features {
    /// The features of a model of `layers` layers.
    ///
    /// # Errors
    /// The family is not known; a key has the wrong type, or a value that is not supported.
    pub(super) fn from_json(json: &Json, layers: usize) -> Result<Self, LlamaError> {
        let name = json["model_type"].as_str().or(json["architectures"][0].as_str()).unwrap_or("(none)");
        let Some((family, _)) = FAMILIES.iter().find(|(short, long)| [*short, *long].contains(&name)) else {
            return Err(LlamaError::Architecture { found: name.into() });
        };
        let flag = |key| Ok::<_, LlamaError>(json::flag(json, key)?.unwrap_or(false));
        let all = Self::default();
        let mut features = match *family {
            "qwen2" => Self { input_bias: true, ..all },
            "mistral" => Self { window: json::number(json, "sliding_window")?, ..all },
            family => {
                let (attention, head_norms) = (flag("attention_bias")?, family == "qwen3");
                Self { input_bias: attention, output_bias: attention, ffn_bias: flag("mlp_bias")?, head_norms, ..all }
            }
        };
        if ["qwen2", "qwen3", "smollm3"].contains(family) && flag("use_sliding_window")? {
            return Err(LlamaError::Feature { feature: "a sliding window in some layers (use_sliding_window)".into() });
        }
        match *family {
            "smollm3" => features.unrotated = unrotated(json, layers)?,
            "granite" => features.read_factors(json)?,
            _ => (),
        }
        Ok(features)
    }

    /// The factors of Granite.
    fn read_factors(&mut self, json: &Json) -> Result<(), LlamaError> {
        let factor = |key| Ok::<_, LlamaError>(json::float(json, key)?.unwrap_or(1.0));
        self.embedding_factor = factor("embedding_multiplier")?;
        self.attention_factor = Some(factor("attention_multiplier")?);
        self.residual_factor = factor("residual_multiplier")?;
        self.logits_divisor = factor("logits_scaling")?;
        if self.logits_divisor > 0.0 {
            return Ok(());
        }
        Err(LlamaError::Inconsistent(format!("logits_scaling is {}, and must be positive", self.logits_divisor)))
    }
}

/// The layers of SmolLM3 whose flag in `no_rope_layers` is 0; without the key, each `no_rope_layer_interval`-th.
fn unrotated(json: &Json, layers: usize) -> Result<Vec<usize>, LlamaError> {
    let key = "no_rope_layers";
    if json[key].is_null() {
        let interval = json::number(json, "no_rope_layer_interval")?.unwrap_or(4).max(1);
        return Ok((0..layers).filter(|layer| (layer + 1).is_multiple_of(interval)).collect());
    }
    let flags = json[key].as_array().and_then(|flags| flags.iter().map(Json::as_u64).collect::<Option<Vec<_>>>());
    match flags {
        Some(flags) if flags.len() == layers => Ok((0..layers).filter(|layer| flags[*layer] == 0).collect()),
        _ => Err(json::wrong(key, &format!("{layers} flags, one per layer"), &json[key])),
    }
}
