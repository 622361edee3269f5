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

/// A family that can be computed.
struct Family {
    /// The key `model_type`.
    name: &'static str,
    /// The first of the key `architectures`.
    architecture: &'static str,
    /// The keys that only some families have, which are understood.
    keys: &'static [&'static str],
}

const FAMILIES: [Family; 6] = [
    Family { name: "llama", architecture: "LlamaForCausalLM", keys: &["attention_bias", "mlp_bias"] },
    Family { name: "mistral", architecture: "MistralForCausalLM", keys: &["sliding_window"] },
    Family { name: "qwen2", architecture: "Qwen2ForCausalLM", keys: &[SLIDES, "sliding_window", "max_window_layers"] },
    Family {
        name: "qwen3",
        architecture: "Qwen3ForCausalLM",
        keys: &["attention_bias", SLIDES, "sliding_window", "max_window_layers"],
    },
    Family {
        name: "smollm3",
        architecture: "SmolLM3ForCausalLM",
        keys: &[
            "attention_bias",
            "mlp_bias",
            "no_rope_layers",
            "no_rope_layer_interval",
            SLIDES,
            "sliding_window",
            "max_window_layers",
        ],
    },
    Family {
        name: "granite",
        architecture: "GraniteForCausalLM",
        keys: &[
            "attention_bias",
            "mlp_bias",
            "embedding_multiplier",
            "attention_multiplier",
            "residual_multiplier",
            "logits_scaling",
        ],
    },
];

/// The key that turns the windows of some layers on; without it, the other keys of windows have no effect.
const SLIDES: &str = "use_sliding_window";

/// Keys that all families read.
const READ: [&str; 19] = [
    "architectures",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
];

/// Keys that do not change what a model computes: of training, of files, of other programs, of other kinds of layers.
const HARMLESS: [&str; 38] = [
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "dtype",
    "embd_pdrop",
    "finetuning_task",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "model_max_length",
    "name_or_path",
    "pad_token_id",
    // Ways to split the products, with the same results.
    "pretraining_tp",
    "resid_pdrop",
    "return_dict",
    "task_specific_params",
    // Of state-space layers, which these families do not have.
    "time_step_floor",
    "time_step_limit",
    "time_step_max",
    "time_step_min",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
    "use_flash_attn",
    "output_attentions",
];

impl Family {
    /// The family of a `config.json`.
    fn of(json: &Json) -> Result<&'static Self, LlamaError> {
        let name = json["model_type"].as_str().or(json["architectures"][0].as_str()).unwrap_or("(none)");
        let family = FAMILIES.iter().find(|family| [family.name, family.architecture].contains(&name));
        family.ok_or_else(|| LlamaError::Architecture { found: name.into() })
    }

    /// # Errors
    /// [`LlamaError::UnknownKey`] for a key that is not known, is not one of `ignored`, and is neither `null` nor `false`.
    fn check_keys(&self, json: &Json, ignored: &[String]) -> Result<(), LlamaError> {
        let is_known = |key: &str| {
            READ.contains(&key)
                || self.keys.contains(&key)
                || HARMLESS.contains(&key)
                || ignored.iter().any(|known| known == key)
        };
        let is_off = |value: &Json| value.is_null() || *value == Json::Bool(false);
        let unknown = json.as_object().into_iter().flatten().find(|(key, value)| !is_known(key) && !is_off(value));
        match unknown {
            Some((key, value)) => Err(LlamaError::UnknownKey { key: key.clone(), value: value.to_string() }),
            None => Ok(()),
        }
    }
}

impl Features {
    /// The features of a model of `layers` layers. Keys of `ignored` may be unknown.
    ///
    /// # Errors
    /// The family or a key is not known; a key has the wrong type, or a value that is not supported.
    pub(super) fn from_json(json: &Json, layers: usize, ignored: &[String]) -> Result<Self, LlamaError> {
        let family = Family::of(json)?;
        family.check_keys(json, ignored)?;
        let family = family.name;
        let flag = |key| Ok::<_, LlamaError>(json::flag(json, key)?.unwrap_or(false));
        let all = Self::default();
        let mut features = match family {
            "qwen2" => Self { input_bias: true, ..all },
            // The default of transformers.
            "mistral" if json.get("sliding_window").is_none() => Self { window: Some(4096), ..all },
            "mistral" => Self { window: json::number(json, "sliding_window")?, ..all },
            family => {
                let (attention, head_norms) = (flag("attention_bias")?, family == "qwen3");
                Self { input_bias: attention, output_bias: attention, ffn_bias: flag("mlp_bias")?, head_norms, ..all }
            }
        };
        if flag(SLIDES)? {
            return Err(LlamaError::Feature { feature: format!("a sliding window in some layers ({SLIDES})") });
        }
        let expected = if features.window.is_some() { "sliding_attention" } else { "full_attention" };
        let other = json["layer_types"].as_array().into_iter().flatten().find(|kind| *kind != expected);
        if let Some(other) = other {
            return Err(LlamaError::Feature { feature: format!("a layer of the type {other} (layer_types)") });
        }
        match family {
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
