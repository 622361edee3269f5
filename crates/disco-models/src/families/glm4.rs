//! GLM-4 (0414): llama with norms around attention and feed-forward network, one matrix for gate and up, and rotary embeddings
//! of half of each head, whose pairs are next to each other.

use super::{Defaults, Family, Gguf, Role, Scheme};
use crate::config::{Config, FeedForward, Inputs, Norms, Pairs};

pub(super) const FAMILY: Family = Family {
    name: "glm4",
    architecture: "Glm4ForCausalLM",
    keys: &["attention_bias"],
    json: |keys| {
        let defaults = Defaults {
            kv_heads: Some(2),
            head_dim: Some(128),
            context: 131_072,
            rotary_share: Some(0.5),
            ..Defaults::LLAMA
        };
        let mut config = keys.llama(defaults)?;
        config.each_attention(|attention| attention.output_bias = false);
        config.interleave_rotary();
        shape(&mut config);
        Ok(config)
    },
    names: Scheme {
        own: &[(Role::AttentionPostNorm, "post_self_attn_layernorm"), (Role::FfnPostNorm, "post_mlp_layernorm")],
        ..Scheme::LLAMA
    },
    wrapper: None,
    gguf: Some(Gguf {
        name: "glm4",
        keys: &[],
        read: |keys| {
            let mut config = keys.llama(Pairs::Interleaved)?;
            shape(&mut config);
            Ok(config)
        },
    }),
};

fn shape(config: &mut Config) {
    for layer in &mut config.layers {
        layer.norms = Norms::Around;
        if let FeedForward::Dense(dense) = &mut layer.feed_forward {
            dense.inputs = Inputs::Fused;
        }
    }
}
