//! Qwen3-Next: Qwen 3 with gated delta nets in most layers, gates of the output of attention, a quarter of each head rotated,
//! norms of 1 + weight, and experts beside a shared one. Layers that predict further tokens (`mtp`) are left out.

use super::keys::{SLIDES, with};
use super::{Defaults, Family, Gguf, Keys, Metadata, Role, Scheme, metadata, qwen3_moe};
use crate::config::{
    Config, DeltaLayout, Dense, Experts, FeedForward, GatedDelta, Inputs, Mixer, NormKind, Pairs, QkNorm, json,
};
use crate::error::ModelError;

/// The keys of gated delta nets, and of the layers that have them.
pub(super) const DELTA: [&str; 6] = [
    "full_attention_interval",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
];

/// The same in GGUF files.
pub(super) const GGUF_DELTA: [&str; 6] = [
    "full_attention_interval",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];

/// The keys of experts, and of one that all tokens share, in GGUF files.
pub(super) const GGUF_EXPERTS: [&str; 5] = with(metadata::EXPERTS, ["expert_shared_feed_forward_length"]);

/// The names of the shared expert.
pub(super) const SHARED: [(Role, &str); 3] = [
    (Role::SharedGate, "mlp.shared_expert.gate_proj"),
    (Role::SharedUp, "mlp.shared_expert.up_proj"),
    (Role::SharedDown, "mlp.shared_expert.down_proj"),
];

pub(super) const DEFAULTS: Defaults =
    Defaults { kv_heads: Some(4), head_dim: Some(256), context: 32768, rotary_share: Some(0.25), ..Defaults::LLAMA };

const OWN: [&str; 8] = with(DELTA, ["shared_expert_intermediate_size", SLIDES]);

const KEYS: [&str; 18] = with(qwen3_moe::KEYS, OWN);

const GGUF_KEYS: [&str; 11] = with(GGUF_DELTA, GGUF_EXPERTS);

/// Names in GGUF files.
pub(super) const GGUF_NAMES: Scheme = Scheme { own: &[(Role::FfnNorm, "post_attention_norm")], ..Scheme::GGUF };

/// Those of files from before queries, keys and values were apart from gates.
const OLD_GGUF_NAMES: Scheme =
    Scheme { own: &[(Role::FfnNorm, "post_attention_norm"), (Role::DeltaInputs, "ssm_in")], ..Scheme::GGUF };

pub(super) const FAMILY: Family = Family {
    name: "qwen3_next",
    architecture: "Qwen3NextForCausalLM",
    keys: &KEYS,
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
    gguf: Some(Gguf {
        name: "qwen3next",
        keys: &GGUF_KEYS,
        read: |keys| {
            let is_old = keys.has("blk.0.ssm_in.weight");
            let layout = if is_old { DeltaLayout::Grouped } else { DeltaLayout::RatesGrouped };
            let mut config = of_gguf(keys, layout)?;
            if is_old {
                config.names = OLD_GGUF_NAMES;
            }
            Ok(config)
        },
    }),
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
        tiled: false,
        logarithmic: true,
    };
    let interval = number("full_attention_interval", 4)?.max(1);
    let is_full = keys.full_layers(config.layers.len(), |layer| (layer + 1).is_multiple_of(interval))?;
    for (layer, _) in config.layers.iter_mut().zip(is_full).filter(|(_, is_full)| !is_full) {
        layer.mixer = Mixer::Delta(delta);
    }
    Ok(config)
}

/// The same of a GGUF file, in which weights of norms have the 1 added.
pub(super) fn of_gguf(keys: &Metadata<'_>, layout: DeltaLayout) -> Result<Config, ModelError> {
    let mut config = keys.mixture(Pairs::Halves)?;
    config.norm = NormKind::Rms { offset: 0.0, wide: true };
    config.names = GGUF_NAMES;
    config.each_attention(|attention| (attention.qk_norm, attention.gated) = (QkNorm::Each, true));
    let value_heads = keys.required("ssm.time_step_rank")?;
    let delta = GatedDelta {
        key_heads: keys.required("ssm.group_count")?,
        value_heads,
        key_dim: keys.required("ssm.state_size")?,
        value_dim: keys.required("ssm.inner_size")?.checked_div(value_heads).unwrap_or(0),
        kernel: keys.required("ssm.conv_kernel")?,
        layout,
        // The converter of Qwen 3.5 changes the order of the heads.
        tiled: layout == DeltaLayout::Apart,
        logarithmic: false,
    };
    let interval = keys.number("full_attention_interval")?.unwrap_or(4).max(1);
    let shared = keys.number("expert_shared_feed_forward_length")?;
    for (number, layer) in config.layers.iter_mut().enumerate() {
        if !(number + 1).is_multiple_of(interval) {
            layer.mixer = Mixer::Delta(delta);
        }
        if let FeedForward::Experts(experts) = layer.feed_forward {
            let dense = Dense {
                ffn: shared.unwrap_or(experts.ffn),
                inputs: Inputs::Gated,
                bias: false,
                activation: experts.activation,
            };
            layer.feed_forward = FeedForward::Shared { dense, experts, is_gated: true };
        }
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
