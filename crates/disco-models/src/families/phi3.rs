//! Phi-3 and Phi-4-mini: llama with one matrix for query, key and value, one for gate and up, and a window.

use super::{Defaults, Family, Gguf, Scheme};
use crate::config::{Config, FeedForward, Inputs, Pairs, Projections};

pub(super) const FAMILY: Family = Family {
    name: "phi3",
    architecture: "Phi3ForCausalLM",
    // The original context is that of a scaling, which has the key, too.
    keys: &["sliding_window", "original_max_position_embeddings"],
    json: |keys| {
        let mut config = keys.llama(Defaults { context: 4096, rotary_share: Some(1.0), ..Defaults::LLAMA })?;
        fuse(&mut config);
        let window = keys.number("sliding_window")?;
        config.each_attention(|attention| attention.window = window);
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf {
        name: "phi3",
        keys: &[],
        read: |keys| {
            let mut config = keys.llama(Pairs::Halves)?;
            if keys.has("blk.0.attn_qkv.weight") {
                fuse(&mut config);
            }
            Ok(config)
        },
    }),
};

fn fuse(config: &mut Config) {
    config.each_attention(|attention| attention.projections = Projections::Fused);
    for layer in &mut config.layers {
        if let FeedForward::Dense(dense) = &mut layer.feed_forward {
            dense.inputs = Inputs::Fused;
        }
    }
}
