//! Mistral: llama with a window in all layers. Also the text part of Mistral Small 3.1 (`mistral3`).

use super::{Defaults, Family, Keys, Scheme, Wrapper};
use crate::config::Config;
use crate::error::ModelError;

pub(super) const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), context: 4096 * 32, ..Defaults::LLAMA };

pub(super) const WRAPPER: Wrapper = Wrapper { name: "mistral3", architecture: "Mistral3ForConditionalGeneration" };

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    architecture: "MistralForCausalLM",
    keys: &["sliding_window"],
    json: |keys| read(keys, DEFAULTS),
    names: Scheme::WITH_TOWERS,
    wrapper: Some(WRAPPER),
    gguf: None,
};

pub(super) fn read(keys: &Keys<'_>, defaults: Defaults) -> Result<Config, ModelError> {
    let mut config = keys.llama(defaults)?;
    let window = keys.window()?;
    config.each_attention(|attention| attention.window = window);
    Ok(config)
}
