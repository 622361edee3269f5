//! Command-R: attention and feed-forward network beside each other behind one LayerNorm, rotary pairs next to each other, and
//! a factor of the logits.

use super::{Defaults, Family, Gguf, Keys, Metadata, Scheme, metadata};
use crate::config::{Config, NormKind, Norms, Pairs};
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "cohere",
    architecture: "CohereForCausalLM",
    keys: &["attention_bias", "layer_norm_eps", "logit_scale"],
    json: command_r,
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf { name: "command-r", keys: &GGUF_KEYS, read: of_gguf }),
};

/// The keys of all models of Command-R in GGUF files.
pub(super) const GGUF_KEYS: [&str; 2] = ["logit_scale", metadata::LAYER_NORM_EPS];

/// What all models of Command-R have.
pub(super) fn command_r(keys: &Keys<'_>) -> Result<Config, ModelError> {
    let defaults = Defaults { context: 8192, tied: true, eps: ("layer_norm_eps", Some(1e-5)), ..Defaults::LLAMA };
    let mut config = keys.llama(defaults)?;
    config.interleave_rotary();
    complete(config, keys.float("logit_scale")?.unwrap_or(0.0625))
}

/// The same in GGUF files.
pub(super) fn of_gguf(keys: &Metadata<'_>) -> Result<Config, ModelError> {
    complete(keys.llama(Pairs::Interleaved)?, keys.float("logit_scale")?.unwrap_or(1.0))
}

fn complete(mut config: Config, factor: f64) -> Result<Config, ModelError> {
    if factor <= 0.0 {
        return Err(ModelError::Inconsistent(format!("logit_scale is {factor}, and must be positive")));
    }
    config.logits_factor = factor;
    config.norm = NormKind::LayerNorm { bias: false };
    config.layers.iter_mut().for_each(|layer| layer.norms = Norms::Shared);
    Ok(config)
}
