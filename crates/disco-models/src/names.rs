//! Names of tensors, in GGUF files and in files of Hugging Face.

use std::fmt::Display;

use disco_candle::weights::Weights;

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
    /// The latent vector of queries, its norm, and the queries of it.
    QueryDown,
    QueryDownNorm,
    QueryUp,
    /// The latent vector of keys and values with the rotated elements of keys, its norm, and the rest of keys and values of it.
    LatentDown,
    LatentNorm,
    LatentUp,
    /// The rest of keys, and values, each a stack of matrices of the heads.
    LatentKeys,
    LatentValues,
    AttentionPostNorm,
    /// Of a gated delta net: queries, keys and values, perhaps with gates; gates; rates; decays; rates and decays.
    DeltaInputs,
    DeltaGates,
    DeltaRates,
    DeltaDecays,
    DeltaRatesDecays,
    /// Its convolution, the logarithms of the scales of decays, their biases, the norm of heads, and its output.
    DeltaConvolution,
    DeltaScales,
    DeltaBiases,
    DeltaNorm,
    DeltaOutput,
    FfnNorm,
    FfnPostNorm,
    Gate,
    Up,
    /// Gate and up in one matrix.
    GateUp,
    Down,
    /// The network that all tokens share beside experts.
    SharedGate,
    SharedUp,
    SharedDown,
    /// The gate of that network.
    SharedGating,
    /// The matrix of the logits of experts.
    Router,
    /// A bias of scores for the choice of experts.
    RouterCorrection,
    /// A score of each head beside those of tokens.
    Sinks,
    ExpertGate,
    ExpertUp,
    ExpertDown,
    /// Gate and up of all experts, and down of all.
    ExpertGateUp,
    ExpertDowns,
    /// Norms of a network and of experts beside each other.
    DensePostNorm,
    ExpertsNorm,
    ExpertsPostNorm,
    /// Factors of the router's inputs, and of the shares of experts.
    RouterScale,
    ExpertScale,
    /// The matrices and the norm of the inputs of layers.
    InputGate,
    InputProjection,
    InputNorm,
    /// A factor of the hidden state.
    Scalar,
}

/// The matrices of an expert.
pub(crate) const EXPERT: [Role; 3] = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];

/// Gate and up of all experts, and down of all.
pub(crate) const EXPERT_STACKS: [Role; 2] = [Role::ExpertGateUp, Role::ExpertDowns];

impl Role {
    /// Whether the tensor's name is that of its module, without `.weight`.
    fn is_module(self) -> bool {
        use Role::{DeltaBiases, DeltaScales, ExpertScale, RouterCorrection, RouterScale, Scalar, Sinks};
        matches!(self, DeltaBiases | DeltaScales | ExpertScale | RouterCorrection | RouterScale | Scalar | Sinks)
    }
}

/// The names of a family's tensors. `*` in the name of an expert's matrix is its number; without it, one tensor stacks the
/// matrices of all experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scheme {
    /// What all names but that of the logits begin with, and the matrix of the logits; of several, the one that the files
    /// have.
    pub(crate) modules: &'static [(&'static str, &'static str)],
    pub(crate) embedding: &'static str,
    pub(crate) positions: &'static str,
    /// The norm behind the last layer.
    pub(crate) norm: &'static str,
    pub(crate) layers: &'static str,
    /// Names in a layer that differ from those of the other families.
    pub(crate) own: &'static [(Role, &'static str)],
    /// Names in a layer, in files of this kind; llama's in files of Hugging Face for all others.
    pub(crate) common: &'static [(Role, &'static str)],
    /// The second table of embeddings, the projection of the first one's that is added, and the norm of the projection.
    pub(crate) layer_inputs: [&'static str; 3],
    /// Matrices of layers are stored as inputs × outputs.
    pub(crate) is_transposed: bool,
    /// Beginnings of names of tensors that the text model does not have, and endings of names in layers: buffers.
    pub(crate) skipped: &'static [&'static str],
    pub(crate) buffers: &'static [&'static str],
}

impl Scheme {
    /// Llama's names in files of Hugging Face.
    pub(crate) const LLAMA: Self = Self {
        // Models for embeddings have no module around them.
        modules: &[("model.", "lm_head.weight"), ("", "lm_head.weight")],
        embedding: "embed_tokens",
        positions: "",
        norm: "norm",
        layers: "layers.",
        own: &[],
        common: &[],
        layer_inputs: ["embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm"],
        is_transposed: false,
        skipped: &[],
        // transformers computes these frequencies again, as we do.
        buffers: &["rotary_emb.inv_freq"],
    };

    /// Names of files whose model has towers for images beside it.
    pub(crate) const WITH_TOWERS: Self = Self {
        modules: &[
            ("model.", "lm_head.weight"),
            ("language_model.model.", "language_model.lm_head.weight"),
            ("model.language_model.", "lm_head.weight"),
            ("", "lm_head.weight"),
        ],
        skipped: &[
            "model.audio_tower.",
            "model.embed_audio.",
            "model.embed_vision.",
            "vision_tower.",
            "multi_modal_projector.",
            "model.vision_tower.",
            "model.multi_modal_projector.",
            "model.visual.",
        ],
        ..Self::LLAMA
    };

    /// llama.cpp's names. Most are the same for all families.
    pub(crate) const GGUF: Self = Self {
        modules: &[("", "output.weight")],
        embedding: "token_embd",
        positions: "position_embd",
        norm: "output_norm",
        layers: "blk.",
        common: &[
            (Role::AttentionNorm, "attn_norm"),
            (Role::Query, "attn_q"),
            (Role::Key, "attn_k"),
            (Role::Value, "attn_v"),
            (Role::Qkv, "attn_qkv"),
            (Role::QueryNorm, "attn_q_norm"),
            (Role::KeyNorm, "attn_k_norm"),
            (Role::Sinks, "attn_sinks.weight"),
            (Role::Output, "attn_output"),
            (Role::QueryDown, "attn_q_a"),
            (Role::QueryDownNorm, "attn_q_a_norm"),
            (Role::QueryUp, "attn_q_b"),
            (Role::LatentDown, "attn_kv_a_mqa"),
            (Role::LatentNorm, "attn_kv_a_norm"),
            (Role::LatentUp, "attn_kv_b"),
            (Role::LatentKeys, "attn_k_b"),
            (Role::LatentValues, "attn_v_b"),
            (Role::AttentionPostNorm, "post_attention_norm"),
            (Role::DeltaInputs, "attn_qkv"),
            (Role::DeltaGates, "attn_gate"),
            (Role::DeltaRates, "ssm_beta"),
            (Role::DeltaDecays, "ssm_alpha"),
            (Role::DeltaRatesDecays, "ssm_ba"),
            (Role::DeltaConvolution, "ssm_conv1d"),
            (Role::DeltaScales, "ssm_a"),
            (Role::DeltaBiases, "ssm_dt.bias"),
            (Role::DeltaNorm, "ssm_norm"),
            (Role::DeltaOutput, "ssm_out"),
            (Role::FfnNorm, "ffn_norm"),
            (Role::FfnPostNorm, "post_ffw_norm"),
            (Role::Gate, "ffn_gate"),
            (Role::Up, "ffn_up"),
            (Role::GateUp, "ffn_up"),
            (Role::Down, "ffn_down"),
            (Role::SharedGate, "ffn_gate_shexp"),
            (Role::SharedUp, "ffn_up_shexp"),
            (Role::SharedDown, "ffn_down_shexp"),
            (Role::SharedGating, "ffn_gate_inp_shexp"),
            (Role::Router, "ffn_gate_inp"),
            (Role::RouterCorrection, "exp_probs_b.bias"),
            (Role::ExpertGate, "ffn_gate_exps"),
            (Role::ExpertUp, "ffn_up_exps"),
            (Role::ExpertDown, "ffn_down_exps"),
            (Role::ExpertGateUp, "ffn_gate_up_exps.weight"),
            (Role::ExpertDowns, "ffn_down_exps.weight"),
            (Role::DensePostNorm, "post_ffw_norm_1"),
            (Role::ExpertsNorm, "pre_ffw_norm_2"),
            (Role::ExpertsPostNorm, "post_ffw_norm_2"),
            (Role::RouterScale, "ffn_gate_inp.scale"),
            (Role::ExpertScale, "ffn_down_exps.scale"),
            (Role::InputGate, "inp_gate"),
            (Role::InputProjection, "proj"),
            (Role::InputNorm, "post_norm"),
            (Role::Scalar, "layer_output_scale.weight"),
        ],
        layer_inputs: ["per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"],
        buffers: &[],
        ..Self::LLAMA
    };
}

/// The names of the tensors of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    scheme: Scheme,
    module: &'static str,
    logits: &'static str,
    is_gguf: bool,
}

impl Names {
    /// The names in opened weights.
    pub(crate) fn of(scheme: Scheme, weights: &Weights) -> Self {
        let has = |module: &str| weights.contains(&format!("{module}{}.weight", scheme.norm));
        let found = scheme.modules.iter().find(|(module, _)| has(module)).or(scheme.modules.first());
        let (module, logits) = found.copied().unwrap_or_default();
        Self { scheme, module, logits, is_gguf: weights.gguf().is_some() }
    }

    /// Whether the files are GGUF.
    pub(crate) fn is_gguf(&self) -> bool {
        self.is_gguf
    }

    /// Whether matrices of layers are stored as inputs × outputs.
    pub(crate) fn is_transposed(&self) -> bool {
        self.scheme.is_transposed
    }

    /// The embedding matrix.
    pub(crate) fn embedding(&self) -> String {
        format!("{}{}.weight", self.module, self.scheme.embedding)
    }

    /// The embedding matrix in `weights`, which may have one matrix for both ends of a model with `tied` ends, by either
    /// name.
    pub(crate) fn embedding_in(&self, weights: &Weights, tied: bool) -> String {
        let embedding = self.embedding();
        let has_only_logits = !weights.contains(&embedding) && weights.contains(self.logits);
        if tied && has_only_logits { self.logits.into() } else { embedding }
    }

    /// The table of learnt embeddings of positions.
    pub(crate) fn positions(&self) -> String {
        format!("{}{}.weight", self.module, self.scheme.positions)
    }

    /// The second table of embeddings, the projection of the first one's that is added, and the norm of the projection.
    pub(crate) fn layer_inputs(&self) -> [String; 3] {
        self.scheme.layer_inputs.map(|name| format!("{}{name}.weight", self.module))
    }

    /// The matrix of the logits, unless it is the embedding matrix.
    pub(crate) fn logits(&self) -> &'static str {
        self.logits
    }

    /// The norm behind the last layer.
    pub(crate) fn norm(&self) -> String {
        format!("{}{}.weight", self.module, self.scheme.norm)
    }

    /// What the names of all tensors of layers begin with.
    pub(crate) fn layers(&self) -> String {
        format!("{}{}", self.module, self.scheme.layers)
    }

    /// A tensor of a layer; `*` as the layer gives a pattern for all layers.
    pub(crate) fn layer(&self, layer: impl Display, role: Role) -> String {
        let module = self.module(layer, role);
        if role.is_module() { module } else { format!("{module}.weight") }
    }

    /// The name of a tensor of a layer without `.weight`.
    pub(crate) fn module(&self, layer: impl Display, role: Role) -> String {
        format!("{}{layer}.{}", self.layers(), self.in_layer(role))
    }

    /// A matrix of an expert, or the tensor that stacks those of all experts.
    pub(crate) fn expert(&self, layer: impl Display, expert: impl Display, role: Role) -> String {
        let name = self.in_layer(role).replacen('*', &expert.to_string(), 1);
        format!("{}{layer}.{name}.weight", self.layers())
    }

    /// Whether the matrices of all experts of a layer are one tensor.
    pub(crate) fn stacks_experts(&self) -> bool {
        !self.in_layer(Role::ExpertDown).contains('*')
    }

    /// Whether a tensor is one of these of a layer, in whatever form.
    pub(crate) fn is_one_of(&self, name: &str, layer: usize, roles: &[Role]) -> bool {
        let is = |role: &Role| name.strip_prefix(&self.module(layer, *role)).is_some_and(|rest| rest.starts_with('.'));
        roles.iter().any(is)
    }

    /// The number of the layer that a tensor is of, by its name.
    pub(crate) fn layer_of(&self, name: &str) -> Option<usize> {
        name.strip_prefix(&self.layers())?.split('.').next()?.parse().ok()
    }

    /// Whether a tensor that is not used is none of the text model's weights.
    pub(crate) fn is_skipped(&self, name: &str) -> bool {
        self.scheme.skipped.iter().any(|module| name.starts_with(module))
            || self.scheme.buffers.iter().any(|buffer| name.ends_with(buffer))
    }

    /// Whether a tensor is of the text model, by the beginning of its name.
    pub(crate) fn is_of_model(&self, name: &str) -> bool {
        self.is_gguf || [self.module, self.head(), "lm_head."].iter().any(|module| name.starts_with(module))
    }

    /// Whether the files have a matrix for logits, in whatever form.
    pub(crate) fn have_logits(&self, weights: &Weights) -> bool {
        weights.names().any(|name| name.starts_with(self.head()))
    }

    /// What the names of the tensors of the logits begin with.
    fn head(&self) -> &'static str {
        self.logits.strip_suffix("weight").unwrap_or(self.logits)
    }

    fn in_layer(&self, role: Role) -> &'static str {
        let mut own = self.scheme.own.iter().chain(self.scheme.common);
        own.find(|(known, _)| *known == role).map_or_else(|| in_llama(role), |(_, name)| *name)
    }
}

/// The name of a tensor in a layer in files of Hugging Face, without `.weight`.
fn in_llama(role: Role) -> &'static str {
    match role {
        Role::AttentionNorm => "input_layernorm",
        Role::Query => "self_attn.q_proj",
        Role::Key => "self_attn.k_proj",
        Role::Value => "self_attn.v_proj",
        Role::Qkv => "self_attn.qkv_proj",
        Role::QueryNorm => "self_attn.q_norm",
        Role::KeyNorm => "self_attn.k_norm",
        Role::Output => "self_attn.o_proj",
        Role::QueryDown => "self_attn.q_a_proj",
        Role::QueryDownNorm => "self_attn.q_a_layernorm",
        Role::QueryUp => "self_attn.q_b_proj",
        Role::LatentDown => "self_attn.kv_a_proj_with_mqa",
        Role::LatentNorm => "self_attn.kv_a_layernorm",
        Role::LatentUp => "self_attn.kv_b_proj",
        Role::LatentKeys => "self_attn.k_b_proj",
        Role::LatentValues => "self_attn.v_b_proj",
        Role::DeltaInputs => "linear_attn.in_proj_qkvz",
        Role::DeltaGates => "linear_attn.in_proj_z",
        Role::DeltaRates => "linear_attn.in_proj_b",
        Role::DeltaDecays => "linear_attn.in_proj_a",
        Role::DeltaRatesDecays => "linear_attn.in_proj_ba",
        Role::DeltaConvolution => "linear_attn.conv1d",
        Role::DeltaScales => "linear_attn.A_log",
        Role::DeltaBiases => "linear_attn.dt_bias",
        Role::DeltaNorm => "linear_attn.norm",
        Role::DeltaOutput => "linear_attn.out_proj",
        Role::AttentionPostNorm | Role::FfnNorm => "post_attention_layernorm",
        Role::FfnPostNorm => "post_feedforward_layernorm",
        Role::Gate => "mlp.gate_proj",
        Role::Up => "mlp.up_proj",
        Role::GateUp => "mlp.gate_up_proj",
        Role::Down => "mlp.down_proj",
        Role::SharedGate => "mlp.shared_experts.gate_proj",
        Role::SharedUp => "mlp.shared_experts.up_proj",
        Role::SharedDown => "mlp.shared_experts.down_proj",
        Role::SharedGating => "mlp.shared_expert_gate",
        Role::Router => "mlp.gate",
        Role::RouterCorrection => "mlp.gate.e_score_correction_bias",
        Role::Sinks => "self_attn.sinks",
        Role::ExpertGateUp => "mlp.experts.gate_up_proj",
        Role::ExpertGate => "mlp.experts.*.gate_proj",
        Role::ExpertUp => "mlp.experts.*.up_proj",
        Role::ExpertDown => "mlp.experts.*.down_proj",
        Role::ExpertDowns => "mlp.experts.down_proj",
        Role::DensePostNorm => "post_feedforward_layernorm_1",
        Role::ExpertsNorm => "pre_feedforward_layernorm_2",
        Role::ExpertsPostNorm => "post_feedforward_layernorm_2",
        Role::RouterScale => "router.scale",
        Role::ExpertScale => "router.per_expert_scale",
        Role::InputGate => "per_layer_input_gate",
        Role::InputProjection => "per_layer_projection",
        Role::InputNorm => "post_per_layer_input_norm",
        Role::Scalar => "layer_scalar",
    }
}

/// The bias beside a matrix or a norm.
pub(crate) fn bias(weight: &str) -> String {
    weight.strip_suffix(".weight").map_or_else(String::new, |name| format!("{name}.bias"))
}
