//! Qwen 2 and 2.5: llama with biases of query, key and value.

use super::keys::SLIDES;
use super::{Defaults, Family, Gguf, Scheme};
use crate::config::Pairs;

/// The first layer that may have a window, if no key says it.
pub(super) const FIRST_WINDOW: usize = 28;

pub(super) const FAMILY: Family = Family {
    name: "qwen2",
    architecture: "Qwen2ForCausalLM",
    keys: &[SLIDES, "sliding_window", "max_window_layers"],
    json: |keys| {
        let mut config = keys.llama(Defaults { kv_heads: Some(32), context: 32768, ..Defaults::LLAMA })?;
        config.each_attention(|attention| attention.input_bias = true);
        let first = keys.number("max_window_layers")?.unwrap_or(FIRST_WINDOW);
        keys.windows_from(&mut config, first)?;
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf { name: "qwen2", keys: &[], read: |keys| keys.llama(Pairs::Halves) }),
};
