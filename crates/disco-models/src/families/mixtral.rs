//! Mixtral: Mistral with a mixture of experts, whose shares sum up to 1.

use super::{Defaults, Family, Role, Scheme, mistral};
use crate::config::FeedForward;

pub(super) const FAMILY: Family = Family {
    name: "mixtral",
    architecture: "MixtralForCausalLM",
    keys: &[
        "num_experts_per_tok",
        "num_local_experts",
        "output_router_logits",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "sliding_window",
    ],
    json: |keys| {
        let mut config = keys.llama(Defaults { rope_base: 1e6, ..mistral::DEFAULTS })?;
        let (window, experts) = (keys.number("sliding_window")?, keys.experts("intermediate_size", true)?);
        config.each_attention(|attention| attention.window = window);
        config.layers.iter_mut().for_each(|layer| layer.feed_forward = FeedForward::Experts(experts));
        Ok(config)
    },
    names: Scheme {
        own: &[
            (Role::Router, "block_sparse_moe.gate"),
            (Role::ExpertGate, "block_sparse_moe.experts.*.w1"),
            (Role::ExpertUp, "block_sparse_moe.experts.*.w3"),
            (Role::ExpertDown, "block_sparse_moe.experts.*.w2"),
        ],
        ..Scheme::LLAMA
    },
    wrapper: None,
    gguf: None,
};
