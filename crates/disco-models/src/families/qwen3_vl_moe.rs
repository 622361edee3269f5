//! The text part of Qwen3-VL with experts: those of Qwen 3, whose matrices are stacked as inputs × outputs.

use super::keys::with;
use super::{Defaults, Family, Gguf, Scheme, Wrapper, metadata, qwen3_moe, qwen3_vl};
use crate::config::{ExpertLayout, Layer};

const GGUF_KEYS: [&str; 6] = with(metadata::EXPERTS, qwen3_vl::GGUF_KEYS);

pub(super) const FAMILY: Family = Family {
    name: "qwen3_vl_moe_text",
    architecture: "Qwen3VLMoeTextModel",
    keys: &qwen3_moe::KEYS,
    json: |keys| {
        let defaults = Defaults { kv_heads: Some(16), rope_base: 5e5, context: 128_000, ..Defaults::LLAMA };
        let mut config = qwen3_moe::read(keys, defaults, true)?;
        for experts in config.layers.iter_mut().filter_map(Layer::experts_mut) {
            experts.layout = ExpertLayout::Transposed;
        }
        Ok(config)
    },
    names: Scheme::WITH_TOWERS,
    wrapper: Some(Wrapper { name: "qwen3_vl_moe", architecture: "Qwen3VLMoeForConditionalGeneration" }),
    gguf: Some(Gguf { name: "qwen3vlmoe", keys: &GGUF_KEYS, read: qwen3_moe::of_gguf }),
};
