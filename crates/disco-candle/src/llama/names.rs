//! Names of the tensors in GGUF files and in files of Hugging Face.

use crate::weights::Weights;

/// The divisors of the frequencies of rotary embeddings, in GGUF files.
pub(super) const DIVISORS: &str = "rope_freqs.weight";

/// The scheme of the names in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    Gguf,
    HuggingFace,
}

/// A tensor of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    AttentionNorm,
    Query,
    Key,
    Value,
    Output,
    FfnNorm,
    Gate,
    Up,
    Down,
}

impl Names {
    /// The scheme of opened weights.
    pub(super) fn of(weights: &Weights) -> Self {
        match weights.gguf() {
            Some(_) => Self::Gguf,
            None => Self::HuggingFace,
        }
    }

    /// The embedding matrix.
    pub(super) fn embedding(self) -> &'static str {
        match self {
            Self::Gguf => "token_embd.weight",
            Self::HuggingFace => "model.embed_tokens.weight",
        }
    }

    /// The matrix of the logits, unless it is the embedding matrix.
    pub(super) fn logits(self) -> &'static str {
        match self {
            Self::Gguf => "output.weight",
            Self::HuggingFace => "lm_head.weight",
        }
    }

    /// The norm after the last layer.
    pub(super) fn norm(self) -> &'static str {
        match self {
            Self::Gguf => "output_norm.weight",
            Self::HuggingFace => "model.norm.weight",
        }
    }

    /// What the names of all tensors of layers begin with.
    pub(super) fn layers(self) -> &'static str {
        match self {
            Self::Gguf => "blk.",
            Self::HuggingFace => "model.layers.",
        }
    }

    /// A tensor of a layer; `*` as the layer gives a pattern for all layers.
    pub(super) fn layer(self, layer: impl std::fmt::Display, role: Role) -> String {
        match self {
            Self::Gguf => format!("{}{layer}.{}.weight", self.layers(), role.gguf()),
            Self::HuggingFace => format!("{}{layer}.{}.weight", self.layers(), role.hugging_face()),
        }
    }
}

impl Role {
    pub(super) const ALL: [Self; 9] = [
        Self::AttentionNorm,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::Output,
        Self::FfnNorm,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    fn gguf(self) -> &'static str {
        match self {
            Self::AttentionNorm => "attn_norm",
            Self::Query => "attn_q",
            Self::Key => "attn_k",
            Self::Value => "attn_v",
            Self::Output => "attn_output",
            Self::FfnNorm => "ffn_norm",
            Self::Gate => "ffn_gate",
            Self::Up => "ffn_up",
            Self::Down => "ffn_down",
        }
    }

    fn hugging_face(self) -> &'static str {
        match self {
            Self::AttentionNorm => "input_layernorm",
            Self::Query => "self_attn.q_proj",
            Self::Key => "self_attn.k_proj",
            Self::Value => "self_attn.v_proj",
            Self::Output => "self_attn.o_proj",
            Self::FfnNorm => "post_attention_layernorm",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }
}
