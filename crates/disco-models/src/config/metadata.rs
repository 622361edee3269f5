//! The configuration in the metadata of a GGUF file. Source of keys and of what files leave out: llama.cpp's
//! `llama-model.cpp` and `convert_hf_to_gguf.py`.

use candle_core::quantized::gguf_file::{Content, Value};

use super::scaling::{DIVISORS, LONG_DIVISORS};
use super::{
    Activation, Config, ExpertSplit, Experts, Features, Pairs, SamplingDefaults, Scaling, check_layers, missing,
};
use crate::ModelError;

/// Tokens that end a text or a turn whatever the metadata says, as in llama.cpp: many files name only one of several ends.
const ENDS: [&str; 9] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<EOT>",
];

/// The key for what a file is: a model, an adapter, the image tower of a model.
const TYPE: &str = "general.type";

/// The architectures that can be computed.
const ARCHITECTURES: [&str; 10] =
    ["llama", "qwen2", "qwen3", "qwen3moe", "phi3", "gemma2", "gemma3", "olmo2", "smollm3", "granite"];

/// Keys of an architecture that are read.
const READ: [&str; 35] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_length",
    "attn_logit_softcapping",
    "block_count",
    "context_length",
    "embedding_length",
    "embedding_scale",
    "expert_count",
    "expert_feed_forward_length",
    "expert_used_count",
    "expert_weights_norm",
    "feed_forward_length",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "vocab_size",
    // These do not change what a model computes.
    "tensor_data_layout",
    "sub_type",
];

/// Keys of other architectures, and the values with which each has no effect.
const NEUTRAL: [(&str, &[f64]); 14] = [
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    // None, which is that of the architecture, and softmax.
    ("expert_gating_func", &[0.0, 1.0]),
    ("expert_group_count", &[0.0, 1.0]),
    ("expert_group_used_count", &[0.0, 1.0]),
    ("expert_shared_count", &[0.0]),
    ("expert_shared_feed_forward_length", &[0.0]),
    ("expert_weights_scale", &[0.0, 1.0]),
    ("interleave_moe_layer_step", &[1.0]),
    ("leading_dense_block_count", &[0.0]),
    ("nextn_predict_layers", &[0.0]),
    ("pooling_type", &[0.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
];

/// Typed access to the metadata of a file.
struct Metadata<'a> {
    content: &'a Content,
    architecture: &'a str,
}

impl Config {
    /// Reads the metadata of a GGUF file. Texts end with the tokens of its keys and with tokens that are ends by their
    /// names (`<|eot_id|>`, `<|im_end|>`, …).
    ///
    /// # Errors
    /// The model has another architecture or uses an unsupported feature; a key is missing, has the wrong type, or is not
    /// understood.
    pub fn from_gguf(content: &Content) -> Result<Self, ModelError> {
        Self::from_metadata(content, &[], |tensor| content.tensor_infos.contains_key(tensor))
    }

    /// `ignored`: keys that may be unknown. `has`: whether there is a tensor, also one of a type that candle can't hold.
    pub(super) fn from_metadata(
        content: &Content,
        ignored: &[String],
        has: impl Fn(&str) -> bool,
    ) -> Result<Self, ModelError> {
        let keys = Metadata::of(content)?;
        if let Some(Value::String(kind)) = content.metadata.get(TYPE)
            && kind != "model"
        {
            return Err(ModelError::Feature { feature: format!("a file of the type {kind:?} ({TYPE})") });
        }
        keys.check(ignored)?;
        let dim = keys.required("embedding_length")?;
        let heads = keys.required("attention.head_count")?;
        let layers = keys.required("block_count")?;
        check_layers(layers)?;
        let embedding = content.tensor_infos.get("token_embd.weight");
        let rows = embedding.and_then(|info| info.shape.dims().first().copied());
        let head_dim = keys.number("attention.key_length")?.unwrap_or(dim.checked_div(heads).unwrap_or(0));
        if keys.number("attention.value_length")?.is_some_and(|width| width != head_dim) {
            return Err(ModelError::Feature { feature: keys.key("attention.value_length (another width of values)") });
        }
        let features = keys.features(layers, dim, heads, head_dim, &has)?;
        let is_interleaved = ["llama", "smollm3", "granite"].contains(&keys.architecture);
        Self {
            dim,
            layers,
            heads,
            kv_heads: keys.number("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            rotated: keys.number("rope.dimension_count")?.unwrap_or(head_dim),
            ffn: features.experts.map_or_else(|| keys.required("feed_forward_length"), |experts| Ok(experts.ffn))?,
            vocabulary: rows.map_or_else(|| keys.required("vocab_size"), Ok)?,
            context: keys.required("context_length")?,
            eps: keys
                .float("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| missing(&keys.key("attention.layer_norm_rms_epsilon")))?,
            rope_base: keys.float("rope.freq_base")?.unwrap_or(10_000.0) as f32,
            scaling: keys.scaling(&has)?,
            pairs: if is_interleaved { Pairs::Interleaved } else { Pairs::Halves },
            tied: !has("output.weight"),
            eos: keys.ends()?,
            sampling: SamplingDefaults::default(),
            features,
            expert_split: ExpertSplit::default(),
        }
        .checked()
    }
}

impl<'a> Metadata<'a> {
    /// # Errors
    /// The architecture is missing, or is not one that can be computed.
    fn of(content: &'a Content) -> Result<Self, ModelError> {
        let key = "general.architecture";
        let architecture = match content.metadata.get(key) {
            Some(Value::String(text)) => text.as_str(),
            Some(other) => return Err(wrong(key, "a text", other)),
            None => return Err(missing(key)),
        };
        if ARCHITECTURES.contains(&architecture) {
            return Ok(Self { content, architecture });
        }
        let known = format!("{} (of GGUF files)", ARCHITECTURES.join(", "));
        Err(ModelError::Architecture { found: architecture.into(), known })
    }

    /// # Errors
    /// [`ModelError::UnknownKey`] for a key of the architecture that is not known, is not one of `ignored`, and is not off.
    fn check(&self, ignored: &[String]) -> Result<(), ModelError> {
        let is_neutral = |name: &str, number: f64| NEUTRAL.iter().any(|off| off.0 == name && off.1.contains(&number));
        let is_off = |name: &str, value: &Value| match value {
            Value::Bool(is_on) => *is_on == (name == "attention.causal"),
            Value::Array(values) => values.is_empty(),
            Value::U32(number) => is_neutral(name, (*number).into()),
            Value::F32(number) => is_neutral(name, (*number).into()),
            _ => false,
        };
        let own = self.content.metadata.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(self.architecture)?.strip_prefix('.')?;
            (!READ.contains(&name) && !ignored.contains(key) && !is_off(name, value)).then_some((key, value))
        });
        match own.min_by_key(|(key, _)| *key) {
            Some((key, value)) => Err(ModelError::UnknownKey { key: key.clone(), value: format!("{value:?}") }),
            None => Ok(()),
        }
    }

    /// The differences of the architecture from llama. Weights of Gemma's norms have the 1 added.
    fn features(
        &self,
        layers: usize,
        dim: usize,
        heads: usize,
        head_dim: usize,
        has: &impl Fn(&str) -> bool,
    ) -> Result<Features, ModelError> {
        let window = self.number("attention.sliding_window")?.filter(|window| *window > 0);
        let all = Features {
            input_bias: has("blk.0.attn_q.bias"),
            output_bias: has("blk.0.attn_output.bias"),
            ffn_bias: has("blk.0.ffn_down.bias"),
            experts: self.experts()?,
            window,
            ..Features::default()
        };
        let features = match self.architecture {
            "qwen3" | "qwen3moe" => Features { head_norms: true, ..all },
            "phi3" => Features { fused: has("blk.0.attn_qkv.weight"), ..all },
            "olmo2" if window.is_some() => {
                return Err(ModelError::Feature { feature: self.key("attention.sliding_window (OLMo 3)") });
            }
            "olmo2" => Features { pre_norms: false, post_norms: true, joint_head_norms: true, ..all },
            "smollm3" => {
                Features { unrotated: (0..layers).filter(|layer| (layer + 1).is_multiple_of(4)).collect(), ..all }
            }
            "granite" => Features {
                unrotated: if self.rotates()? { Vec::new() } else { (0..layers).collect() },
                embedding_factor: self.factor("embedding_scale")?.unwrap_or(1.0),
                residual_factor: self.factor("residual_scale")?.unwrap_or(1.0),
                logits_divisor: self.factor("logit_scale")?.unwrap_or(1.0),
                attention_factor: self.factor("attention.scale")?,
                ..all
            },
            "gemma2" | "gemma3" => {
                let large = if self.architecture == "gemma2" { 46 } else { 62 };
                // The factor of the models with 27 billion weights, which files do not have.
                let width = if layers == large { dim.checked_div(heads).unwrap_or(1) } else { head_dim };
                let features = Features {
                    embedding_factor: (dim as f64).sqrt(),
                    attention_factor: Some((width.max(1) as f64).powf(-0.5)),
                    ..all
                };
                self.gemma(features, layers)?
            }
            _ => all,
        };
        self.refuse_unused(&features).map(|()| features)
    }

    /// What Gemma 2 and 3 have beside the factors of `all`.
    fn gemma(&self, all: Features, layers: usize) -> Result<Features, ModelError> {
        let base = self.float("rope.freq_base_swa")?;
        let all = Features { post_norms: true, wide_norms: true, activation: Activation::GeluTanh, ..all };
        Ok(if self.architecture == "gemma2" {
            Features {
                window: Some(all.window.unwrap_or(4096)),
                score_cap: Some(self.factor("attn_logit_softcapping")?.unwrap_or(50.0)),
                logits_cap: Some(self.factor("final_logit_softcapping")?.unwrap_or(30.0)),
                full_layers: self.full_layers(layers, 2)?,
                ..all
            }
        } else {
            Features {
                head_norms: true,
                logits_cap: self.factor("final_logit_softcapping")?,
                full_layers: self.full_layers(layers, 6)?,
                window_rope_base: all.window.map(|_| base.unwrap_or(10_000.0) as f32),
                ..all
            }
        })
    }

    /// # Errors
    /// A key of other architectures, which would change the results and is not used.
    fn refuse_unused(&self, features: &Features) -> Result<(), ModelError> {
        let is_granite = self.architecture == "granite";
        let is_gemma = features.activation == Activation::GeluTanh;
        let keys = [
            ("attention.scale", is_granite),
            ("embedding_scale", is_granite),
            ("logit_scale", is_granite),
            ("residual_scale", is_granite),
            ("attn_logit_softcapping", features.score_cap.is_some()),
            ("attention.sliding_window_pattern", is_gemma),
            ("final_logit_softcapping", is_gemma),
            ("rope.freq_base_swa", self.architecture == "gemma3"),
        ];
        let unused = keys.into_iter().filter(|(_, is_used)| !is_used).map(|(name, _)| self.key(name));
        match unused.into_iter().find(|key| self.content.metadata.contains_key(key)) {
            Some(key) => Err(ModelError::Feature { feature: format!("{key} of a model of {}", self.architecture) }),
            None => Ok(()),
        }
    }

    /// Whether Granite rotates queries and keys: this key says so, which means nothing for others.
    fn rotates(&self) -> Result<bool, ModelError> {
        self.flag("rope.scaling.finetuned").map(|rotates| rotates.unwrap_or(true))
    }

    fn experts(&self) -> Result<Option<Experts>, ModelError> {
        let Some(count) = self.number("expert_count")?.filter(|count| *count > 0) else { return Ok(None) };
        if !["llama", "qwen3moe"].contains(&self.architecture) {
            return Err(ModelError::Feature { feature: self.key("expert_count") });
        }
        let ffn = self.number("expert_feed_forward_length")?;
        Ok(Some(Experts {
            count,
            ffn: ffn.map_or_else(|| self.required("feed_forward_length"), Ok)?,
            per_token: self.required("expert_used_count")?,
            normalises: self.flag("expert_weights_norm")?.unwrap_or(true),
        }))
    }

    /// The layers without a window: each `period`-th, unless the file says so itself.
    fn full_layers(&self, layers: usize, period: usize) -> Result<Vec<usize>, ModelError> {
        let name = "attention.sliding_window_pattern";
        let key = self.key(name);
        let period = match self.content.metadata.get(&key) {
            Some(Value::Array(windowed)) if windowed.len() == layers => {
                let full = (0..layers).map(|layer| windowed[layer].to_bool().map(|windowed| (layer, !windowed)));
                let full = full.collect::<Result<Vec<_>, _>>().map_err(|_| wrong(&key, "flags", &windowed[0]))?;
                return Ok(full.into_iter().filter(|(_, is_full)| *is_full).map(|(layer, _)| layer).collect());
            }
            _ => self.number(name)?.unwrap_or(period).max(1),
        };
        Ok((0..layers).filter(|layer| (layer + 1).is_multiple_of(period)).collect())
    }

    fn scaling(&self, has: &impl Fn(&str) -> bool) -> Result<Scaling, ModelError> {
        match self.scaling_of_keys(has)? {
            scaling if !has(DIVISORS) => Ok(scaling),
            Scaling::None => Ok(Scaling::InFile),
            scaling => Err(ModelError::Feature { feature: format!("the rope scaling {scaling:?} beside {DIVISORS}") }),
        }
    }

    fn scaling_of_keys(&self, has: &impl Fn(&str) -> bool) -> Result<Scaling, ModelError> {
        let factor = self.float("rope.scaling.factor")?.map(|factor| factor as f32);
        let attention = self.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let original = self.number("rope.scaling.original_context_length")?;
        let type_key = self.key("rope.scaling.type");
        let kind = match self.content.metadata.get(&type_key) {
            // phi3 writes no type.
            None if has(LONG_DIVISORS[1]) => "longrope",
            // Older files have a factor without a type, or by another name.
            None => "linear",
            Some(Value::String(kind)) => kind,
            Some(other) => return Err(wrong(&type_key, "a text", other)),
        };
        let original_of =
            |original: Option<usize>| original.map_or_else(|| self.required("context_length"), Ok::<_, ModelError>);
        match kind {
            "none" => Ok(Scaling::None),
            "linear" if attention == 1.0 => {
                let factor = factor.or(self.float("rope.scale_linear")?.map(|factor| factor as f32));
                let factor = factor.filter(|factor| ![0.0, 1.0].contains(factor));
                Ok(factor.map_or(Scaling::None, |factor| Scaling::Linear { factor }))
            }
            "yarn" => {
                let factor = factor.ok_or_else(|| missing(&self.key("rope.scaling.factor")))?;
                Ok(Scaling::Yarn {
                    factor,
                    fast: self.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0) as f32,
                    slow: self.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0) as f32,
                    context: original_of(original)?,
                    attention: (attention * (1.0 + 0.1 * f64::from(factor.max(1.0)).ln())) as f32,
                    truncates: true,
                })
            }
            "longrope" => Ok(Scaling::LongInFile { context: original_of(original)?, attention: attention as f32 }),
            other => {
                Err(ModelError::Feature { feature: format!("rope scaling {other:?} with a factor of {attention}") })
            }
        }
    }

    /// The tokens that end a text, by the keys and by the names of tokens.
    fn ends(&self) -> Result<Vec<u32>, ModelError> {
        let eos = ["eos", "eot", "eom"].map(|end| self.whole(&format!("tokenizer.ggml.{end}_token_id")));
        let mut eos = eos.into_iter().filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?;
        if let Some(Value::Array(tokens)) = self.content.metadata.get("tokenizer.ggml.tokens") {
            let is_end = |token: &Value| matches!(token, Value::String(text) if ENDS.contains(&text.as_str()));
            eos.extend((0..).zip(tokens).filter(|(_, token)| is_end(token)).map(|(number, _)| number));
        }
        eos.sort_unstable();
        eos.dedup();
        Ok(eos.into_iter().map(|token| token as u32).collect())
    }

    /// The key `name` of the architecture.
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn required(&self, name: &str) -> Result<usize, ModelError> {
        self.number(name)?.ok_or_else(|| missing(&self.key(name)))
    }

    fn number(&self, name: &str) -> Result<Option<usize>, ModelError> {
        self.whole(&self.key(name))
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, ModelError> {
        let key = self.key(name);
        match self.content.metadata.get(&key) {
            None => Ok(None),
            Some(Value::Bool(is_on)) => Ok(Some(*is_on)),
            Some(other) => Err(wrong(&key, "true or false", other)),
        }
    }

    /// An optional whole number of any integer type.
    fn whole(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.content.metadata.get(key) else { return Ok(None) };
        let signed = |number: i64| usize::try_from(number).ok();
        let number = match value {
            Value::U8(number) => Some((*number).into()),
            Value::U16(number) => Some((*number).into()),
            Value::U32(number) => Some(*number as usize),
            Value::U64(number) => usize::try_from(*number).ok(),
            Value::I8(number) => signed((*number).into()),
            Value::I16(number) => signed((*number).into()),
            Value::I32(number) => signed((*number).into()),
            Value::I64(number) => signed(*number),
            _ => None,
        };
        number.map(Some).ok_or_else(|| wrong(key, "a whole number", value))
    }

    /// A float; `None` for 0, which stands for none.
    fn factor(&self, name: &str) -> Result<Option<f64>, ModelError> {
        Ok(self.float(name)?.filter(|factor| *factor != 0.0))
    }

    fn float(&self, name: &str) -> Result<Option<f64>, ModelError> {
        let key = self.key(name);
        match self.content.metadata.get(&key) {
            None => Ok(None),
            Some(Value::F32(number)) => Ok(Some((*number).into())),
            Some(Value::F64(number)) => Ok(Some(*number)),
            Some(other) => Err(wrong(&key, "a float", other)),
        }
    }
}

fn wrong(key: &str, expected: &str, found: &Value) -> ModelError {
    ModelError::Key { key: key.into(), why: format!("expected {expected}, got {:?}", found.value_type()) }
}
