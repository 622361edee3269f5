//! Mixtures of experts of Qwen 3: Qwen 3 with experts in place of the feed-forward network, in some layers or all.

use super::keys::SLIDES;
use super::{Defaults, Family, Gguf, Keys, Scheme, metadata, qwen3};
use crate::config::{FeedForward, MAX_LAYERS, Pairs, QkNorm, json};
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "qwen3_moe",
    architecture: "Qwen3MoeForCausalLM",
    keys: &[
        "attention_bias",
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
        "output_router_logits",
        "router_aux_loss_coef",
        SLIDES,
        "sliding_window",
        "max_window_layers",
        qwen3::QK_NORM,
    ],
    json: |keys| {
        let is_dense = dense_layers(keys)?;
        let ffn = if is_dense.contains(&true) { Defaults::LLAMA.ffn } else { "moe_intermediate_size" };
        let mut config = keys.llama(Defaults { kv_heads: Some(4), context: 32768, ffn, ..Defaults::LLAMA })?;
        // transformers has one mask for all layers.
        let window = if keys.flag(SLIDES)? { keys.window()? } else { None };
        config.each_attention(|attention| (attention.qk_norm, attention.window) = (QkNorm::Each, window));
        let experts = keys.experts("moe_intermediate_size", false)?;
        for (layer, _) in config.layers.iter_mut().zip(is_dense).filter(|(_, is_dense)| !is_dense) {
            layer.feed_forward = FeedForward::Experts(experts);
        }
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf {
        name: "qwen3moe",
        keys: &metadata::EXPERTS,
        read: |keys| {
            let mut config = keys.mixture(Pairs::Halves)?;
            config.each_attention(|attention| attention.qk_norm = QkNorm::Each);
            Ok(config)
        },
    }),
};

/// Whether each layer has one feed-forward network in place of experts.
pub(super) fn dense_layers(keys: &Keys<'_>) -> Result<Vec<bool>, ModelError> {
    let layers = keys.required("num_hidden_layers")?.min(MAX_LAYERS);
    let (step, dense) =
        (keys.number("decoder_sparse_step")?.unwrap_or(1), json::numbers(keys.json, "mlp_only_layers")?);
    Ok((0..layers).map(|layer| dense.contains(&layer) || !(layer + 1).is_multiple_of(step)).collect())
}
