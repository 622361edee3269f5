//! The keys of `config.json`.

use serde_json::Value as Json;

use super::Family;
use crate::config::{
    Activation, Attention, Config, Dense, Experts, Growth, Layer, Mixer, NormKind, Pairs, Quantization, Rotary,
    Scaling, check_layers, json, missing,
};
use crate::error::ModelError;

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

/// Keys of a model of images and texts, beside those that hold for its text part.
pub(super) const OF_WRAPPERS: [&str; 28] = [
    "architectures",
    "audio_config",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "boi_token_index",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "eos_token_id",
    "image_token_id",
    "image_token_index",
    "mm_tokens_per_image",
    "model_type",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "quantization_config",
    "spatial_merge_size",
    "text_config",
    "tie_word_embeddings",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_start_token_id",
    "vision_soft_tokens_per_image",
    "vision_token_id",
];

/// The key for the growth of queries, among the parameters of rotary embeddings.
const BETA: &str = "llama_4_scaling_beta";

/// The key that turns the windows of some layers on; without it, the other keys of windows have no effect.
pub(super) const SLIDES: &str = "use_sliding_window";

/// Keys that do not change what a model computes: of training, of files, of other programs, of other kinds of layers.
const HARMLESS: [&str; 51] = [
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "aux_loss_alpha",
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
    // The number of machines that experts were split over.
    "ep_size",
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
    "seq_aux",
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

/// What a family reads where `config.json` has no key: the defaults of transformers.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    /// The number of kv heads, unless it is that of query heads, which it is, too, if the key is `null`.
    pub(super) kv_heads: Option<usize>,
    /// The width of a head, unless it is a share of the hidden state.
    pub(super) head_dim: Option<usize>,
    pub(super) context: usize,
    pub(super) rope_base: f64,
    pub(super) tied: bool,
    /// The key for the number of hidden units.
    pub(super) ffn: &'static str,
    /// The key for the activation, and the activation without it.
    pub(super) activation: (&'static str, Activation),
    /// The key for the epsilon of the norms, and the value without it, if it may be absent.
    pub(super) eps: (&'static str, Option<f64>),
    /// The share of a head that is rotated without the key `partial_rotary_factor`, if it may be less than 1.
    pub(super) rotary_share: Option<f64>,
    /// Whether queries may grow with their position.
    pub(super) grows: bool,
    /// The key of the rotary embeddings of layers without a window, if they have their own.
    pub(super) rope: Option<&'static str>,
}

impl Defaults {
    pub(super) const LLAMA: Self = Self {
        kv_heads: None,
        head_dim: None,
        context: 2048,
        rope_base: 1e4,
        tied: false,
        ffn: "intermediate_size",
        activation: ("hidden_act", Activation::Silu),
        eps: ("rms_norm_eps", None),
        rotary_share: None,
        grows: false,
        rope: None,
    };
}

/// The `config.json` of a family. A key that is absent or `null` is `None`; one of another type is an error.
pub(crate) struct Keys<'a> {
    pub(super) json: &'a Json,
    family: &'static Family,
}

/// The keys of `shared` and of `own`.
pub(super) const fn with<const A: usize, const B: usize, const N: usize>(
    shared: [&'static str; A],
    own: [&'static str; B],
) -> [&'static str; N] {
    assert!(A + B == N, "another number of keys");
    let mut all = [""; N];
    let mut next = 0;
    while next < N {
        all[next] = if next < A { shared[next] } else { own[next - A] };
        next += 1;
    }
    all
}

/// # Errors
/// [`ModelError::UnknownKey`] for a key that is none of `read`, `own` and `ignored`, and has a value with an effect.
pub(super) fn check(json: &Json, read: &[&str], own: &[&str], ignored: &[String]) -> Result<(), ModelError> {
    let is_known = |key: &str| {
        read.contains(&key) || own.contains(&key) || HARMLESS.contains(&key) || ignored.iter().any(|known| known == key)
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

impl<'a> Keys<'a> {
    pub(super) fn new(json: &'a Json, family: &'static Family) -> Self {
        Self { json, family }
    }

    /// # Errors
    /// Errors of [`check`].
    pub(super) fn check(&self, ignored: &[String]) -> Result<(), ModelError> {
        check(self.json, &READ, self.family.keys, ignored)
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<usize>, ModelError> {
        json::number(self.json, key)
    }

    pub(super) fn required(&self, key: &str) -> Result<usize, ModelError> {
        self.number(key)?.ok_or_else(|| missing(key))
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f64>, ModelError> {
        json::float(self.json, key)
    }

    /// A flag; false if it is absent.
    pub(super) fn flag(&self, key: &str) -> Result<bool, ModelError> {
        Ok(json::flag(self.json, key)?.unwrap_or(false))
    }

    /// Whether there is the key, also if it is `null`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.json.get(key).is_some()
    }

    /// A model whose layers are those of llama: norms before attention and feed-forward network, rotated queries and keys,
    /// a gated feed-forward network.
    pub(super) fn llama(&self, defaults: Defaults) -> Result<Config, ModelError> {
        let (dim, heads) = (self.required("hidden_size")?, self.required("num_attention_heads")?);
        let layers = self.required("num_hidden_layers")?;
        check_layers(layers)?;
        let context = self.number("max_position_embeddings")?.unwrap_or(defaults.context);
        let head_dim = match self.number("head_dim")? {
            Some(head_dim) => head_dim,
            None => defaults.head_dim.unwrap_or(dim.checked_div(heads).unwrap_or(0)),
        };
        let kv_heads = match self.number("num_key_value_heads")? {
            Some(kv_heads) => kv_heads,
            None if self.has("num_key_value_heads") => heads,
            None => defaults.kv_heads.unwrap_or(heads),
        };
        let own_flag = |key| Ok::<_, ModelError>(self.family.keys.contains(&key) && self.flag(key)?);
        let attention_bias = own_flag("attention_bias")?;
        let rotary = self.rotary(context, head_dim, defaults)?;
        let context = context.max(rotary.scaling.context());
        let attention = Attention {
            input_bias: attention_bias,
            output_bias: attention_bias,
            rotary: Some(rotary),
            ..Attention::new(heads, kv_heads, head_dim)
        };
        let dense = Dense {
            bias: own_flag("mlp_bias")?,
            activation: self.activation(defaults.activation)?,
            ..Dense::new(self.required(defaults.ffn)?)
        };
        let mut config =
            Config::new(dim, vec![Layer::new(attention, dense); layers], self.required("vocab_size")?, context);
        let (eps, default) = defaults.eps;
        config.eps = self.float(eps)?.or(default).ok_or_else(|| missing(eps))?;
        config.norm = NormKind::Rms { offset: 0.0, wide: false };
        config.tied = json::flag(self.json, "tie_word_embeddings")?.unwrap_or(defaults.tied);
        config.eos = ends(self.json)?;
        let quantization = Quantization::from_json(self.json)?;
        config.scale_block = quantization.scale_block.unwrap_or(config.scale_block);
        config.packing = quantization.packing;
        config.names = self.family.names;
        Ok(config)
    }

    pub(super) fn activation(&self, (key, default): (&str, Activation)) -> Result<Activation, ModelError> {
        match json::text(self.json, key)? {
            None => Ok(default),
            Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
            Some("silu") => Ok(Activation::Silu),
            Some("relu") => Ok(Activation::Relu),
            Some(other) => Err(ModelError::Feature { feature: format!("the activation {other:?}") }),
        }
    }

    /// The rotary embeddings, from `rope_parameters` (transformers 5), else from `rope_scaling`. Absent keys are taken
    /// from the top: `rope_theta`, `partial_rotary_factor`.
    fn rotary(&self, context: usize, head_dim: usize, defaults: Defaults) -> Result<Rotary, ModelError> {
        let config = self.json;
        let parent = if config["rope_parameters"].is_null() { "rope_scaling" } else { "rope_parameters" };
        let parameters = &config[parent];
        let own = defaults.rope.map(|name| &parameters[name]).filter(|own| own.is_object());
        let parameters = own.unwrap_or(parameters);
        if parent == "rope_parameters" && !config["rope_scaling"].is_null() && config["rope_scaling"] != *parameters {
            let both = "both rope_parameters and rope_scaling are set, and differ; remove one of them";
            return Err(ModelError::Inconsistent(both.into()));
        }
        let is_flat = parameters.as_object().is_some_and(|values| !values.values().any(Json::is_object));
        if !parameters.is_null() && !is_flat {
            return Err(ModelError::Feature { feature: format!("{parent} that differ between layers") });
        }
        let key = |name: &str| match (json::float(parameters, name)?, json::float(config, name)?) {
            (Some(own), Some(top)) if own != top => Err(ModelError::Inconsistent(format!(
                "both {name} ({top}) and {parent}.{name} ({own}) are set, and differ"
            ))),
            (own, top) => Ok(own.or(top)),
        };
        let growth = match json::float(parameters, BETA)? {
            Some(beta) if defaults.grows => {
                let context = json::number(parameters, "original_max_position_embeddings")?.unwrap_or(context);
                Some(Growth { beta, context: context.max(1) })
            }
            None => None,
            Some(beta) => {
                return Err(ModelError::UnknownKey { key: format!("{parent}.{BETA}"), value: beta.to_string() });
            }
        };
        let scaling = Scaling::from_json(config, context, parent, parameters)?;
        let is_proportional = matches!(scaling, Scaling::Proportional { .. });
        if is_proportional && json::float(config, "partial_rotary_factor")?.is_some() {
            let feature = "partial_rotary_factor beside proportional rope_parameters".into();
            return Err(ModelError::Feature { feature });
        }
        // As in transformers, the one at the top is a default.
        let share = json::float(parameters, "partial_rotary_factor")?.or(json::float(config, "partial_rotary_factor")?);
        let share = share.filter(|_| !is_proportional);
        let share = share.or(defaults.rotary_share).unwrap_or(1.0);
        if share != 1.0 && defaults.rotary_share.is_none() {
            return Err(ModelError::Feature { feature: format!("partial_rotary_factor {share}") });
        }
        Ok(Rotary {
            base: key("rope_theta")?.unwrap_or(defaults.rope_base) as f32,
            scaling,
            pairs: Pairs::Halves,
            elements: (head_dim as f64 * share) as usize,
            growth,
        })
    }

    /// The key `sliding_window`, with the default of transformers; `null` is no window.
    pub(super) fn window(&self) -> Result<Option<usize>, ModelError> {
        if self.has("sliding_window") { self.number("sliding_window") } else { Ok(Some(4096)) }
    }

    /// Gives the window to all layers but the full ones: by `layer_types`, or by `is_full` without that key.
    pub(super) fn windows(
        &self,
        config: &mut Config,
        window: Option<usize>,
        is_full: impl Fn(usize) -> bool,
    ) -> Result<(), ModelError> {
        let is_full = self.full_layers(config.layers.len(), is_full)?;
        for (layer, is_full) in config.layers.iter_mut().zip(is_full) {
            if let Some(attention) = layer.attention_mut() {
                attention.window = window.filter(|_| !is_full);
            }
        }
        Ok(())
    }

    /// Whether each layer attends to all tokens: by `layer_types`, or by `is_full` without that key.
    pub(super) fn full_layers(&self, layers: usize, is_full: impl Fn(usize) -> bool) -> Result<Vec<bool>, ModelError> {
        let kinds = self.layer_types(layers)?;
        Ok((0..layers).map(|layer| kinds.map_or_else(|| is_full(layer), |kinds| kinds[layer] == FULL)).collect())
    }

    /// The windows of layers that only `use_sliding_window` turns on: from layer `first` on.
    pub(super) fn windows_from(&self, config: &mut Config, first: usize) -> Result<(), ModelError> {
        let window = if self.flag(SLIDES)? { self.window()? } else { None };
        self.windows(config, window, |layer| layer < first)
    }

    /// The kinds of the layers, if the key `layer_types` says them.
    fn layer_types(&self, layers: usize) -> Result<Option<&'a [Json]>, ModelError> {
        let kinds = &self.json[LAYER_TYPES];
        if kinds.is_null() {
            return Ok(None);
        }
        match kinds.as_array() {
            Some(kinds) if kinds.len() == layers => Ok(Some(kinds)),
            _ => Err(json::wrong(LAYER_TYPES, &format!("{layers} types, one per layer"), kinds)),
        }
    }

    /// # Errors
    /// The key `layer_types` has another kind for a layer than is computed.
    pub(super) fn check_layer_types(&self, config: &Config) -> Result<(), ModelError> {
        let kinds = self.layer_types(config.layers.len())?.unwrap_or_default();
        let is_computed = |(kind, layer): &(&Json, &Layer)| {
            let computed = match &layer.mixer {
                Mixer::Delta(_) => LINEAR,
                Mixer::Attention(Attention { window: None, .. }) => FULL,
                Mixer::Attention(_) => "sliding_attention",
            };
            **kind == computed
        };
        match kinds.iter().zip(&config.layers).find(|pair| !is_computed(pair)) {
            None => Ok(()),
            Some((kind, _)) => Err(ModelError::Feature {
                feature: format!("a layer of the type {kind} ({LAYER_TYPES}) in this model"),
            }),
        }
    }

    /// A mixture of experts; `ffn` is the key for the hidden units of one, and `normalises` holds whatever the
    /// key `norm_topk_prob` says.
    pub(super) fn experts(&self, ffn: &str, normalises: bool) -> Result<Experts, ModelError> {
        // Names of one key.
        let names = ["num_local_experts", "num_experts", "n_routed_experts"];
        let count = names.into_iter().find_map(|name| self.number(name).transpose()).transpose()?;
        let count = count.ok_or_else(|| missing("num_local_experts"))?;
        Ok(Experts {
            normalises: normalises || self.flag("norm_topk_prob")?,
            activation: self.activation(Defaults::LLAMA.activation)?,
            ..Experts::new(count, self.required(ffn)?, self.required("num_experts_per_tok")?)
        })
    }
}

const LAYER_TYPES: &str = "layer_types";
const FULL: &str = "full_attention";
const LINEAR: &str = "linear_attention";

/// The tokens of the key `eos_token_id`: none, one, or a list.
pub(super) fn ends(json: &Json) -> Result<Vec<u32>, ModelError> {
    let key = "eos_token_id";
    let token = |token: &Json| token.as_u64().and_then(|token| u32::try_from(token).ok());
    let tokens = match &json[key] {
        Json::Null => Some(Vec::new()),
        Json::Array(tokens) => tokens.iter().map(token).collect(),
        one => token(one).map(|token| vec![token]),
    };
    tokens.ok_or_else(|| json::wrong(key, "a token or a list of tokens", &json[key]))
}
