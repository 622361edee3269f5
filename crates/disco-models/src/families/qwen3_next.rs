//! Qwen3-Next: Qwen 3 with gated delta nets in most layers, gates of the output of attention, a quarter of each head rotated,
//! norms of 1 + weight, and experts beside a shared one. Layers that predict further tokens (`mtp`) are left out.

use super::keys::SLIDES;
use super::{Defaults, Family, Keys, Role, Scheme, qwen3_moe};
use crate::config::{Config, DeltaLayout, Dense, Experts, FeedForward, GatedDelta, Mixer, NormKind, QkNorm, json};
use crate::error::ModelError;

/// The names of the shared expert.
pub(super) const SHARED: [(Role, &str); 3] = [
    (Role::SharedGate, "mlp.shared_expert.gate_proj"),
    (Role::SharedUp, "mlp.shared_expert.up_proj"),
    (Role::SharedDown, "mlp.shared_expert.down_proj"),
];

pub(super) const DEFAULTS: Defaults =
    Defaults { kv_heads: Some(4), head_dim: Some(256), context: 32768, rotary_share: Some(0.25), ..Defaults::LLAMA };

pub(super) const FAMILY: Family = Family {
    name: "qwen3_next",
    architecture: "Qwen3NextForCausalLM",
    keys: &[
        "attention_bias",
        "decoder_sparse_step",
        "full_attention_interval",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
        "output_router_logits",
        "router_aux_loss_coef",
        "shared_expert_intermediate_size",
        SLIDES,
    ],
    json: |keys| {
        let is_dense = qwen3_moe::dense_layers(keys)?;
        let ffn = if is_dense.contains(&true) { Defaults::LLAMA.ffn } else { "moe_intermediate_size" };
        let mut config = read(keys, Defaults { kv_heads: Some(2), ffn, ..DEFAULTS }, DeltaLayout::Grouped)?;
        let normalises = json::flag(keys.json, "norm_topk_prob")?.unwrap_or(true);
        mix(keys, &mut config, keys.experts("moe_intermediate_size", normalises)?, &is_dense)?;
        Ok(config)
    },
    names: Scheme { own: &SHARED, skipped: &["mtp."], ..Scheme::LLAMA },
    wrapper: None,
    gguf: None,
};

/// A model with gated delta nets in three of four layers, unless the keys say which layers have them.
pub(super) fn read(keys: &Keys<'_>, defaults: Defaults, layout: DeltaLayout) -> Result<Config, ModelError> {
    let number = |key, default| Ok::<_, ModelError>(keys.number(key)?.unwrap_or(default));
    let mut config = keys.llama(defaults)?;
    config.norm = NormKind::Rms { offset: 1.0, wide: true };
    config.each_attention(|attention| (attention.qk_norm, attention.gated) = (QkNorm::Each, true));
    let delta = GatedDelta {
        key_heads: number("linear_num_key_heads", 16)?,
        value_heads: number("linear_num_value_heads", 32)?,
        key_dim: number("linear_key_head_dim", 128)?,
        value_dim: number("linear_value_head_dim", 128)?,
        kernel: number("linear_conv_kernel_dim", 4)?,
        layout,
    };
    let interval = number("full_attention_interval", 4)?.max(1);
    let is_full = keys.full_layers(config.layers.len(), |layer| (layer + 1).is_multiple_of(interval))?;
    for (layer, _) in config.layers.iter_mut().zip(is_full).filter(|(_, is_full)| !is_full) {
        layer.mixer = Mixer::Delta(delta);
    }
    Ok(config)
}

/// Gives experts, and one that all tokens share, to the layers that are not dense.
pub(super) fn mix(keys: &Keys<'_>, config: &mut Config, experts: Experts, is_dense: &[bool]) -> Result<(), ModelError> {
    let shared = keys.number("shared_expert_intermediate_size")?.unwrap_or(512);
    for (layer, _) in config.layers.iter_mut().zip(is_dense).filter(|(_, is_dense)| !**is_dense) {
        if let FeedForward::Dense(dense) = layer.feed_forward {
            let dense = Dense { ffn: shared, ..dense };
            layer.feed_forward = FeedForward::Shared { dense, experts, is_gated: true };
        }
    }
    Ok(())
}
