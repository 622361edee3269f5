//! The hyperparameters of a model, from GGUF metadata or from `config.json`.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

mod family;
mod features;
mod json;
mod metadata;
mod reading;
mod sampling;
mod scaling;

use family::Family;
pub use features::{Activation, Experts, Features};
pub use sampling::SamplingDefaults;
pub use scaling::Scaling;
use scaling::{RopeKeys, rope_from_json};

use crate::ModelError;
use disco_candle::weights::Weights;

/// Hyperparameters of a model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Width of the hidden state.
    pub dim: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of kv heads; divides the number of query heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of elements of a head that rotary embeddings rotate, the first ones.
    pub rotated: usize,
    /// Number of hidden units of a feed-forward network; of an expert if all layers have experts.
    pub ffn: usize,
    /// Number of tokens of the vocabulary.
    pub vocabulary: usize,
    /// The most tokens of a sequence.
    pub context: usize,
    /// Epsilon of the RMS norms.
    pub eps: f64,
    /// Base of the frequencies of rotary embeddings.
    pub rope_base: f32,
    /// How the frequencies are scaled to longer contexts.
    pub scaling: Scaling,
    /// The elements that rotary embeddings rotate together.
    pub pairs: Pairs,
    /// Whether the logits use the embedding matrix.
    pub tied: bool,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// The choice of tokens that `generation_config.json` recommends.
    pub sampling: SamplingDefaults,
    /// Differences of the model's family from llama.
    pub features: Features,
    /// How the experts of a mixture are split over ranks. Files say nothing of it: a program may choose.
    pub expert_split: ExpertSplit,
}

/// How the experts of a mixture are split over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub enum ExpertSplit {
    /// Each rank has some hidden units of every expert, so that all ranks have the same work for each token.
    #[default]
    Within,
    /// Each rank has some experts whole: larger products, but the work of a rank depends on the tokens.
    Over,
}

/// The elements of a head that rotary embeddings rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pairs {
    /// Elements 2i and 2i + 1, as in GGUF files of llama models.
    Interleaved,
    /// Elements i and i + half of the head, as in files of Hugging Face.
    Halves,
}

/// The most layers, and experts of a layer, that are taken for right: each has its own tensors.
const MAX_LAYERS: usize = 1 << 12;
const MAX_EXPERTS: usize = 1 << 12;

/// The largest width of a matrix that is taken for right, so that products of two have room.
const MAX_WIDTH: usize = 1 << 24;

impl Config {
    /// The number of tokens of a sequence up to which its positions are rotated alike, if longer ones are rotated in another
    /// way.
    pub fn first_context(&self) -> Option<usize> {
        match self.scaling {
            Scaling::Long { context, .. } | Scaling::LongInFile { context, .. } | Scaling::Dynamic { context, .. } => {
                Some(context)
            }
            _ => None,
        }
    }

    /// Reads the configuration that belongs to opened weights: the metadata of a GGUF file, else `config.json` in the
    /// folder of the weights. Texts end with the tokens of `config.json` and of `generation_config.json`.
    ///
    /// # Errors
    /// The model has another architecture or uses an unsupported feature; the configuration is missing or incomplete.
    pub fn open(weights: &Weights) -> Result<Self, ModelError> {
        Self::open_ignoring(weights, &[])
    }

    /// As [`open`](Self::open), but goes on if `config.json` has keys of `ignored` that are not understood.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn open_ignoring(weights: &Weights, ignored: &[String]) -> Result<Self, ModelError> {
        if let Some(content) = weights.gguf() {
            return Self::from_metadata(content, ignored, |tensor| weights.contains(tensor));
        }
        let path = weights.path();
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let json = json::read(&folder.join("config.json"))?;
        let mut config = Self::from_json(&json, ignored)?;
        config.tied |= json["tie_word_embeddings"].is_null() && !weights.contains("lm_head.weight");
        // As transformers 5, which does not tie matrices if the files have both.
        config.tied &= !["lm_head.weight", "model.embed_tokens.weight"].iter().all(|name| weights.contains(name));
        // Chats often end with another token than texts, and only this file says so.
        let generation = folder.join("generation_config.json");
        if generation.exists() {
            let json = json::read(&generation)?;
            config.sampling = SamplingDefaults::from_json(&json)?;
            config.eos.extend(ends(&json)?);
            config.eos.sort_unstable();
            config.eos.dedup();
        }
        Ok(config)
    }

    /// Reads the content of a `config.json`. Keys of `ignored` may be unknown.
    ///
    /// # Errors
    /// The model has another architecture or uses an unsupported feature; a key is missing, has the wrong type, or is not
    /// understood.
    pub fn from_json(json: &Json, ignored: &[String]) -> Result<Self, ModelError> {
        let family = Family::of(json)?;
        let layers = json::number(json, "num_hidden_layers")?;
        let features = Features::from_json(json, layers.unwrap_or(0), ignored)?;
        let context = json::number(json, "max_position_embeddings")?.unwrap_or(family.context());
        let RopeKeys { base: rope_base, scaling, share } = rope_from_json(json, context)?;
        let number = |key: &str| json::number(json, key);
        let required = |key: &str| number(key)?.ok_or_else(|| missing(key));
        let (dim, heads) = (required("hidden_size")?, required("num_attention_heads")?);
        let head_dim = match number("head_dim")? {
            Some(head_dim) => head_dim,
            None => family.head_dim().unwrap_or(dim.checked_div(heads).unwrap_or(0)),
        };
        Self {
            dim,
            layers: layers.ok_or_else(|| missing("num_hidden_layers"))?,
            heads,
            kv_heads: match number("num_key_value_heads")? {
                Some(kv_heads) => kv_heads,
                None if json.get("num_key_value_heads").is_some() => heads,
                None => family.kv_heads().unwrap_or(heads),
            },
            head_dim,
            rotated: (head_dim as f64 * share) as usize,
            ffn: match &features.experts {
                Some(experts) if features.dense_layers.is_empty() => experts.ffn,
                _ => required("intermediate_size")?,
            },
            vocabulary: required("vocab_size")?,
            context: context.max(scaling.context()),
            eps: json::float(json, "rms_norm_eps")?.ok_or_else(|| missing("rms_norm_eps"))?,
            rope_base,
            scaling,
            pairs: Pairs::Halves,
            tied: json::flag(json, "tie_word_embeddings")?.unwrap_or(features.ties),
            eos: ends(json)?,
            sampling: SamplingDefaults::default(),
            features,
            expert_split: ExpertSplit::default(),
        }
        .checked()
    }

    /// Checks that the values fit each other.
    fn checked(self) -> Result<Self, ModelError> {
        let Self { dim, layers, heads, kv_heads, head_dim, ffn, vocabulary, context, .. } = self;
        let fail = |text: String| Err(ModelError::Inconsistent(text));
        // That of an expert, if one of both is wrong.
        let ffn = match self.features.experts {
            Some(experts) if experts.ffn == 0 || experts.ffn > MAX_WIDTH => experts.ffn,
            _ => ffn,
        };
        if [dim, layers, heads, kv_heads, head_dim, ffn, vocabulary, context].contains(&0) {
            return fail(format!(
                "a width or a number is 0 (width {dim}, {layers} layers, {heads} query heads, {kv_heads} kv heads, head width {head_dim}, feed-forward width {ffn}, {vocabulary} tokens, context {context})"
            ));
        }
        if let Some(large) = [dim, heads, head_dim, ffn, vocabulary].into_iter().find(|number| *number > MAX_WIDTH) {
            return fail(format!("a width or a number is {large}, and at most {MAX_WIDTH} can be right"));
        }
        if self.features.window == Some(0) {
            return fail("a window of 0 tokens (sliding_window)".into());
        }
        if !heads.is_multiple_of(kv_heads) {
            return fail(format!("{heads} query heads can't share {kv_heads} kv heads equally"));
        }
        let rotated = self.rotated;
        if !rotated.is_multiple_of(2) || rotated == 0 || rotated > head_dim {
            return fail(format!("rotary embeddings can't rotate {rotated} of the {head_dim} elements of a head"));
        }
        if let Scaling::Long { short, long, .. } = &self.scaling
            && let Some(wrong) = [short.len(), long.len()].into_iter().find(|len| *len != rotated / 2)
        {
            return fail(format!("{wrong} divisors of frequencies, and the rotated elements have {}", rotated / 2));
        }
        if let Some(experts) = &self.features.experts
            && (experts.count > MAX_EXPERTS || !(1..=experts.count).contains(&experts.per_token))
        {
            let (some, all) = (experts.per_token, experts.count);
            return fail(format!("{some} of {all} experts for each token, and at most {MAX_EXPERTS} can be right"));
        }
        Ok(self)
    }
}

/// # Errors
/// There are more layers than can be right.
fn check_layers(layers: usize) -> Result<(), ModelError> {
    if layers <= MAX_LAYERS {
        return Ok(());
    }
    Err(ModelError::Inconsistent(format!("{layers} layers, and at most {MAX_LAYERS} can be right")))
}

/// The tokens of the key `eos_token_id`: none, one, or a list.
fn ends(json: &Json) -> Result<Vec<u32>, ModelError> {
    let key = "eos_token_id";
    let token = |token: &Json| token.as_u64().and_then(|token| u32::try_from(token).ok());
    let tokens = match &json[key] {
        Json::Null => Some(Vec::new()),
        Json::Array(tokens) => tokens.iter().map(token).collect(),
        one => token(one).map(|token| vec![token]),
    };
    tokens.ok_or_else(|| json::wrong(key, "a token or a list of tokens", &json[key]))
}

pub(super) fn missing(key: &str) -> ModelError {
    ModelError::Key { key: key.into(), why: "the key is missing".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama(key: &str, value: Json) -> Result<Config, ModelError> {
        let mut json = serde_json::json!({
            "model_type": "llama", "hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1,
            "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 40, "rms_norm_eps": 1e-5,
        });
        json[key] = value;
        Config::from_json(&json, &[])
    }

    #[test]
    fn other_architectures_are_refused_by_name() {
        let error = llama("model_type", "mamba".into()).unwrap_err().to_string();
        assert!(error.starts_with("the model has the architecture \"mamba\", which is not supported"), "{error}");
    }

    #[test]
    fn a_key_that_is_not_understood_is_refused_unless_it_is_off_or_ignored() {
        let error = llama("logit_scale", 0.5.into()).unwrap_err().to_string();
        let expected = "has the key \"logit_scale\" (0.5), which may change the results and is not understood";
        assert!(error.contains(expected) && error.ends_with("(`generate --ignore-key logit_scale`)"), "{error}");
        llama("clip_qkv", Json::Null).unwrap();
        llama("alibi", false.into()).unwrap();
        llama("use_cache", true.into()).unwrap();
        // A key of another family, and its value without an effect.
        assert!(llama("residual_multiplier", 0.5.into()).is_err());
        llama("residual_multiplier", 1.into()).unwrap();
        llama("num_experts", 0.into()).unwrap();
        assert!(llama("num_experts", 8.into()).is_err());
        assert!(llama("use_qk_norm", true.into()).is_err());
        let json = serde_json::json!({"model_type": "llama", "logit_scale": 0.5});
        let error = Config::from_json(&json, &["logit_scale".into()]).unwrap_err().to_string();
        assert!(error.ends_with("hidden_size: the key is missing"), "{error}");
    }

    #[test]
    fn heads_that_kv_heads_do_not_divide_are_refused() {
        let error = llama("num_key_value_heads", 2.into()).unwrap_err().to_string();
        assert!(error.ends_with("3 query heads can't share 2 kv heads equally"), "{error}");
    }

    #[test]
    fn an_unknown_rope_scaling_is_refused_by_name() {
        let error = llama("rope_scaling", serde_json::json!({"rope_type": "proportional"})).unwrap_err().to_string();
        assert!(error.contains("rope scaling \"proportional\" is not supported"), "{error}");
    }

    #[test]
    fn rope_parameters_of_transformers_5_are_obeyed() {
        let llama3 = serde_json::json!({
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        });
        let config = llama("rope_parameters", llama3).unwrap();
        assert_eq!(config.rope_base, 500_000.0);
        assert_eq!(config.scaling, Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 64 });

        let by_layer = serde_json::json!({"full_attention": {"rope_type": "default", "rope_theta": 10000.0}});
        let error = llama("rope_parameters", by_layer).unwrap_err().to_string();
        assert!(error.contains("rope_parameters that differ between layers is not supported"), "{error}");
        let partial = serde_json::json!({"rope_type": "default", "partial_rotary_factor": 0.5});
        let error = llama("rope_parameters", partial).unwrap_err().to_string();
        assert!(error.contains("partial_rotary_factor 0.5 is not supported"), "{error}");
    }

    #[test]
    fn quantised_weights_are_refused_by_their_method() {
        let error = llama("quantization_config", serde_json::json!({"quant_method": "gptq"})).unwrap_err().to_string();
        assert!(error.contains("quantised weights (quantization_config, \"gptq\") is not supported"), "{error}");
    }

    #[test]
    fn the_error_for_a_missing_key_names_it() {
        let error = llama("num_hidden_layers", Json::Null).unwrap_err().to_string();
        assert!(error.ends_with("num_hidden_layers: the key is missing"), "{error}");
    }

    #[test]
    fn one_end_token_and_a_list_of_them_are_read() {
        assert_eq!(llama("eos_token_id", 2.into()).unwrap().eos, [2]);
        assert_eq!(llama("eos_token_id", serde_json::json!([2, 7])).unwrap().eos, [2, 7]);
    }
}
