//! Families of models, and their keys in `config.json`.

use serde_json::Value as Json;

use crate::ModelError;

/// A family that can be computed.
pub(super) struct Family {
    /// The key `model_type`.
    pub(super) name: &'static str,
    /// The first of the key `architectures`.
    architecture: &'static str,
    /// The keys that only some families have, which are understood.
    keys: &'static [&'static str],
}

const FAMILIES: [Family; 12] = [
    Family { name: "llama", architecture: "LlamaForCausalLM", keys: &["attention_bias", "mlp_bias"] },
    Family { name: "mistral", architecture: "MistralForCausalLM", keys: &["sliding_window"] },
    Family {
        name: "mixtral",
        architecture: "MixtralForCausalLM",
        keys: &[
            "num_experts_per_tok",
            "num_local_experts",
            "output_router_logits",
            "router_aux_loss_coef",
            "router_jitter_noise",
            "sliding_window",
        ],
    },
    Family { name: "qwen2", architecture: "Qwen2ForCausalLM", keys: &[SLIDES, "sliding_window", "max_window_layers"] },
    Family {
        name: "qwen3",
        architecture: "Qwen3ForCausalLM",
        keys: &["attention_bias", SLIDES, "sliding_window", "max_window_layers", QK_NORM],
    },
    Family {
        name: "qwen3_moe",
        architecture: "Qwen3MoeForCausalLM",
        keys: &[
            "attention_bias",
            "decoder_sparse_step",
            "mlp_only_layers",
            "moe_intermediate_size",
            "norm_topk_prob",
            "num_experts",
            "num_experts_per_tok",
            "num_local_experts",
            "output_router_logits",
            "router_aux_loss_coef",
            SLIDES,
            "sliding_window",
            "max_window_layers",
            QK_NORM,
        ],
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
    // The original context is that of a scaling, which has the key, too.
    Family {
        name: "phi3",
        architecture: "Phi3ForCausalLM",
        keys: &["sliding_window", "original_max_position_embeddings"],
    },
    Family { name: "olmo2", architecture: "Olmo2ForCausalLM", keys: &["attention_bias"] },
    Family { name: "gemma2", architecture: "Gemma2ForCausalLM", keys: &GEMMA },
    Family { name: "gemma3_text", architecture: "Gemma3ForCausalLM", keys: &GEMMA },
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

/// The keys of Gemma 2 and 3.
const GEMMA: [&str; 10] = [
    "_sliding_window_pattern",
    "attention_bias",
    "attn_logit_softcapping",
    "cache_implementation",
    "final_logit_softcapping",
    "hidden_activation",
    "query_pre_attn_scalar",
    "rope_local_base_freq",
    "sliding_window",
    "sliding_window_pattern",
];

/// The key that turns the windows of some layers on; without it, the other keys of windows have no effect.
pub(super) const SLIDES: &str = "use_sliding_window";

/// A key of some models of Qwen 3, which have these norms whatever it says.
const QK_NORM: &str = "use_qk_norm";

/// Keys that all families read.
const READ: [&str; 20] = [
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
    "partial_rotary_factor",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
];

/// Keys that do not change what a model computes: of training, of files, of other programs, of other kinds of layers.
const HARMLESS: [&str; 48] = [
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    // Of the choice of tokens, for which a program has its own settings.
    "do_sample",
    "max_length",
    "min_length",
    "num_beams",
    "temperature",
    "top_k",
    "top_p",
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
    "max_sequence_length",
    "model_max_length",
    "name_or_path",
    "pad_token_id",
    // Ways to split the products, with the same results.
    "pretraining_tp",
    "resid_pdrop",
    "return_dict",
    "sep_token_id",
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

/// Numbers of other kinds of models and of the choice of tokens, and the value with which each has no effect.
const NEUTRAL: [(&str, f64); 25] = [
    ("decoder_sparse_step", 1.0),
    ("diversity_penalty", 0.0),
    ("embedding_multiplier", 1.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("first_k_dense_replace", 0.0),
    // Of Phi-4-mini: each layer attends to all tokens, and positions are not stretched.
    ("full_attn_mod", 1.0),
    ("interpolate_factor", 1.0),
    ("length_penalty", 1.0),
    ("logit_scale", 1.0),
    ("logits_scaling", 1.0),
    ("n_group", 1.0),
    ("n_routed_experts", 0.0),
    ("n_shared_experts", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beam_groups", 1.0),
    ("num_experts", 0.0),
    ("num_local_experts", 0.0),
    ("num_nextn_predict_layers", 0.0),
    ("num_return_sequences", 1.0),
    ("repetition_penalty", 1.0),
    ("residual_multiplier", 1.0),
    ("rotary_pct", 1.0),
    ("routed_scaling_factor", 1.0),
    ("shared_expert_intermediate_size", 0.0),
    ("topk_group", 1.0),
];

/// The names of the families, for errors.
fn known_families() -> String {
    FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ")
}

impl Family {
    /// The family of a `config.json`.
    pub(super) fn of(json: &Json) -> Result<&'static Self, ModelError> {
        let name = json["model_type"].as_str().or(json["architectures"][0].as_str()).unwrap_or("(none)");
        let family = FAMILIES.iter().find(|family| [family.name, family.architecture].contains(&name));
        // Other programs write names of their own, but a classifier has no matrix for logits.
        match (family, json["architectures"][0].as_str()) {
            (Some(_), Some(other)) if !other.ends_with("ForCausalLM") => {
                Err(ModelError::Architecture { found: other.into(), known: known_families() })
            }
            (Some(family), _) => Ok(family),
            (None, _) => Err(ModelError::Architecture { found: name.into(), known: known_families() }),
        }
    }

    /// Whether layers with a window have frequencies of their own.
    pub(super) fn has_window_rope(&self) -> bool {
        self.name == "gemma3_text"
    }

    /// Whether the key `partial_rotary_factor` has an effect.
    pub(super) fn rotates_partly(&self) -> bool {
        self.name == "phi3"
    }

    /// The base of the frequencies without the key `rope_theta`: the default of transformers.
    pub(super) fn rope_base(&self) -> f64 {
        match self.name {
            "gemma3_text" | "mixtral" => 1e6,
            "smollm3" => 2e6,
            _ => 1e4,
        }
    }

    /// The width of a head without the key `head_dim`, unless it is a share of the hidden state.
    pub(super) fn head_dim(&self) -> Option<usize> {
        match self.name {
            "gemma2" | "gemma3_text" => Some(256),
            "qwen3" => Some(128),
            _ => None,
        }
    }

    /// The number of kv heads without the key `num_key_value_heads`, unless it is that of query heads, which it is, too, if
    /// the key is `null`.
    pub(super) fn kv_heads(&self) -> Option<usize> {
        match self.name {
            "mistral" | "mixtral" => Some(8),
            "qwen2" | "qwen3" => Some(32),
            "qwen3_moe" | "smollm3" | "gemma2" | "gemma3_text" => Some(4),
            _ => None,
        }
    }

    /// The context without the key `max_position_embeddings`.
    pub(super) fn context(&self) -> usize {
        match self.name {
            "mistral" | "mixtral" | "gemma3_text" => 4096 * 32,
            "qwen2" | "qwen3" | "qwen3_moe" | "smollm3" => 32768,
            "gemma2" => 8192,
            "phi3" => 4096,
            _ => 2048,
        }
    }

    /// # Errors
    /// [`ModelError::UnknownKey`] for a key that is not known, is not one of `ignored`, and has a value with an effect.
    pub(super) fn check_keys(&self, json: &Json, ignored: &[String]) -> Result<(), ModelError> {
        let is_known = |key: &str| {
            READ.contains(&key)
                || self.keys.contains(&key)
                || HARMLESS.contains(&key)
                || ignored.iter().any(|known| known == key)
        };
        let is_off = |key: &str, value: &Json| match value {
            Json::Null | Json::Bool(false) => true,
            Json::Array(values) => values.is_empty(),
            Json::Object(values) => values.is_empty(),
            Json::Number(number) => NEUTRAL.iter().any(|off| off.0 == key && number.as_f64() == Some(off.1)),
            _ => false,
        };
        let unknown = json.as_object().into_iter().flatten().find(|(key, value)| !is_known(key) && !is_off(key, value));
        match unknown {
            Some((key, value)) => Err(ModelError::UnknownKey { key: key.clone(), value: value.to_string() }),
            None => Ok(()),
        }
    }
}
