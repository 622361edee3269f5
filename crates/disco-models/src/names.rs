//! Names of the tensors in GGUF files and in files of Hugging Face.

use disco_candle::weights::Weights;

use crate::Features;

/// The scheme of the names in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    Gguf,
    HuggingFace,
    /// That of Hugging Face, with other names of experts.
    Mixtral,
}

/// A tensor of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    AttentionNorm,
    Query,
    Key,
    Value,
    /// Query, key and value in one matrix.
    Qkv,
    QueryNorm,
    KeyNorm,
    Output,
    AttentionPostNorm,
    FfnNorm,
    /// The norm before the feed-forward network where there is one after the attention, too.
    PreFfnNorm,
    FfnPostNorm,
    Gate,
    Up,
    /// Gate and up in one matrix.
    GateUp,
    Down,
    /// The matrix of the logits of experts.
    Router,
}

/// The matrices of an expert.
pub(crate) const EXPERT: [Role; 3] = [Role::Gate, Role::Up, Role::Down];

impl Names {
    /// The scheme of opened weights.
    pub(crate) fn of(weights: &Weights) -> Self {
        match weights.gguf() {
            Some(_) => Self::Gguf,
            None if weights.contains("model.layers.0.block_sparse_moe.gate.weight") => Self::Mixtral,
            None => Self::HuggingFace,
        }
    }

    /// The embedding matrix.
    pub(crate) fn embedding(self) -> &'static str {
        self.of_both("token_embd.weight", "model.embed_tokens.weight")
    }

    /// The embedding matrix in `weights`, which may have one matrix for both ends of a model with `tied` ends, by either
    /// name.
    pub(crate) fn embedding_in(self, weights: &Weights, tied: bool) -> &'static str {
        let has_only_logits = !weights.contains(self.embedding()) && weights.contains(self.logits());
        if tied && has_only_logits { self.logits() } else { self.embedding() }
    }

    /// The matrix of the logits, unless it is the embedding matrix.
    pub(crate) fn logits(self) -> &'static str {
        self.of_both("output.weight", "lm_head.weight")
    }

    /// The norm after the last layer.
    pub(crate) fn norm(self) -> &'static str {
        self.of_both("output_norm.weight", "model.norm.weight")
    }

    /// What the names of all tensors of layers begin with.
    pub(crate) fn layers(self) -> &'static str {
        self.of_both("blk.", "model.layers.")
    }

    /// A tensor of a layer; `*` as the layer gives a pattern for all layers.
    pub(crate) fn layer(self, layer: impl std::fmt::Display, role: Role) -> String {
        let (gguf, hugging_face) = match role {
            Role::AttentionNorm => ("attn_norm", "input_layernorm"),
            Role::Query => ("attn_q", "self_attn.q_proj"),
            Role::Key => ("attn_k", "self_attn.k_proj"),
            Role::Value => ("attn_v", "self_attn.v_proj"),
            Role::QueryNorm => ("attn_q_norm", "self_attn.q_norm"),
            Role::KeyNorm => ("attn_k_norm", "self_attn.k_norm"),
            Role::Output => ("attn_output", "self_attn.o_proj"),
            Role::AttentionPostNorm => ("post_attention_norm", "post_attention_layernorm"),
            Role::FfnNorm => ("ffn_norm", "post_attention_layernorm"),
            Role::PreFfnNorm => ("ffn_norm", "pre_feedforward_layernorm"),
            Role::FfnPostNorm => ("post_ffw_norm", "post_feedforward_layernorm"),
            Role::Qkv => ("attn_qkv", "self_attn.qkv_proj"),
            Role::GateUp => ("ffn_up", "mlp.gate_up_proj"),
            Role::Gate => ("ffn_gate", "mlp.gate_proj"),
            Role::Up => ("ffn_up", "mlp.up_proj"),
            Role::Down => ("ffn_down", "mlp.down_proj"),
            Role::Router if self == Self::Mixtral => ("", "block_sparse_moe.gate"),
            Role::Router => ("ffn_gate_inp", "mlp.gate"),
        };
        format!("{}{layer}.{}.weight", self.layers(), self.of_both(gguf, hugging_face))
    }

    /// A matrix of an expert, of which `role` says which one; in a GGUF file, the tensor that stacks those of all experts.
    pub(crate) fn expert(self, layer: impl std::fmt::Display, expert: impl std::fmt::Display, role: Role) -> String {
        let name = self.layer(layer, role);
        match (self, role) {
            (Self::Gguf, _) => name.replace(".weight", "_exps.weight"),
            (Self::HuggingFace, _) => name.replace("mlp.", &format!("mlp.experts.{expert}.")),
            (Self::Mixtral, role) => {
                let module = name.split("mlp.").next().unwrap_or_default();
                let number = match role {
                    Role::Gate => 1,
                    Role::Down => 2,
                    _ => 3,
                };
                format!("{module}block_sparse_moe.experts.{expert}.w{number}.weight")
            }
        }
    }

    /// The bias beside a matrix of a layer.
    pub(crate) fn bias(self, layer: impl std::fmt::Display, role: Role) -> String {
        self.layer(layer, role).replace(".weight", ".bias")
    }

    /// The name of a tensor in this scheme.
    fn of_both(self, gguf: &'static str, hugging_face: &'static str) -> &'static str {
        match self {
            Self::Gguf => gguf,
            Self::HuggingFace | Self::Mixtral => hugging_face,
        }
    }
}

impl Role {
    /// The tensors of a layer of a model with `features`, without those of experts.
    pub(crate) fn all(features: &Features, layer: usize) -> impl Iterator<Item = Self> {
        let has_head_norms = features.head_norms || features.joint_head_norms;
        let head_norms = [Self::QueryNorm, Self::KeyNorm].into_iter().filter(move |_| has_head_norms);
        let pre_norms = [Self::AttentionNorm, Self::ffn_norm(features)].into_iter().filter(|_| features.pre_norms);
        let post_norms = [Self::AttentionPostNorm, Self::FfnPostNorm].into_iter().filter(|_| features.post_norms);
        let inputs: &[Self] = match features.experts_of(layer) {
            Some(_) => &[Self::Query, Self::Key, Self::Value, Self::Router],
            None if features.fused => &[Self::Qkv, Self::GateUp, Self::Down],
            None => &[Self::Query, Self::Key, Self::Value, Self::Gate, Self::Up, Self::Down],
        };
        [Self::Output].into_iter().chain(inputs.iter().copied()).chain(pre_norms).chain(head_norms).chain(post_norms)
    }

    /// The norm before the feed-forward network.
    pub(crate) fn ffn_norm(features: &Features) -> Self {
        if features.post_norms { Self::PreFfnNorm } else { Self::FfnNorm }
    }

    /// Whether the matrix has a bias in a model with `features`.
    pub(crate) fn has_bias(self, features: &Features) -> bool {
        match self {
            Self::Query | Self::Key | Self::Value => features.input_bias,
            Self::Output => features.output_bias,
            Self::Gate | Self::Up | Self::Down => features.ffn_bias,
            _ => false,
        }
    }
}
