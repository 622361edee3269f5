//! OPT: learnt positions from row 2 of their table on, LayerNorm, biases, and a feed-forward network of ReLU without a gate.

use super::{Defaults, Family, Role, Scheme};
use crate::config::{Activation, FeedForward, Inputs, NormKind, Positions};
use crate::error::ModelError;

/// The rows of the table of positions before that of position 0.
const FIRST: usize = 2;

pub(super) const FAMILY: Family = Family {
    name: "opt",
    architecture: "OPTForCausalLM",
    keys: &[
        "activation_function",
        "do_layer_norm_before",
        "dropout",
        "enable_bias",
        "ffn_dim",
        "init_std",
        "layer_norm_elementwise_affine",
        "layerdrop",
        "prefix",
        "word_embed_proj_dim",
    ],
    json: |keys| {
        // Keys that a program does not have, or that have this value in all models but OPT-350m.
        for key in ["do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"] {
            if keys.has(key) && !keys.flag(key)? {
                return Err(ModelError::Feature { feature: format!("{key} false") });
            }
        }
        let defaults = Defaults {
            ffn: "ffn_dim",
            activation: ("activation_function", Activation::Relu),
            tied: true,
            eps: ("layer_norm_eps", Some(1e-5)),
            ..Defaults::LLAMA
        };
        let mut config = keys.llama(defaults)?;
        if keys.number("word_embed_proj_dim")?.is_some_and(|width| width != config.dim) {
            return Err(ModelError::Feature { feature: "word_embed_proj_dim beside hidden_size".into() });
        }
        config.norm = NormKind::LayerNorm { bias: true };
        config.positions = Some(Positions { rows: config.context.saturating_add(FIRST), first: FIRST });
        config.each_attention(|attention| {
            attention.rotary = None;
            (attention.input_bias, attention.output_bias) = (true, true);
        });
        for layer in &mut config.layers {
            if let FeedForward::Dense(dense) = &mut layer.feed_forward {
                (dense.inputs, dense.bias) = (Inputs::Plain, true);
            }
        }
        Ok(config)
    },
    names: Scheme {
        modules: &[("model.decoder.", "lm_head.weight"), ("decoder.", "lm_head.weight")],
        positions: "embed_positions",
        norm: "final_layer_norm",
        own: &[
            (Role::AttentionNorm, "self_attn_layer_norm"),
            (Role::Output, "self_attn.out_proj"),
            (Role::FfnNorm, "final_layer_norm"),
            (Role::Up, "fc1"),
            (Role::Down, "fc2"),
        ],
        ..Scheme::LLAMA
    },
    wrapper: None,
    gguf: None,
};
