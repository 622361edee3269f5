//! The parts of which families put their layers together.

use super::{Activation, Dense, Experts, FeedForward, Scaling};

/// One layer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Layer {
    /// How the tokens of a sequence see each other.
    pub mixer: Mixer,
    /// The feed-forward network.
    pub feed_forward: FeedForward,
    /// The norms around both.
    pub norms: Norms,
    /// Whether the hidden state behind the layer is multiplied by a number of the files.
    pub scalar: bool,
}

/// How the tokens of a sequence see each other.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mixer {
    /// By attention to earlier tokens, of which each leaves keys and values.
    Attention(Attention),
    /// By a state of a fixed size, which each token changes.
    Delta(GatedDelta),
}

/// A gated delta net, a linear attention. Source: <https://arxiv.org/abs/2412.06464>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GatedDelta {
    /// Number of heads of queries and keys; divides the number of value heads.
    pub key_heads: usize,
    /// Number of heads of values, each with a state.
    pub value_heads: usize,
    /// Width of a head of queries or keys.
    pub key_dim: usize,
    /// Width of a head of values.
    pub value_dim: usize,
    /// The convolution of queries, keys and values sees so many last tokens, itself included.
    pub kernel: usize,
    /// How the matrices are stored.
    pub layout: DeltaLayout,
    /// Whether value head h has key head h modulo their number; otherwise value heads of one key head are next to each other.
    pub tiled: bool,
    /// Whether the files have logarithms of the scales of decays, not their negatives.
    pub logarithmic: bool,
}

/// How the matrices of a gated delta net are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeltaLayout {
    /// One of queries, keys, values and gates, key head by key head, and one of rates and decays, in the same way.
    Grouped,
    /// One of queries, then keys, then values; one of gates; and one of rates and decays, key head by key head.
    RatesGrouped,
    /// One of queries, then keys, then values; one each of gates, rates and decays.
    Apart,
}

/// Where a layer has norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Norms {
    /// Before the attention, and before the feed-forward network.
    Before,
    /// Behind both, before the sum with the hidden state.
    After,
    /// Before and behind both.
    Around,
    /// One norm, behind which attention and feed-forward network are computed beside each other.
    Shared,
}

/// How norms are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum NormKind {
    /// Root mean square.
    Rms {
        /// Added to the weights of norms of layers, heads and the last hidden state.
        offset: f64,
        /// Whether weights keep 32 bits beside states of 16: 1 + w would lose most of a small w.
        wide: bool,
    },
    /// Mean and variance.
    LayerNorm {
        /// Whether there are biases.
        bias: bool,
    },
}

/// The attention of a layer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Attention {
    /// Number of query heads.
    pub heads: usize,
    /// Number of kv heads; divides the number of query heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The matrices of queries, keys and values.
    pub projections: Projections,
    /// Biases of query, key and value.
    pub input_bias: bool,
    /// A bias of the output.
    pub output_bias: bool,
    /// Norms of queries and keys, before they are rotated.
    pub qk_norm: QkNorm,
    /// Whether each head of values is divided by its root mean square.
    pub value_norm: bool,
    /// The rotary embeddings of queries and keys; `None`: none (NoPE).
    pub rotary: Option<Rotary>,
    /// A token attends to this many last tokens, itself among them; if it looks ahead, also to as many later ones.
    pub window: Option<usize>,
    /// Whether a token also attends to later tokens, as models of vectors do.
    pub looks_ahead: bool,
    /// The scores stay between this and its negative, by a hyperbolic tangent.
    pub softcap: Option<f64>,
    /// Factor of the products of query and key.
    pub factor: f64,
    /// Whether the output of each head is multiplied by the sigmoid of a gate, whose rows are behind those of its query.
    pub gated: bool,
    /// Whether each head has a score beside those of its tokens, which takes a share and has no value (attention sinks).
    pub sinks: bool,
}

/// The matrices of queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Projections {
    /// One of each.
    Apart,
    /// All in one.
    Fused,
    /// Of queries and keys. Values are the keys, before norms and rotations.
    KeysAreValues,
    /// Of queries. Keys and values are those of another layer, before this one.
    Shared {
        /// The number of that layer.
        layer: usize,
    },
    /// Of queries, and of one latent vector of a token, of which keys and values of all heads are made (multi-head latent
    /// attention). The memory has one kv head: the latent vector, and behind it the rotated elements of keys.
    Latent(Latent),
}

/// The widths of multi-head latent attention. Source: <https://arxiv.org/abs/2412.19437>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latent {
    /// Elements of the latent vector of queries; `None` if queries are made of the hidden state.
    pub query_rank: Option<usize>,
    /// Elements of the latent vector of keys and values.
    pub rank: usize,
    /// Elements of a head's queries and keys that are not rotated.
    pub plain: usize,
    /// Elements that are rotated. Keys of all heads have the same ones.
    pub rotated: usize,
    /// Elements of a head's values.
    pub value: usize,
    /// Whether the matrices that make keys and values of latent vectors are apart: a stack `[heads, rank, plain]`, and one of
    /// `[heads, value, rank]`. Otherwise each head has rows of keys and then of values in one matrix.
    pub apart: bool,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QkNorm {
    /// None.
    None,
    /// Of each head by itself, with the same weights.
    Each,
    /// Of all heads together.
    Joint,
}

/// Rotary embeddings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rotary {
    /// Base of the frequencies.
    pub base: f32,
    /// How the frequencies are scaled to longer contexts.
    pub scaling: Scaling,
    /// The elements that are rotated together.
    pub pairs: Pairs,
    /// Number of elements of a head that are rotated, the first ones.
    pub elements: usize,
    /// Growth of queries with their position.
    pub growth: Option<Growth>,
}

/// Queries at position p are multiplied by 1 + `beta` · ln(1 + ⌊p / `context`⌋).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Growth {
    /// The factor of the logarithm.
    pub beta: f64,
    /// The context within which queries stay as they are.
    pub context: usize,
}

/// The elements of a head that rotary embeddings rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pairs {
    /// Elements 2i and 2i + 1, as in GGUF files of llama models.
    Interleaved,
    /// Elements i and i + half of the head, as in most files of Hugging Face.
    Halves,
}

/// A second table of embeddings, with a part for each layer. A layer adds to its output its part, times a projection of the
/// output.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerInputs {
    /// Number of rows of the table.
    pub rows: usize,
    /// Elements for each layer.
    pub width: usize,
    /// The activation of the projection.
    pub activation: Activation,
}

/// Learnt embeddings of positions, which are added to those of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Positions {
    /// Number of rows of their table.
    pub rows: usize,
    /// The row of position 0.
    pub first: usize,
}

impl Layer {
    /// Norms before attention and feed-forward network.
    pub(crate) fn new(attention: Attention, dense: Dense) -> Self {
        let (mixer, feed_forward) = (Mixer::Attention(attention), FeedForward::Dense(dense));
        Self { mixer, feed_forward, norms: Norms::Before, scalar: false }
    }

    /// The attention, if the layer has one.
    pub fn attention(&self) -> Option<&Attention> {
        if let Mixer::Attention(attention) = &self.mixer { Some(attention) } else { None }
    }

    /// The attention, to be changed.
    pub(crate) fn attention_mut(&mut self) -> Option<&mut Attention> {
        if let Mixer::Attention(attention) = &mut self.mixer { Some(attention) } else { None }
    }

    /// The gated delta net, if the layer has one.
    pub fn delta(&self) -> Option<&GatedDelta> {
        if let Mixer::Delta(delta) = &self.mixer { Some(delta) } else { None }
    }

    /// The experts of the layer, if it has some.
    pub fn experts(&self) -> Option<&Experts> {
        match &self.feed_forward {
            FeedForward::Experts(experts) | FeedForward::Both(_, experts) | FeedForward::Shared { experts, .. } => {
                Some(experts)
            }
            FeedForward::Dense(_) => None,
        }
    }

    /// The experts, to be changed.
    pub(crate) fn experts_mut(&mut self) -> Option<&mut Experts> {
        match &mut self.feed_forward {
            FeedForward::Experts(experts) | FeedForward::Both(_, experts) | FeedForward::Shared { experts, .. } => {
                Some(experts)
            }
            FeedForward::Dense(_) => None,
        }
    }

    /// The network of all tokens, if it has one.
    pub fn dense(&self) -> Option<&Dense> {
        match &self.feed_forward {
            FeedForward::Dense(dense) | FeedForward::Both(dense, _) | FeedForward::Shared { dense, .. } => Some(dense),
            FeedForward::Experts(_) => None,
        }
    }
}

impl Attention {
    /// Heads that attend to all earlier tokens, without rotary embeddings, norms and biases.
    pub(crate) fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            projections: Projections::Apart,
            input_bias: false,
            output_bias: false,
            qk_norm: QkNorm::None,
            value_norm: false,
            rotary: None,
            window: None,
            looks_ahead: false,
            softcap: None,
            factor: (head_dim as f64).powf(-0.5),
            gated: false,
            sinks: false,
        }
    }

    /// Whether a rank has keys and values of this layer.
    pub fn has_memory(&self) -> bool {
        !matches!(self.projections, Projections::Shared { .. })
    }
}

impl Projections {
    /// The widths of latent attention.
    pub(crate) fn latent(self) -> Option<Latent> {
        if let Self::Latent(latent) = self { Some(latent) } else { None }
    }
}

impl NormKind {
    pub(crate) fn has_bias(self) -> bool {
        matches!(self, Self::LayerNorm { bias: true })
    }
}
