//! Qwen 3: llama with q/k norms of each head.

use super::keys::SLIDES;
use super::{Defaults, Family, Gguf, Keys, Metadata, Scheme, qwen2};
use crate::config::{Config, Pairs, QkNorm};
use crate::error::ModelError;

/// A key of some models, which have q/k norms whatever it says.
pub(super) const QK_NORM: &str = "use_qk_norm";

pub(super) const DEFAULTS: Defaults =
    Defaults { kv_heads: Some(32), head_dim: Some(128), context: 32768, ..Defaults::LLAMA };

pub(super) const FAMILY: Family = Family {
    name: "qwen3",
    architecture: "Qwen3ForCausalLM",
    keys: &["attention_bias", SLIDES, "sliding_window", "max_window_layers", QK_NORM],
    json: |keys| read(keys, DEFAULTS),
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf { name: "qwen3", keys: &[], read: of_gguf }),
};

pub(super) fn of_gguf(keys: &Metadata<'_>) -> Result<Config, ModelError> {
    let mut config = keys.llama(Pairs::Halves)?;
    config.each_attention(|attention| attention.qk_norm = QkNorm::Each);
    Ok(config)
}

pub(super) fn read(keys: &Keys<'_>, defaults: Defaults) -> Result<Config, ModelError> {
    let mut config = keys.llama(defaults)?;
    config.each_attention(|attention| attention.qk_norm = QkNorm::Each);
    let first = keys.number("max_window_layers")?.unwrap_or(qwen2::FIRST_WINDOW);
    keys.windows_from(&mut config, first)?;
    Ok(config)
}
