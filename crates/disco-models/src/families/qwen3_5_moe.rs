//! Qwen 3.5 with experts beside a shared one.

use super::keys::with;
use super::qwen3_next::{self, DEFAULTS, GGUF_EXPERTS};
use super::{Defaults, Family, Gguf, Wrapper, qwen3_5};
use crate::config::DeltaLayout;

const KEYS: [&str; 18] = with(
    qwen3_5::KEYS,
    [
        "moe_intermediate_size",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
        "output_router_logits",
        "router_aux_loss_coef",
        "shared_expert_intermediate_size",
    ],
);

const GGUF_KEYS: [&str; 13] = with(qwen3_5::GGUF_KEYS, GGUF_EXPERTS);

pub(super) const FAMILY: Family = Family {
    name: "qwen3_5_moe_text",
    architecture: "Qwen3_5MoeForCausalLM",
    keys: &KEYS,
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
    gguf: Some(Gguf {
        name: "qwen35moe",
        keys: &GGUF_KEYS,
        read: |keys| qwen3_next::of_gguf(keys, DeltaLayout::Apart),
    }),
};
