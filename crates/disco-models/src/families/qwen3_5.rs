//! Qwen 3.5 (text), also as the text part of the models with images: Qwen3-Next with one feed-forward network, other matrices of
//! the gated delta nets, and positions with sections for images, which are alike in a text.

use super::keys::SLIDES;
use super::qwen3_next::{self, DEFAULTS};
use super::{Family, Keys, Role, Scheme, Wrapper};
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

pub(super) const FAMILY: Family = Family {
    name: "qwen3_5_text",
    architecture: "Qwen3_5ForCausalLM",
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
        "mtp_num_hidden_layers",
        SLIDES,
    ],
    json: |keys| {
        check(keys)?;
        qwen3_next::read(keys, DEFAULTS, DeltaLayout::Apart)
    },
    names: NAMES,
    wrapper: Some(Wrapper { name: "qwen3_5", architecture: "Qwen3_5ForConditionalGeneration" }),
    gguf: None,
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
