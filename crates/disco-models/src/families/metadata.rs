//! The metadata of GGUF files. Source of keys and of what files leave out: llama.cpp's `llama-model.cpp` and
//! `convert_hf_to_gguf.py`.

use disco_candle::weights::gguf::{self, Value};

use super::{Family, Gguf, Scheme};
use crate::config::{
    Attention, Config, DIVISORS, Dense, Experts, FeedForward, LONG_DIVISORS, Layer, Pairs, Rotary, Scaling,
    check_layers, missing,
};
use crate::error::ModelError;

/// Tokens that end a text or a turn whatever the metadata says, as in llama.cpp: many files name only one of several ends.
const ENDS: [&str; 11] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    MESSAGE_END,
    CALLS[0],
    CALLS[1],
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<EOT>",
];

/// The ends of an answer and of a call of a tool. Beside both, as in gpt-oss, [`MESSAGE_END`] ends a message, after which the text goes
/// on.
const CALLS: [&str; 2] = ["<|return|>", "<|call|>"];
const MESSAGE_END: &str = "<|end|>";

/// The key for what a file is: a model, an adapter, the image tower of a model.
const TYPE: &str = "general.type";

/// The key for the epsilon of LayerNorm, of families that list it.
pub(super) const LAYER_NORM_EPS: &str = "attention.layer_norm_epsilon";

/// The key for the layers behind the last one, which predict further tokens and are not computed, of families that list it.
pub(super) const FURTHER_LAYERS: &str = "nextn_predict_layers";

/// The key for the elements of latent vectors, of families that list it: [`Metadata::llama`] does not look at the width of values.
pub(super) const LATENT_RANK: &str = "attention.kv_lora_rank";

/// Keys that all families read.
const READ: [&str; 24] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "vocab_size",
    // These do not change what a model computes.
    "tensor_data_layout",
    "sub_type",
];

/// The keys of experts.
pub(super) const EXPERTS: [&str; 4] =
    ["expert_count", "expert_feed_forward_length", "expert_used_count", "expert_weights_norm"];

/// Keys of other architectures, and the values with which each has no effect.
const NEUTRAL: [(&str, &[f64]); 18] = [
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("expert_count", &[0.0]),
    ("expert_feed_forward_length", &[0.0]),
    ("expert_used_count", &[0.0]),
    // None, which is that of the architecture, and softmax.
    ("expert_gating_func", &[0.0, 1.0]),
    ("expert_group_count", &[0.0, 1.0]),
    ("expert_group_used_count", &[0.0, 1.0]),
    ("expert_shared_count", &[0.0]),
    ("expert_shared_feed_forward_length", &[0.0]),
    ("expert_weights_scale", &[0.0, 1.0]),
    ("interleave_moe_layer_step", &[1.0]),
    ("leading_dense_block_count", &[0.0]),
    (FURTHER_LAYERS, &[0.0]),
    ("pooling_type", &[0.0]),
    ("rope.scaling.yarn_ext_factor", &[1.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
];

/// Typed access to the metadata of a file.
pub(crate) struct Metadata<'a> {
    metadata: &'a gguf::Metadata,
    family: &'static Gguf,
    /// The rows of a tensor, also of a type that candle can't hold.
    rows: &'a dyn Fn(&str) -> Option<usize>,
}

impl<'a> Metadata<'a> {
    /// Reads the configuration. `ignored`: keys that may be unknown. `rows`: the first dimension of a tensor.
    ///
    /// # Errors
    /// The architecture is missing, or is not one that can be computed; a key is missing, has the wrong type, or is not
    /// understood.
    pub(crate) fn config(
        metadata: &gguf::Metadata,
        ignored: &[String],
        rows: &dyn Fn(&str) -> Option<usize>,
    ) -> Result<Config, ModelError> {
        let key = "general.architecture";
        let architecture = read(metadata, key, "a text", Value::text)?.ok_or_else(|| missing(key))?;
        let keys = Metadata { metadata, family: Family::gguf(&architecture)?, rows };
        if let Some(Value::String(kind)) = metadata.get(TYPE)
            && kind != "model"
        {
            return Err(ModelError::Feature { feature: format!("a file of the type {kind:?} ({TYPE})") });
        }
        keys.check(ignored)?;
        let mut config = (keys.family.read)(&keys)?;
        config.join_experts(&|layer, _| keys.has(&format!("blk.{layer}.ffn_gate_up_exps.weight")));
        config.checked()
    }

    /// A model whose layers are those of llama, with experts if the file has some.
    pub(super) fn mixture(&self, pairs: Pairs) -> Result<Config, ModelError> {
        let mut config = self.llama(pairs)?;
        if self.has_experts()? {
            let experts = self.experts()?;
            for layer in &mut config.layers {
                // Without a width of their own, experts are as wide as a network of all tokens.
                let width = layer.dense().map(|dense| dense.ffn).filter(|_| experts.ffn == 0);
                layer.feed_forward = FeedForward::Experts(Experts { ffn: width.unwrap_or(experts.ffn), ..experts });
            }
        }
        Ok(config)
    }

    /// A model whose layers are those of llama without experts.
    pub(super) fn llama(&self, pairs: Pairs) -> Result<Config, ModelError> {
        let dim = self.required("embedding_length")?;
        let heads = self.required("attention.head_count")?;
        let known = |key: &str| self.family.keys.contains(&key);
        let further = if known(FURTHER_LAYERS) { self.number(FURTHER_LAYERS)?.unwrap_or(0) } else { 0 };
        let layers = self.required("block_count")?.saturating_sub(further);
        check_layers(layers)?;
        let head_dim = self.number("attention.key_length")?.unwrap_or(dim.checked_div(heads).unwrap_or(0));
        let value_dim = self.number("attention.value_length")?.filter(|_| !known(LATENT_RANK));
        if value_dim.is_some_and(|width| width != head_dim) {
            return Err(ModelError::Feature { feature: self.key("attention.value_length (another width of values)") });
        }
        let attention = Attention {
            input_bias: self.has("blk.0.attn_q.bias"),
            output_bias: self.has("blk.0.attn_output.bias"),
            rotary: Some(Rotary {
                base: self.float("rope.freq_base")?.unwrap_or(10_000.0) as f32,
                scaling: self.scaling()?,
                pairs,
                elements: self.number("rope.dimension_count")?.unwrap_or(head_dim),
                growth: None,
            }),
            window: self.number("attention.sliding_window")?.filter(|window| *window > 0),
            ..Attention::new(heads, heads, head_dim)
        };
        let dense = Dense { bias: self.has("blk.0.ffn_down.bias"), ..Dense::new(0) };
        let vocabulary = self.rows("token_embd.weight").map_or_else(|| self.required("vocab_size"), Ok)?;
        let mut config =
            Config::new(dim, vec![Layer::new(attention, dense); layers], vocabulary, self.required("context_length")?);
        let kv_heads = self.by_layer("attention.head_count_kv", layers)?;
        let ffn = self.by_layer("feed_forward_length", layers)?;
        if ffn.is_empty() && !self.has_experts()? {
            return Err(missing(&self.key("feed_forward_length")));
        }
        for (number, layer) in config.layers.iter_mut().enumerate() {
            if let (FeedForward::Dense(dense), Some(ffn)) = (&mut layer.feed_forward, ffn.get(number)) {
                dense.ffn = *ffn;
            }
            if let (Some(attention), Some(kv_heads)) = (layer.attention_mut(), kv_heads.get(number)) {
                attention.kv_heads = *kv_heads;
            }
        }
        config.further_layers = further;
        let eps = if known(LAYER_NORM_EPS) { LAYER_NORM_EPS } else { "attention.layer_norm_rms_epsilon" };
        config.eps = self.float(eps)?.ok_or_else(|| missing(&self.key(eps)))?;
        config.tied = !self.has("output.weight");
        config.eos = self.ends()?;
        config.names = Scheme::GGUF;
        Ok(config)
    }

    /// Whether there is a tensor.
    pub(super) fn has(&self, tensor: &str) -> bool {
        self.rows(tensor).is_some()
    }

    /// The first dimension of a tensor.
    pub(super) fn rows(&self, tensor: &str) -> Option<usize> {
        (self.rows)(tensor)
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
        let mut own = self.metadata.iter().filter(|(key, value)| {
            let name = key.strip_prefix(self.family.name).and_then(|name| name.strip_prefix('.'));
            name.is_some_and(|name| {
                !READ.contains(&name)
                    && !self.family.keys.contains(&name)
                    && !ignored.iter().any(|ignored| ignored == key)
                    && !is_off(name, value)
            })
        });
        match own.next() {
            Some((key, value)) => Err(ModelError::UnknownKey { key: key.into(), value: format!("{value:?}") }),
            None => Ok(()),
        }
    }

    pub(super) fn has_experts(&self) -> Result<bool, ModelError> {
        Ok(self.number("expert_count")?.is_some_and(|count| count > 0))
    }

    /// The experts, of width 0 if the file does not say it.
    pub(super) fn experts(&self) -> Result<Experts, ModelError> {
        let ffn = self.number("expert_feed_forward_length")?.unwrap_or(0);
        Ok(Experts {
            normalises: self.flag("expert_weights_norm")?.unwrap_or(true),
            ..Experts::new(self.required("expert_count")?, ffn, self.required("expert_used_count")?)
        })
    }

    /// The layers without a window: each `period`-th, unless the file says so itself.
    pub(super) fn full_layers(&self, layers: usize, period: usize) -> Result<Vec<usize>, ModelError> {
        let name = "attention.sliding_window_pattern";
        let key = self.key(name);
        let period = match self.metadata.get(&key) {
            Some(Value::Array(all)) if all.len() >= layers => {
                let flags = |value: Value<'_>| value.array()?.iter().take(layers).map(|flag| flag.flag()).collect();
                let windowed: Option<Vec<bool>> = read(self.metadata, &key, "flags", flags)?;
                let windowed = (0..).zip(windowed.unwrap_or_default());
                return Ok(windowed.filter(|(_, is_windowed)| !is_windowed).map(|(layer, _)| layer).collect());
            }
            _ => self.number(name)?.unwrap_or(period).max(1),
        };
        Ok((0..layers).filter(|layer| (layer + 1).is_multiple_of(period)).collect())
    }

    /// Takes the windows from the [full layers](Self::full_layers).
    pub(super) fn take_windows(&self, config: &mut Config, period: usize) -> Result<(), ModelError> {
        for layer in self.full_layers(config.layers.len(), period)? {
            if let Some(attention) = config.layers[layer].attention_mut() {
                attention.window = None;
            }
        }
        Ok(())
    }

    fn scaling(&self) -> Result<Scaling, ModelError> {
        match self.scaling_of_keys()? {
            scaling if !self.has(DIVISORS) => Ok(scaling),
            Scaling::None => Ok(Scaling::InFile),
            scaling => Err(ModelError::Feature { feature: format!("the rope scaling {scaling:?} beside {DIVISORS}") }),
        }
    }

    fn scaling_of_keys(&self) -> Result<Scaling, ModelError> {
        let factor = self.float("rope.scaling.factor")?.map(|factor| factor as f32);
        let attention = self.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let original = self.number("rope.scaling.original_context_length")?;
        let type_key = self.key("rope.scaling.type");
        let kind = read(self.metadata, &type_key, "a text", Value::text)?.unwrap_or_else(|| {
            // phi3 writes no type, and older files have a factor without a type, or by another name.
            if self.has(LONG_DIVISORS[1]) { "longrope" } else { "linear" }.into()
        });
        let original_of =
            |original: Option<usize>| original.map_or_else(|| self.required("context_length"), Ok::<_, ModelError>);
        match &*kind {
            "none" => Ok(Scaling::None),
            "linear" if attention == 1.0 => {
                let factor = factor.or(self.float("rope.scale_linear")?.map(|factor| factor as f32));
                let factor = factor.filter(|factor| ![0.0, 1.0].contains(factor));
                Ok(factor.map_or(Scaling::None, |factor| Scaling::Linear { factor }))
            }
            "yarn" => {
                let factor = factor.ok_or_else(|| missing(&self.key("rope.scaling.factor")))?;
                let scale = |of: f64| 1.0 + 0.1 * of * f64::from(factor.max(1.0)).ln();
                // The factors of transformers' keys `attention_factor` and `mscale_all_dim`.
                let own = self.factor("rope.scaling.yarn_attn_factor")?;
                let all = self.factor("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
                Ok(Scaling::Yarn {
                    factor,
                    fast: self.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0) as f32,
                    slow: self.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0) as f32,
                    context: original_of(original)?,
                    attention: (attention * own.unwrap_or(scale(1.0) / scale(all))) as f32,
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
        if let Some(Value::Array(tokens)) = self.metadata.get("tokenizer.ggml.tokens") {
            let known =
                |token: Value<'_>| ENDS.into_iter().find(|end| matches!(&token, Value::String(text) if text == end));
            let found = (0..).zip(tokens.iter()).filter_map(|(number, token)| Some((number, known(token)?)));
            let found: Vec<_> = found.collect();
            let has_calls = CALLS.iter().all(|call| found.iter().any(|(_, end)| end == call));
            let ends = found.into_iter().filter(|(_, end)| !(has_calls && *end == MESSAGE_END));
            eos.extend(ends.map(|(number, _)| number));
        }
        eos.sort_unstable();
        eos.dedup();
        Ok(eos.into_iter().map(|token| token as u32).collect())
    }

    /// The key `name` of the architecture.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.name)
    }

    pub(super) fn required(&self, name: &str) -> Result<usize, ModelError> {
        self.number(name)?.ok_or_else(|| missing(&self.key(name)))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<usize>, ModelError> {
        self.whole(&self.key(name))
    }

    /// A whole number for each layer, of which a file may have one for all; none without the key.
    pub(super) fn by_layer(&self, name: &str, layers: usize) -> Result<Vec<usize>, ModelError> {
        let key = self.key(name);
        let Some(Value::Array(_)) = self.metadata.get(&key) else {
            return Ok(self.number(name)?.map_or_else(Vec::new, |number| vec![number; layers]));
        };
        // Layers that predict further tokens may have numbers, too.
        let numbers = |value: Value<'_>| value.array()?.iter().map(whole).collect::<Option<Vec<_>>>();
        let numbers = read(self.metadata, &key, "a number for each layer", |value| {
            numbers(value).filter(|all| all.len() >= layers)
        });
        Ok(numbers?.unwrap_or_default())
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ModelError> {
        read(self.metadata, &self.key(name), "true or false", |value| value.flag())
    }

    fn whole(&self, key: &str) -> Result<Option<usize>, ModelError> {
        read(self.metadata, key, "a whole number", whole)
    }

    /// A float; `None` for 0, which stands for none.
    pub(super) fn factor(&self, name: &str) -> Result<Option<f64>, ModelError> {
        Ok(self.float(name)?.filter(|factor| *factor != 0.0))
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f64>, ModelError> {
        read(self.metadata, &self.key(name), "a float", |value| value.float())
    }
}

/// A whole number of any integer type.
fn whole(value: Value<'_>) -> Option<usize> {
    usize::try_from(value.integer()?).ok()
}

fn read<'a, T>(
    metadata: &'a gguf::Metadata,
    key: &str,
    expected: &str,
    read: impl FnOnce(Value<'a>) -> Option<T>,
) -> Result<Option<T>, ModelError> {
    metadata.read(key, expected, read).map_err(|why| ModelError::Key { key: key.into(), why })
}
