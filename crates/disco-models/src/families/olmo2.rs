//! OLMo 2, and OLMo 3 in GGUF files: llama with norms behind attention and feed-forward network, and q/k norms of all heads
//! together.

use super::{Defaults, Family, Gguf, Scheme};
use crate::config::{Config, Norms, Pairs, QkNorm, Scaling};

pub(super) const FAMILY: Family = Family {
    name: "olmo2",
    architecture: "Olmo2ForCausalLM",
    keys: &["attention_bias"],
    json: |keys| Ok(with_norms(keys.llama(Defaults::LLAMA)?)),
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf {
        name: "olmo2",
        keys: &["attention.sliding_window_pattern"],
        read: |keys| {
            let mut config = with_norms(keys.llama(Pairs::Halves)?);
            // OLMo 3 has windows.
            keys.take_windows(&mut config, 4)?;
            scale_full_layers(&mut config);
            Ok(config)
        },
    }),
};

pub(super) fn with_norms(mut config: Config) -> Config {
    config.layers.iter_mut().for_each(|layer| layer.norms = Norms::After);
    config.each_attention(|attention| attention.qk_norm = QkNorm::Joint);
    config
}

/// Frequencies of layers with a window are not scaled.
pub(super) fn scale_full_layers(config: &mut Config) {
    config.each_attention(|attention| {
        for rotary in attention.rotary.iter_mut().filter(|_| attention.window.is_some()) {
            rotary.scaling = Scaling::None;
        }
    });
}
