//! The text part of Qwen3-VL: Qwen 3, whose positions have sections for images, which are alike in a text.

use super::keys::SLIDES;
use super::{Defaults, Family, Gguf, Scheme, Wrapper, qwen3};

pub(super) const FAMILY: Family = Family {
    name: "qwen3_vl_text",
    architecture: "Qwen3VLTextModel",
    keys: &["attention_bias", SLIDES, "sliding_window", "max_window_layers", qwen3::QK_NORM],
    json: |keys| qwen3::read(keys, Defaults { rope_base: 5e6, context: 128_000, ..qwen3::DEFAULTS }),
    names: Scheme::WITH_TOWERS,
    wrapper: Some(Wrapper { name: "qwen3_vl", architecture: "Qwen3VLForConditionalGeneration" }),
    gguf: Some(Gguf { name: "qwen3vl", keys: &GGUF_KEYS, read: qwen3::of_gguf }),
};

/// Of images and of positions.
pub(super) const GGUF_KEYS: [&str; 2] = ["n_deepstack_layers", "rope.dimension_sections"];
