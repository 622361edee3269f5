//! The features of a model, from the keys of its `config.json`.

use serde_json::Value as Json;

use super::family::{Family, SLIDES};
use super::{Activation, Experts, Features, check_layers, json, missing};
use crate::ModelError;

impl Features {
    /// The features of a model of `layers` layers. Keys of `ignored` may be unknown.
    ///
    /// # Errors
    /// The family or a key is not known; a key has the wrong type, or a value that is not supported.
    pub(super) fn from_json(json: &Json, layers: usize, ignored: &[String]) -> Result<Self, ModelError> {
        let family = Family::of(json)?;
        family.check_keys(json, ignored)?;
        check_layers(layers)?;
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
            let first = if family == "qwen3_moe" { 0 } else { json::number(json, "max_window_layers")?.unwrap_or(28) };
            features.full_layers = (0..layers.min(first)).collect();
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
            "mixtral" | "qwen3_moe" => features.read_experts(json, layers, family == "mixtral")?,
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
        (self.head_norms, self.post_norms) = (is_third, true);
        (self.norm_offset, self.wide_norms) = (1.0, true);
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
            // transformers has one mask for all layers of these families, whatever the key says.
            let has_one_mask = ["mistral", "mixtral", "phi3", "qwen3_moe"].contains(&Family::of(json)?.name);
            if has_one_mask && !self.full_layers.is_empty() {
                let feature = format!("{key}: layers with and without a window in this family");
                return Err(ModelError::Feature { feature });
            }
        }
        Ok(())
    }

    /// The experts of Mixtral, which normalises their shares, or of Qwen 3, of which some layers may have none.
    fn read_experts(&mut self, json: &Json, layers: usize, is_mixtral: bool) -> Result<(), ModelError> {
        let number = |key| json::number(json, key);
        let required = |key| number(key)?.ok_or_else(|| missing(key));
        // Two names of one key.
        let count = number("num_local_experts")?.or(number("num_experts")?);
        self.experts = Some(Experts {
            count: count.ok_or_else(|| missing("num_local_experts"))?,
            ffn: required(if is_mixtral { "intermediate_size" } else { "moe_intermediate_size" })?,
            per_token: required("num_experts_per_tok")?,
            normalises: is_mixtral || json::flag(json, "norm_topk_prob")?.unwrap_or(false),
        });
        if !is_mixtral {
            let (step, dense) = (number("decoder_sparse_step")?.unwrap_or(1), json::numbers(json, "mlp_only_layers")?);
            let is_dense = |layer: &usize| dense.contains(layer) || !(layer + 1).is_multiple_of(step);
            self.dense_layers = (0..layers).filter(is_dense).collect();
        }
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
