//! Families of models: the differences of each from llama, and their keys in `config.json`.

use serde_json::Value as Json;

use super::{json, missing};
use crate::ModelError;

/// The differences of a family from the transformer of llama.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Features {
    /// Whether the logits use the embedding matrix unless `config.json` says so itself.
    pub ties: bool,
    /// One matrix for query, key and value, and one for gate and up.
    pub fused: bool,
    /// Biases of query, key and value.
    pub input_bias: bool,
    /// A bias of the attention's output.
    pub output_bias: bool,
    /// Biases of the feed-forward network.
    pub ffn_bias: bool,
    /// RMS norms of each head of query and key, before they are rotated.
    pub head_norms: bool,
    /// RMS norms of query and key over all heads together, before they are rotated.
    pub joint_head_norms: bool,
    /// Norms before attention and feed-forward network.
    pub pre_norms: bool,
    /// Norms after attention and feed-forward network.
    pub post_norms: bool,
    /// Added to the weights of all norms.
    pub norm_offset: f64,
    /// The activation of the feed-forward network's gate.
    pub activation: Activation,
    /// In layers with a window, a token attends to this many last tokens, itself among them.
    pub window: Option<usize>,
    /// Layers without the window.
    pub full_layers: Vec<usize>,
    /// Base of the frequencies of rotary embeddings in layers with the window, without scaling; `None`: as in all layers.
    pub window_rope_base: Option<f32>,
    /// The products of query and key stay between this and its negative, by a hyperbolic tangent.
    pub score_cap: Option<f64>,
    /// The logits stay between this and its negative.
    pub logits_cap: Option<f64>,
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
    /// Outputs and inputs of the block of an 8-bit matrix that has one scale, if scales are of blocks.
    pub scale_block: [usize; 2],
    /// The experts in place of the feed-forward network.
    pub experts: Option<Experts>,
}

/// A mixture of experts, of which a router chooses some for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// How many of them compute each token.
    pub per_token: usize,
    /// Whether the shares of the chosen experts sum up to 1; otherwise those of all experts do.
    pub normalises: bool,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// x · σ(x).
    Silu,
    /// GELU by a hyperbolic tangent.
    GeluTanh,
}

impl Default for Features {
    /// Those of llama.
    fn default() -> Self {
        Self {
            ties: false,
            fused: false,
            input_bias: false,
            output_bias: false,
            ffn_bias: false,
            head_norms: false,
            joint_head_norms: false,
            pre_norms: true,
            post_norms: false,
            norm_offset: 0.0,
            activation: Activation::Silu,
            window: None,
            full_layers: Vec::new(),
            window_rope_base: None,
            score_cap: None,
            logits_cap: None,
            unrotated: Vec::new(),
            embedding_factor: 1.0,
            attention_factor: None,
            residual_factor: 1.0,
            logits_divisor: 1.0,
            scale_block: [128, 128],
            experts: None,
        }
    }
}

/// A family that can be computed.
pub(super) struct Family {
    /// The key `model_type`.
    name: &'static str,
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
        keys: &["attention_bias", SLIDES, "sliding_window", "max_window_layers"],
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
const SLIDES: &str = "use_sliding_window";

/// The most layers that are taken for right.
const MAX_LAYERS: usize = 1 << 16;

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
    /// [`ModelError::UnknownKey`] for a key that is not known, is not one of `ignored`, and is neither `null` nor `false`.
    fn check_keys(&self, json: &Json, ignored: &[String]) -> Result<(), ModelError> {
        let is_known = |key: &str| {
            READ.contains(&key)
                || self.keys.contains(&key)
                || HARMLESS.contains(&key)
                || ignored.iter().any(|known| known == key)
        };
        let is_off = |value: &Json| match value {
            Json::Null | Json::Bool(false) => true,
            Json::Array(values) => values.is_empty(),
            Json::Object(values) => values.is_empty(),
            _ => false,
        };
        let unknown = json.as_object().into_iter().flatten().find(|(key, value)| !is_known(key) && !is_off(value));
        match unknown {
            Some((key, value)) => Err(ModelError::UnknownKey { key: key.clone(), value: value.to_string() }),
            None => Ok(()),
        }
    }
}

impl Features {
    /// The features of a model of `layers` layers. Keys of `ignored` may be unknown.
    ///
    /// # Errors
    /// The family or a key is not known; a key has the wrong type, or a value that is not supported.
    pub(super) fn from_json(json: &Json, layers: usize, ignored: &[String]) -> Result<Self, ModelError> {
        let family = Family::of(json)?;
        family.check_keys(json, ignored)?;
        if layers > MAX_LAYERS {
            return Err(ModelError::Inconsistent(format!("{layers} layers, and at most {MAX_LAYERS} can be right")));
        }
        let family = family.name;
        let flag = |key| Ok::<_, ModelError>(json::flag(json, key)?.unwrap_or(false));
        let all = Self::default();
        let mut features = match family {
            "qwen2" => Self { input_bias: true, ..all },
            "mixtral" => Self { window: json::number(json, "sliding_window")?, ..all },
            "phi3" => Self { fused: true, window: json::number(json, "sliding_window")?, ..all },
            "mistral" => Self { window: window(json)?, ..all },
            family => {
                let (attention, head_norms) = (flag("attention_bias")?, family.starts_with("qwen3"));
                Self { input_bias: attention, output_bias: attention, ffn_bias: flag("mlp_bias")?, head_norms, ..all }
            }
        };
        if flag(SLIDES)? {
            features.window = window(json)?;
            // The default of transformers.
            features.full_layers = (0..layers.min(json::number(json, "max_window_layers")?.unwrap_or(28))).collect();
            if family == "smollm3" && json["layer_types"].is_null() {
                return Err(ModelError::Feature { feature: format!("{SLIDES} without layer_types") });
            }
        }
        if ["gemma2", "gemma3_text"].contains(&family) {
            features.read_gemma(json, layers)?;
        }
        features.scale_block = quantization(json)?.unwrap_or(features.scale_block);
        features.activation = activation(json)?;
        features.read_layer_types(json, layers)?;
        features.ties = family.starts_with("gemma") || family == "smollm3";
        match family {
            "smollm3" => features.unrotated = unrotated(json, layers)?,
            "mixtral" | "qwen3_moe" => features.read_experts(json, family)?,
            "granite" => features.read_factors(json)?,
            "olmo2" => (features.pre_norms, features.post_norms, features.joint_head_norms) = (false, true, true),
            _ => (),
        }
        Ok(features)
    }

    /// The features of Gemma 2 and 3.
    fn read_gemma(&mut self, json: &Json, layers: usize) -> Result<(), ModelError> {
        let is_third = Family::of(json)?.has_window_rope();
        let width = json::number(json, "hidden_size")?.unwrap_or(0);
        let scale = json::float(json, "query_pre_attn_scalar")?.unwrap_or(256.0);
        let cap = |key, default| match json.get(key) {
            None => Ok(default),
            Some(_) => json::float(json, key),
        };
        let (scores, logits) = if is_third { (None, None) } else { (Some(50.0), Some(30.0)) };
        self.score_cap = cap("attn_logit_softcapping", scores)?;
        self.logits_cap = cap("final_logit_softcapping", logits)?;
        (self.head_norms, self.post_norms, self.norm_offset) = (is_third, true, 1.0);
        self.embedding_factor = (width as f64).sqrt();
        self.attention_factor = Some(scale.powf(-0.5));
        self.window = window(json)?;
        if self.window.is_none() {
            return Err(json::wrong("sliding_window", "a whole number", &Json::Null));
        }
        if is_third {
            let parameters = &json["rope_parameters"]["sliding_attention"];
            let base = json::float(parameters, "rope_theta")?.or(json::float(json, "rope_local_base_freq")?);
            self.window_rope_base = Some(base.unwrap_or(10_000.0) as f32);
            if parameters["rope_type"].as_str().is_some_and(|kind| kind != "default") {
                let feature = format!("a scaling of layers with a window ({})", parameters["rope_type"]);
                return Err(ModelError::Feature { feature });
            }
        }
        // Without `layer_types`, each second or sixth layer has no window.
        let pattern = json::number(json, "sliding_window_pattern")?.or(json::number(json, "_sliding_window_pattern")?);
        let pattern = pattern.unwrap_or(if is_third { 6 } else { 2 }).max(1);
        self.full_layers = (0..layers).filter(|layer| (layer + 1).is_multiple_of(pattern)).collect();
        Ok(())
    }

    /// Which layers have the window, if the key `layer_types` says so.
    fn read_layer_types(&mut self, json: &Json, layers: usize) -> Result<(), ModelError> {
        let key = "layer_types";
        if json[key].is_null() {
            return Ok(());
        }
        let kinds = json[key].as_array().filter(|kinds| kinds.len() == layers);
        let kinds = kinds.ok_or_else(|| json::wrong(key, &format!("{layers} types, one per layer"), &json[key]))?;
        let is_known = |kind: &Json| kind == "full_attention" || kind == "sliding_attention" && self.window.is_some();
        if let Some(other) = kinds.iter().find(|kind| !is_known(kind)) {
            return Err(ModelError::Feature { feature: format!("a layer of the type {other} ({key})") });
        }
        if self.window.is_some() {
            self.full_layers = (0..layers).filter(|layer| kinds[*layer] == "full_attention").collect();
        }
        Ok(())
    }

    /// Whether a token of the layer attends to the window only.
    pub(crate) fn is_windowed(&self, layer: usize) -> bool {
        self.window.is_some() && !self.full_layers.contains(&layer)
    }

    /// The key of the width of the feed-forward network or of an expert.
    pub(super) fn ffn_key(&self) -> &'static str {
        match self.experts {
            Some(_) if self.head_norms => "moe_intermediate_size",
            _ => "intermediate_size",
        }
    }

    /// The experts of Mixtral, which normalises their shares, and of Qwen 3.
    fn read_experts(&mut self, json: &Json, family: &str) -> Result<(), ModelError> {
        let number = |key| json::number(json, key);
        // Two names of one key.
        let count = number("num_local_experts")?.or(number("num_experts")?);
        let per_token = number("num_experts_per_tok")?.ok_or_else(|| missing("num_experts_per_tok"))?;
        let normalises = family == "mixtral" || json::flag(json, "norm_topk_prob")?.unwrap_or(false);
        let count = count.ok_or_else(|| missing("num_local_experts"))?;
        let has_dense = json["mlp_only_layers"].as_array().is_some_and(|layers| !layers.is_empty());
        if has_dense || number("decoder_sparse_step")?.is_some_and(|step| step != 1) {
            let feature = "a layer without experts beside layers with experts (mlp_only_layers, decoder_sparse_step)";
            return Err(ModelError::Feature { feature: feature.into() });
        }
        self.experts = Some(Experts { count, per_token, normalises });
        Ok(())
    }

    /// The factors of Granite.
    fn read_factors(&mut self, json: &Json) -> Result<(), ModelError> {
        let factor = |key| Ok::<_, ModelError>(json::float(json, key)?.unwrap_or(1.0));
        self.embedding_factor = factor("embedding_multiplier")?;
        self.attention_factor = Some(factor("attention_multiplier")?);
        self.residual_factor = factor("residual_multiplier")?;
        self.logits_divisor = factor("logits_scaling")?;
        if self.logits_divisor > 0.0 {
            return Ok(());
        }
        Err(ModelError::Inconsistent(format!("logits_scaling is {}, and must be positive", self.logits_divisor)))
    }
}

/// The activation of the keys `hidden_activation` (Gemma), else `hidden_act`.
fn activation(json: &Json) -> Result<Activation, ModelError> {
    let is_gemma = Family::of(json)?.name.starts_with("gemma");
    let name = json::text(json, if is_gemma { "hidden_activation" } else { "hidden_act" })?;
    match name {
        None if is_gemma => Ok(Activation::GeluTanh),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        None | Some("silu") => Ok(Activation::Silu),
        Some(other) => Err(ModelError::Feature { feature: format!("the activation {other:?}") }),
    }
}

/// The block of weights with a scale each, of the key `quantization_config`, if it is known.
///
/// # Errors
/// The weights are quantised in a way that is not supported: all but 8-bit floats (E4M3) whose activations are quantised
/// while they are computed, which is not done here, and costs no precision to leave out.
fn quantization(json: &Json) -> Result<Option<[usize; 2]>, ModelError> {
    let config = &json["quantization_config"];
    let refuse = |what: &str| {
        let feature = format!("quantised weights (quantization_config, {}{what})", config["quant_method"]);
        Err(ModelError::Feature { feature })
    };
    match config["quant_method"].as_str() {
        None if config.is_null() => Ok(None),
        Some("fp8" | "fbgemm_fp8") if config["activation_scheme"] == "static" => refuse(", activation_scheme static"),
        Some("fp8" | "fbgemm_fp8") => match config["weight_block_size"].as_array().map(Vec::as_slice) {
            None => Ok(None),
            Some([rows, columns]) => match (rows.as_u64(), columns.as_u64()) {
                (Some(rows @ 1..), Some(columns @ 1..)) => Ok(Some([rows as usize, columns as usize])),
                _ => {
                    Err(json::wrong("quantization_config.weight_block_size", "two sizes", &config["weight_block_size"]))
                }
            },
            _ => Err(json::wrong("quantization_config.weight_block_size", "two sizes", &config["weight_block_size"])),
        },
        Some("compressed-tensors") if config["format"] == "float-quantized" && config["kv_cache_scheme"].is_null() => {
            Ok(None)
        }
        Some("compressed-tensors") => refuse(&format!(", format {}", config["format"])),
        _ => refuse(""),
    }
}

/// The key `sliding_window`, with the default of transformers; `null` is no window.
fn window(json: &Json) -> Result<Option<usize>, ModelError> {
    if json.get("sliding_window").is_none() { Ok(Some(4096)) } else { json::number(json, "sliding_window") }
}

/// The layers of SmolLM3 whose flag in `no_rope_layers` is 0; without the key, each `no_rope_layer_interval`-th.
fn unrotated(json: &Json, layers: usize) -> Result<Vec<usize>, ModelError> {
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
