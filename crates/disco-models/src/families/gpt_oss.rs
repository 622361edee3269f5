//! gpt-oss: attention sinks, a window in every other layer, and experts with biases and a clamped SwiGLU, dense or in MXFP4.

use super::keys::with;
use super::{Defaults, Family, Gguf, Role, Scheme, metadata};
use crate::config::{Activation, ExpertLayout, FeedForward, Pairs, Scaling};

/// The limit of all models' SwiGLU, of which GGUF files say nothing.
const LIMIT: f64 = 7.0;

const GGUF_KEYS: [&str; 5] = with(metadata::EXPERTS, ["attention.sliding_window_pattern"]);

pub(super) const FAMILY: Family = Family {
    name: "gpt_oss",
    architecture: "GptOssForCausalLM",
    keys: &[
        "attention_bias",
        // Names of other programs for keys that are read.
        "experts_per_token",
        "initial_context_length",
        "num_experts_per_tok",
        "num_local_experts",
        "output_router_logits",
        "router_aux_loss_coef",
        "sliding_window",
        "swiglu_limit",
    ],
    json: |keys| {
        let defaults = Defaults {
            kv_heads: Some(8),
            head_dim: Some(64),
            context: 131_072,
            rope_base: 150_000.0,
            ..Defaults::LLAMA
        };
        let mut config = keys.llama(defaults)?;
        let mut experts = keys.experts("intermediate_size", true)?;
        (experts.layout, experts.bias) = (ExpertLayout::Interleaved, true);
        experts.activation = Activation::ClampedSwiglu { limit: keys.float("swiglu_limit")?.unwrap_or(LIMIT) };
        config.each_attention(|attention| attention.sinks = true);
        config.layers.iter_mut().for_each(|layer| layer.feed_forward = FeedForward::Experts(experts));
        let window = keys.number("sliding_window")?.or(Some(128));
        keys.windows(&mut config, window, |layer| layer % 2 == 1)?;
        Ok(config)
    },
    names: Scheme { own: &[(Role::Router, "mlp.router")], ..Scheme::LLAMA },
    wrapper: None,
    gguf: Some(Gguf {
        name: "gpt-oss",
        keys: &GGUF_KEYS,
        read: |keys| {
            let mut config = keys.mixture(Pairs::Halves)?;
            config.names = Scheme { own: &[(Role::FfnNorm, "post_attention_norm")], ..Scheme::GGUF };
            keys.take_windows(&mut config, 2)?;
            for layer in &mut config.layers {
                if let Some(experts) = layer.experts_mut() {
                    experts.bias = true;
                    experts.activation = Activation::ClampedSwiglu { limit: LIMIT };
                }
                let Some(attention) = layer.attention_mut() else { continue };
                attention.sinks = true;
                // As the model was trained; llama.cpp rounds the borders.
                if let Some(Scaling::Yarn { truncates, .. }) =
                    attention.rotary.as_mut().map(|rotary| &mut rotary.scaling)
                {
                    *truncates = false;
                }
            }
            Ok(config)
        },
    }),
};
