//! Qwen 3.5 (text), also as the text part of the models with images: Qwen3-Next with one feed-forward network, other matrices of
//! the gated delta nets, and positions with sections for images, which are alike in a text.

use super::keys::{SLIDES, with};
use super::qwen3_next::{self, DEFAULTS, DELTA, GGUF_DELTA};
use super::{Family, Gguf, Keys, Role, Scheme, Wrapper, metadata};
use crate::config::{DeltaLayout, json};
use crate::error::ModelError;

/// The names of the gated delta nets, and of the shared expert.
pub(super) const NAMES: Scheme = Scheme {
    own: &[
        (Role::DeltaInputs, "linear_attn.in_proj_qkv"),
        qwen3_next::SHARED[0],
        qwen3_next::SHARED[1],
        qwen3_next::SHARED[2],
    ],
    skipped: &["mtp.", "model.visual."],
    ..Scheme::WITH_TOWERS
};

/// The keys of all models.
pub(super) const KEYS: [&str; 11] =
    with(DELTA, ["attention_bias", "attn_output_gate", "mamba_ssm_dtype", "mtp_num_hidden_layers", SLIDES]);

/// The same in GGUF files. The sections of positions are alike in a text.
pub(super) const GGUF_KEYS: [&str; 8] = with(GGUF_DELTA, ["rope.dimension_sections", metadata::FURTHER_LAYERS]);

pub(super) const FAMILY: Family = Family {
    name: "qwen3_5_text",
    architecture: "Qwen3_5ForCausalLM",
    keys: &KEYS,
    json: |keys| {
        check(keys)?;
        qwen3_next::read(keys, DEFAULTS, DeltaLayout::Apart)
    },
    names: NAMES,
    wrapper: Some(Wrapper { name: "qwen3_5", architecture: "Qwen3_5ForConditionalGeneration" }),
    gguf: Some(Gguf { name: "qwen35", keys: &GGUF_KEYS, read: |keys| qwen3_next::of_gguf(keys, DeltaLayout::Apart) }),
};

/// # Errors
/// A key has another value than all models have.
pub(super) fn check(keys: &Keys<'_>) -> Result<(), ModelError> {
    if json::flag(keys.json, "attn_output_gate")? == Some(false) {
        return Err(ModelError::Feature { feature: "attn_output_gate false".into() });
    }
    match json::text(keys.json, "mamba_ssm_dtype")? {
        None | Some("float32") => Ok(()),
        Some(other) => Err(ModelError::Feature { feature: format!("mamba_ssm_dtype {other:?}") }),
    }
}
