//! Qwen 3.5 with experts beside a shared one.

use super::keys::SLIDES;
use super::qwen3_next::{self, DEFAULTS};
use super::{Defaults, Family, Wrapper, qwen3_5};
use crate::config::DeltaLayout;

pub(super) const FAMILY: Family = Family {
    name: "qwen3_5_moe_text",
    architecture: "Qwen3_5MoeForCausalLM",
    keys: &[
        "attention_bias",
        "attn_output_gate",
        "full_attention_interval",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "mamba_ssm_dtype",
        "moe_intermediate_size",
        "mtp_num_hidden_layers",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
        "output_router_logits",
        "router_aux_loss_coef",
        "shared_expert_intermediate_size",
        SLIDES,
    ],
    json: |keys| {
        qwen3_5::check(keys)?;
        let defaults = Defaults { kv_heads: Some(2), ffn: "moe_intermediate_size", ..DEFAULTS };
        let mut config = qwen3_next::read(keys, defaults, DeltaLayout::Apart)?;
        let is_dense = vec![false; config.layers.len()];
        qwen3_next::mix(keys, &mut config, keys.experts("moe_intermediate_size", true)?, &is_dense)?;
        Ok(config)
    },
    names: qwen3_5::NAMES,
    wrapper: Some(Wrapper { name: "qwen3_5_moe", architecture: "Qwen3_5MoeForConditionalGeneration" }),
    gguf: None,
};
