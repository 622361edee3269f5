//! The feed-forward networks of layers.

use crate::names::Role;

/// The feed-forward network of a layer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FeedForward {
    /// One network for all tokens.
    Dense(Dense),
    /// A mixture of experts.
    Experts(Experts),
    /// The sum of both, with a norm behind each and one before the experts, whose input is the hidden state. The router has
    /// factors of its inputs and of its shares.
    Both(Dense, Experts),
    /// The sum of both, of the same input: a mixture of experts with one that all tokens share.
    Shared {
        /// The shared one.
        dense: Dense,
        /// The mixture.
        experts: Experts,
        /// Whether the shared one is multiplied by the sigmoid of a gate.
        is_gated: bool,
    },
}

/// A feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Dense {
    /// Number of hidden units.
    pub ffn: usize,
    /// The matrices of its input.
    pub inputs: Inputs,
    /// Biases of all matrices.
    pub bias: bool,
    /// The activation.
    pub activation: Activation,
}

/// The matrices of the input of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Inputs {
    /// Gate and up; hidden units are the activated gate times up.
    Gated,
    /// Gate and up, in one matrix.
    Fused,
    /// Up only, which is activated.
    Plain,
}

/// A mixture of experts, of which a router chooses some for each token.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Number of hidden units of an expert.
    pub ffn: usize,
    /// How many of them compute each token.
    pub per_token: usize,
    /// Whether the shares of the chosen experts sum up to 1, before the factor; otherwise each has
    /// its share among all experts.
    pub normalises: bool,
    /// How the router scores experts.
    pub scores: Scores,
    /// The groups of experts, if some of them are chosen first.
    pub groups: Option<Groups>,
    /// Factor of the shares.
    pub factor: f64,
    /// The activation of the gates.
    pub activation: Activation,
    /// How the matrices are stored.
    pub layout: ExpertLayout,
    /// Biases of the router, and of all matrices of experts.
    pub bias: bool,
}

/// How a router scores experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scores {
    /// The softmax of all logits.
    Softmax,
    /// The sigmoid of each logit. A bias of each expert is added for the choice only.
    Sigmoid,
}

/// Groups of experts of the same size, of which the best ones are chosen before their experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Experts of so many groups can be chosen.
    pub chosen: usize,
    /// A group counts as much as so many of its best experts together.
    pub best: usize,
}

/// How the matrices of experts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpertLayout {
    /// Gate, up and down of each expert apart, or a stack of each.
    Apart,
    /// A stack of gate and up in turn, and one of down, inputs × outputs.
    Interleaved,
    /// A stack of gate beside up, and one of down, inputs × outputs.
    Transposed,
    /// A stack of gate above up, and one of down.
    Joined,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Activation {
    /// x · σ(x).
    Silu,
    /// GELU by a hyperbolic tangent.
    GeluTanh,
    /// The larger one of x and 0.
    Relu,
    /// x · σ(1.702 x) of a gate of at most `limit`, times 1 + up, which is between `limit` and its negative.
    ClampedSwiglu {
        /// The limit.
        limit: f64,
    },
}

impl FeedForward {
    /// The tensors of gate, up and down of the network of all tokens.
    pub(crate) fn dense_roles(&self) -> [Role; 3] {
        match self {
            Self::Shared { .. } => [Role::SharedGate, Role::SharedUp, Role::SharedDown],
            _ => [Role::Gate, Role::Up, Role::Down],
        }
    }
}

impl Dense {
    /// Gate and up, and SiLU, without biases.
    pub(crate) fn new(ffn: usize) -> Self {
        Self { ffn, inputs: Inputs::Gated, bias: false, activation: Activation::Silu }
    }
}

impl Experts {
    /// Shares are the softmax of the chosen experts; matrices are apart, without biases.
    pub(crate) fn new(count: usize, ffn: usize, per_token: usize) -> Self {
        Self {
            count,
            ffn,
            per_token,
            normalises: true,
            scores: Scores::Softmax,
            groups: None,
            factor: 1.0,
            activation: Activation::Silu,
            layout: ExpertLayout::Apart,
            bias: false,
        }
    }
}

impl ExpertLayout {
    /// Whether the matrices are stored as inputs × outputs.
    pub(crate) fn is_transposed(self) -> bool {
        matches!(self, Self::Interleaved | Self::Transposed)
    }
}
