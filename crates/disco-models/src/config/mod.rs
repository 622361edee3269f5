//! The hyperparameters of a model, from GGUF metadata or from `config.json`.

use serde::{Deserialize, Serialize};

mod feed_forward;
pub(crate) mod json;
mod layer;
mod quantization;
mod sampling;
mod scaling;

pub use feed_forward::{Activation, Dense, ExpertLayout, Experts, FeedForward, Groups, Inputs, Scores};
pub use layer::{
    Attention, DeltaLayout, GatedDelta, Growth, Latent, Layer, LayerInputs, Mixer, NormKind, Norms, Pairs, Positions,
    Projections, QkNorm, Rotary,
};
pub use quantization::Packing;
pub(crate) use quantization::Quantization;
pub use sampling::SamplingDefaults;
pub use scaling::Scaling;
pub(crate) use scaling::{DIVISORS, LONG_DIVISORS};

use crate::ModelError;
use crate::names::Scheme;

/// Hyperparameters of a model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Width of the hidden state.
    pub dim: usize,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Number of tokens of the vocabulary.
    pub vocabulary: usize,
    /// The most tokens of a sequence.
    pub context: usize,
    /// Epsilon of the norms.
    pub eps: f64,
    /// How norms are computed.
    pub norm: NormKind,
    /// Learnt embeddings of positions.
    pub positions: Option<Positions>,
    /// A second table of embeddings, for all layers.
    pub layer_inputs: Option<LayerInputs>,
    /// Factor of the embedded tokens.
    pub embedding_factor: f64,
    /// Factor of what attention and feed-forward network add to the hidden state.
    pub residual_factor: f64,
    /// Factor of the logits.
    pub logits_factor: f64,
    /// The logits stay between this and its negative, by a hyperbolic tangent.
    pub logits_softcap: Option<f64>,
    /// Whether the logits use the embedding matrix.
    pub tied: bool,
    /// Outputs and inputs of the block of an 8-bit matrix that has one scale, if scales are of blocks.
    pub scale_block: [usize; 2],
    /// How matrices of layers are packed in 4 bits, if they are.
    pub packing: Option<Packing>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// The choice of tokens that `generation_config.json` recommends.
    pub sampling: SamplingDefaults,
    /// How the experts of a mixture are split over ranks. Files say nothing of it: a program may choose.
    pub expert_split: ExpertSplit,
    /// How the sums behind heads and hidden units are split over ranks. Files say nothing of it: [`Sums::on`] has the way for some workers.
    pub sums: Sums,
    /// The files may have so many layers behind the last one, which predict further tokens and are not computed.
    pub(crate) further_layers: usize,
    /// The names of the tensors.
    pub(crate) names: Scheme,
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

/// How the sums of the matrices behind heads and hidden units are split over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sums {
    /// On hosts: each is computed by one rank. Ranks gather the inputs, and the outputs.
    #[default]
    Whole,
    /// On hosts, with the same bits: each rank computes complete nodes of the tree in which it is added, and all exchange them. One
    /// round trip instead of two for few tokens, and more bytes. Where heads or hidden units can't be cut evenly between nodes, as `Whole`; so
    /// are experts, units that all tokens share beside experts, and gated delta nets.
    Nodes,
    /// On devices: each rank computes a part, and a collective adds these, so that the bits depend on the number of ranks.
    Parts,
}

/// The most layers, and experts of a layer, that are taken for right: each has its own tensors.
pub(crate) const MAX_LAYERS: usize = 1 << 12;
const MAX_EXPERTS: usize = 1 << 12;

/// The largest width of a matrix that is taken for right, so that products of two have room.
const MAX_WIDTH: usize = 1 << 24;

impl Config {
    /// A model of these layers, with the values that most families have.
    pub(crate) fn new(dim: usize, layers: Vec<Layer>, vocabulary: usize, context: usize) -> Self {
        Self {
            dim,
            layers,
            vocabulary,
            context,
            eps: 0.0,
            norm: NormKind::Rms { offset: 0.0, wide: false },
            positions: None,
            layer_inputs: None,
            embedding_factor: 1.0,
            residual_factor: 1.0,
            logits_factor: 1.0,
            logits_softcap: None,
            tied: false,
            scale_block: [128, 128],
            packing: None,
            eos: Vec::new(),
            sampling: SamplingDefaults::default(),
            expert_split: ExpertSplit::default(),
            sums: Sums::default(),
            further_layers: 0,
            names: Scheme::LLAMA,
        }
    }

    /// Changes the attention of all layers.
    pub(crate) fn each_attention(&mut self, change: impl Fn(&mut Attention)) {
        self.layers.iter_mut().filter_map(Layer::attention_mut).for_each(change);
    }

    /// Takes the experts of the layers for which `is_joined` holds as stacks with gate and up in one: some files of a family have
    /// them so.
    pub(crate) fn join_experts(&mut self, is_joined: &dyn Fn(usize, &Experts) -> bool) {
        for (number, layer) in self.layers.iter_mut().enumerate() {
            if let Some(experts) = layer.experts_mut().filter(|experts| is_joined(number, experts)) {
                experts.layout = ExpertLayout::Joined;
            }
        }
    }

    /// Rotates elements that are next to each other.
    pub(crate) fn interleave_rotary(&mut self) {
        self.each_attention(|attention| {
            attention.rotary.iter_mut().for_each(|rotary| rotary.pairs = Pairs::Interleaved);
        });
    }

    /// The attention of the layers that have one.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.layers.iter().filter_map(Layer::attention)
    }

    /// # Errors
    /// Tokens attend to later ones, so the model makes vectors, and no texts.
    pub(crate) fn check_generates(&self) -> Result<(), ModelError> {
        if self.attentions().any(|attention| attention.looks_ahead) {
            let feature = "texts of a model whose tokens attend to later ones (use_bidirectional_attention)".to_owned();
            return Err(ModelError::Feature { feature });
        }
        Ok(())
    }

    /// Whether sequences have states beside keys and values.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.delta().is_some())
    }

    /// The rotary embeddings of the layers.
    pub(crate) fn rotaries(&self) -> impl Iterator<Item = &Rotary> {
        self.attentions().filter_map(|attention| attention.rotary.as_ref())
    }

    /// The number of tokens of a sequence up to which its positions are rotated alike, if longer ones are rotated in another
    /// way.
    pub fn first_context(&self) -> Option<usize> {
        let first = |rotary: &Rotary| match rotary.scaling {
            Scaling::Long { context, .. } | Scaling::LongInFile { context, .. } | Scaling::Dynamic { context, .. } => {
                Some(context)
            }
            _ => None,
        };
        self.rotaries().filter_map(first).min()
    }

    /// Whether a text is computed again, from its begin, once it has more tokens than the [first context](Self::first_context).
    /// Otherwise earlier tokens stay as they are.
    pub fn restarts(&self) -> bool {
        self.rotaries().any(|rotary| matches!(rotary.scaling, Scaling::Long { .. } | Scaling::LongInFile { .. }))
    }

    /// The experts of the layers that have some.
    pub fn experts(&self) -> Option<&Experts> {
        self.layers.iter().find_map(Layer::experts)
    }

    /// Checks that the values fit each other.
    pub(crate) fn checked(self) -> Result<Self, ModelError> {
        let Self { dim, vocabulary, context, .. } = self;
        let numbers = [
            ("width", dim),
            ("vocabulary", vocabulary),
            ("context", context.min(MAX_WIDTH)),
            ("number of layers", self.layers.len()),
        ];
        check_numbers(numbers)?;
        self.layers.iter().try_for_each(Layer::check)?;
        if self.is_recurrent() && self.first_context().is_some() {
            let feature = "linear attention beside rotary embeddings that depend on the length (rope_scaling)".into();
            return Err(ModelError::Feature { feature });
        }
        if let Some(LayerInputs { rows, width, .. }) = self.layer_inputs {
            check_numbers([("vocabulary of the layers' inputs", rows), ("width of a layer's input", width)])?;
            check_numbers([("width of all layers' inputs", width.saturating_mul(self.layers.len()))])?;
            if rows < vocabulary {
                let text = format!("the layers' inputs have {rows} tokens, and the vocabulary has {vocabulary}");
                return Err(ModelError::Inconsistent(text));
            }
        }
        Ok(self)
    }
}

impl Layer {
    fn check(&self) -> Result<(), ModelError> {
        match &self.mixer {
            Mixer::Attention(attention) => attention.check()?,
            Mixer::Delta(delta) => delta.check()?,
        }
        if let Some(Dense { ffn, .. }) = self.dense() {
            check_numbers([("feed-forward width", *ffn)])?;
        }
        if let Some(&Experts { count, ffn, per_token, groups, .. }) = self.experts() {
            if count > MAX_EXPERTS || !(1..=count).contains(&per_token) {
                return fail(format!(
                    "{per_token} of {count} experts for each token, and at most {MAX_EXPERTS} can be right"
                ));
            }
            check_numbers([("width of an expert", ffn)])?;
            if let Some(Groups { count: groups, chosen, .. }) = groups {
                let is_right = groups > 0
                    && count.is_multiple_of(groups)
                    && (1..=groups).contains(&chosen)
                    && per_token <= chosen * (count / groups);
                if !is_right {
                    return fail(format!(
                        "{per_token} of {count} experts in {chosen} of {groups} groups for each token"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Attention {
    fn check(&self) -> Result<(), ModelError> {
        let &Self { heads, kv_heads, head_dim, window, .. } = self;
        check_numbers([
            ("number of query heads", heads),
            ("number of kv heads", kv_heads),
            ("width of a head", head_dim),
        ])?;
        check_numbers([("width of all query heads", heads.saturating_mul(head_dim))])?;
        if window == Some(0) {
            return fail("a window of 0 tokens (sliding_window)".into());
        }
        if !heads.is_multiple_of(kv_heads) {
            return fail(format!("{heads} query heads can't share {kv_heads} kv heads equally"));
        }
        if let Some(Rotary { elements, scaling, .. }) = &self.rotary {
            if !elements.is_multiple_of(2) || *elements == 0 || *elements > head_dim {
                return fail(format!("rotary embeddings can't rotate {elements} of the {head_dim} elements of a head"));
            }
            if let Scaling::Long { short, long, .. } = scaling
                && let Some(wrong) = [short.len(), long.len()].into_iter().find(|len| *len != elements / 2)
            {
                return fail(format!(
                    "{wrong} divisors of frequencies, and the rotated elements have {}",
                    elements / 2
                ));
            }
        }
        if let Projections::Latent(Latent { query_rank, rank, plain, rotated, value, .. }) = self.projections {
            check_numbers([
                ("width of the latent queries", query_rank.unwrap_or(1)),
                ("width of the latent keys and values", rank),
                ("width of plain queries", plain),
                ("width of rotated queries", rotated),
                ("width of values", value),
            ])?;
            check_numbers([("width of all heads", heads.saturating_mul(plain + rotated + value))])?;
        }
        Ok(())
    }
}

impl GatedDelta {
    fn check(&self) -> Result<(), ModelError> {
        let &Self { key_heads, value_heads, key_dim, value_dim, kernel, .. } = self;
        check_numbers([
            ("number of key heads of linear attention", key_heads),
            ("number of value heads of linear attention", value_heads),
            ("width of a key head of linear attention", key_dim),
            ("width of a value head of linear attention", value_dim),
            ("width of the convolution of linear attention", kernel),
        ])?;
        check_numbers([
            ("width of all key heads of linear attention", key_heads.saturating_mul(key_dim)),
            ("width of all value heads of linear attention", value_heads.saturating_mul(value_dim)),
            ("state of a head of linear attention", key_dim.saturating_mul(value_dim)),
        ])?;
        if !value_heads.is_multiple_of(key_heads) {
            return fail(format!(
                "{value_heads} value heads can't share {key_heads} key heads of linear attention equally"
            ));
        }
        Ok(())
    }
}

fn fail(text: String) -> Result<(), ModelError> {
    Err(ModelError::Inconsistent(text))
}

/// # Errors
/// A width or a number is 0, or larger than can be right.
fn check_numbers<const N: usize>(numbers: [(&str, usize); N]) -> Result<(), ModelError> {
    match numbers.into_iter().find(|(_, number)| !(1..=MAX_WIDTH).contains(number)) {
        None => Ok(()),
        Some((name, 0)) => Err(ModelError::Inconsistent(format!("the {name} is 0"))),
        Some((name, number)) => {
            Err(ModelError::Inconsistent(format!("the {name} is {number}, and at most {MAX_WIDTH} can be right")))
        }
    }
}

/// # Errors
/// There are more layers than can be right.
pub(crate) fn check_layers(layers: usize) -> Result<(), ModelError> {
    if layers <= MAX_LAYERS {
        return Ok(());
    }
    Err(ModelError::Inconsistent(format!("{layers} layers, and at most {MAX_LAYERS} can be right")))
}

pub(crate) fn missing(key: &str) -> ModelError {
    ModelError::Key { key: key.into(), why: "the key is missing".into() }
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

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
        let error = llama("rope_scaling", serde_json::json!({"rope_type": "exponential"})).unwrap_err().to_string();
        assert!(error.contains("rope scaling \"exponential\" is not supported"), "{error}");
    }

    #[test]
    fn rope_parameters_of_transformers_5_are_obeyed() {
        let llama3 = serde_json::json!({
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        });
        let config = llama("rope_parameters", llama3).unwrap();
        let rotary = config.rotaries().next().unwrap();
        assert_eq!(rotary.base, 500_000.0);
        assert_eq!(rotary.scaling, Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 64 });

        let by_layer = serde_json::json!({"full_attention": {"rope_type": "default", "rope_theta": 10000.0}});
        let error = llama("rope_parameters", by_layer).unwrap_err().to_string();
        assert!(error.contains("rope_parameters that differ between layers is not supported"), "{error}");
        let partial = serde_json::json!({"rope_type": "default", "partial_rotary_factor": 0.5});
        let error = llama("rope_parameters", partial).unwrap_err().to_string();
        assert!(error.contains("partial_rotary_factor 0.5 is not supported"), "{error}");
    }

    #[test]
    fn quantised_weights_are_refused_by_their_method() {
        let error = llama("quantization_config", serde_json::json!({"quant_method": "hqq"})).unwrap_err().to_string();
        assert!(error.contains("quantised weights (quantization_config, \"hqq\") is not supported"), "{error}");
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
