//! Mixtures of experts of Qwen 3: Qwen 3 with experts in place of the feed-forward network, in some layers or all.

use super::keys::{SLIDES, with};
use super::{Defaults, Family, Gguf, Keys, Metadata, Scheme, metadata, qwen3};
use crate::config::{Config, FeedForward, MAX_LAYERS, Pairs, QkNorm, json};
use crate::error::ModelError;

/// The keys of all models.
pub(super) const KEYS: [&str; 10] = [
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
];

const OWN_KEYS: [&str; 14] = with(KEYS, [SLIDES, "sliding_window", "max_window_layers", qwen3::QK_NORM]);

pub(super) const FAMILY: Family = Family {
    name: "qwen3_moe",
    architecture: "Qwen3MoeForCausalLM",
    keys: &OWN_KEYS,
    json: |keys| {
        let mut config = read(keys, Defaults { kv_heads: Some(4), context: 32768, ..Defaults::LLAMA }, false)?;
        // transformers has one mask for all layers.
        let window = if keys.flag(SLIDES)? { keys.window()? } else { None };
        config.each_attention(|attention| attention.window = window);
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf { name: "qwen3moe", keys: &metadata::EXPERTS, read: of_gguf }),
};

pub(super) fn of_gguf(keys: &Metadata<'_>) -> Result<Config, ModelError> {
    let mut config = keys.mixture(Pairs::Halves)?;
    config.each_attention(|attention| attention.qk_norm = QkNorm::Each);
    Ok(config)
}

/// A model without windows. `normalises`: whether the shares of experts sum up to 1 whatever the keys say.
pub(super) fn read(keys: &Keys<'_>, defaults: Defaults, normalises: bool) -> Result<Config, ModelError> {
    let is_dense = dense_layers(keys)?;
    let ffn = if is_dense.contains(&true) { defaults.ffn } else { "moe_intermediate_size" };
    let mut config = keys.llama(Defaults { ffn, ..defaults })?;
    config.each_attention(|attention| attention.qk_norm = QkNorm::Each);
    let experts = keys.experts("moe_intermediate_size", normalises)?;
    for (layer, _) in config.layers.iter_mut().zip(is_dense).filter(|(_, is_dense)| !is_dense) {
        layer.feed_forward = FeedForward::Experts(experts);
    }
    Ok(config)
}

/// Whether each layer has one feed-forward network in place of experts.
pub(super) fn dense_layers(keys: &Keys<'_>) -> Result<Vec<bool>, ModelError> {
    let layers = keys.required("num_hidden_layers")?.min(MAX_LAYERS);
    let (step, dense) =
        (keys.number("decoder_sparse_step")?.unwrap_or(1), json::numbers(keys.json, "mlp_only_layers")?);
    Ok((0..layers).map(|layer| dense.contains(&layer) || !(layer + 1).is_multiple_of(step)).collect())
}
