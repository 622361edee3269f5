//! Command-R: attention and feed-forward network beside each other behind one LayerNorm, rotary pairs next to each other, and
//! a factor of the logits.

use super::{Defaults, Family, Keys, Scheme};
use crate::config::{Config, NormKind, Norms};
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "cohere",
    architecture: "CohereForCausalLM",
    keys: &["attention_bias", "layer_norm_eps", "logit_scale"],
    json: command_r,
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: None,
};

/// What all models of Command-R have.
pub(super) fn command_r(keys: &Keys<'_>) -> Result<Config, ModelError> {
    let defaults = Defaults { context: 8192, tied: true, eps: ("layer_norm_eps", Some(1e-5)), ..Defaults::LLAMA };
    let mut config = keys.llama(defaults)?;
    config.norm = NormKind::LayerNorm { bias: false };
    config.logits_factor = keys.float("logit_scale")?.unwrap_or(0.0625);
    if config.logits_factor <= 0.0 {
        let text = format!("logit_scale is {}, and must be positive", config.logits_factor);
        return Err(ModelError::Inconsistent(text));
    }
    config.layers.iter_mut().for_each(|layer| layer.norms = Norms::Shared);
    config.interleave_rotary();
    Ok(config)
}
