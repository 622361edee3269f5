//! OLMo 2: llama with norms behind attention and feed-forward network, and q/k norms of all heads together.

use super::{Defaults, Family, Gguf, Scheme};
use crate::config::{Config, Norms, Pairs, QkNorm};
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "olmo2",
    architecture: "Olmo2ForCausalLM",
    keys: &["attention_bias"],
    json: |keys| Ok(with_norms(keys.llama(Defaults::LLAMA)?)),
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf {
        name: "olmo2",
        keys: &[],
        read: |keys| {
            let config = keys.llama(Pairs::Halves)?;
            if config.attentions().any(|attention| attention.window.is_some()) {
                return Err(ModelError::Feature { feature: keys.key("attention.sliding_window (OLMo 3)") });
            }
            Ok(with_norms(config))
        },
    }),
};

pub(super) fn with_norms(mut config: Config) -> Config {
    config.layers.iter_mut().for_each(|layer| layer.norms = Norms::After);
    config.each_attention(|attention| attention.qk_norm = QkNorm::Joint);
    config
}
