//! The differences of a family from the transformer of llama.

/// The differences of a family from the transformer of llama.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Features {
    /// Whether the logits use the embedding matrix unless `config.json` says so itself.
    pub ties: bool,
    /// One matrix for query, key and value, and one for gate and up.
    pub fused: bool,
    /// Biases of query, key and value.
    pub input_bias: bool,
    /// A bias of the attention's output.
    pub output_bias: bool,
    /// Biases of the feed-forward network.
    pub ffn_bias: bool,
    /// RMS norms of each head of query and key, before they are rotated.
    pub head_norms: bool,
    /// RMS norms of query and key over all heads together, before they are rotated.
    pub joint_head_norms: bool,
    /// Norms before attention and feed-forward network.
    pub pre_norms: bool,
    /// Norms after attention and feed-forward network.
    pub post_norms: bool,
    /// Added to the weights of all norms.
    pub norm_offset: f64,
    /// Whether weights of norms keep 32 bits beside states of 16: 1 + w would lose most of a small w.
    pub wide_norms: bool,
    /// The activation of the feed-forward network's gate.
    pub activation: Activation,
    /// In layers with a window, a token attends to this many last tokens, itself among them.
    pub window: Option<usize>,
    /// Layers without the window.
    pub full_layers: Vec<usize>,
    /// Base of the frequencies of rotary embeddings in layers with the window, without scaling; `None`: as in all layers.
    pub window_rope_base: Option<f32>,
    /// The products of query and key stay between this and its negative, by a hyperbolic tangent.
    pub score_cap: Option<f64>,
    /// The logits stay between this and its negative.
    pub logits_cap: Option<f64>,
    /// Layers whose queries and keys are not rotated.
    pub unrotated: Vec<usize>,
    /// Factor of the embedded tokens.
    pub embedding_factor: f64,
    /// Factor of the products of query and key; `None`: the inverse root of the head's width.
    pub attention_factor: Option<f64>,
    /// Factor of what a layer adds to the hidden state.
    pub residual_factor: f64,
    /// Divisor of the logits.
    pub logits_divisor: f64,
    /// Outputs and inputs of the block of an 8-bit matrix that has one scale, if scales are of blocks.
    pub scale_block: [usize; 2],
    /// The experts in place of the feed-forward network.
    pub experts: Option<Experts>,
    /// Layers with a feed-forward network in a model with experts.
    pub dense_layers: Vec<usize>,
}

/// A mixture of experts, of which a router chooses some for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Number of hidden units of an expert.
    pub ffn: usize,
    /// How many of them compute each token.
    pub per_token: usize,
    /// Whether the shares of the chosen experts sum up to 1; otherwise those of all experts do.
    pub normalises: bool,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// x · σ(x).
    Silu,
    /// GELU by a hyperbolic tangent.
    GeluTanh,
}

impl Default for Features {
    /// Those of llama.
    fn default() -> Self {
        Self {
            ties: false,
            fused: false,
            input_bias: false,
            output_bias: false,
            ffn_bias: false,
            head_norms: false,
            joint_head_norms: false,
            pre_norms: true,
            post_norms: false,
            norm_offset: 0.0,
            wide_norms: false,
            activation: Activation::Silu,
            window: None,
            full_layers: Vec::new(),
            window_rope_base: None,
            score_cap: None,
            logits_cap: None,
            unrotated: Vec::new(),
            embedding_factor: 1.0,
            attention_factor: None,
            residual_factor: 1.0,
            logits_divisor: 1.0,
            scale_block: [128, 128],
            experts: None,
            dense_layers: Vec::new(),
        }
    }
}

impl Features {
    /// Whether a token of the layer attends to the window only.
    pub(crate) fn is_windowed(&self, layer: usize) -> bool {
        self.window.is_some() && !self.full_layers.contains(&layer)
    }

    /// The experts of the layer.
    pub(crate) fn experts_of(&self, layer: usize) -> Option<Experts> {
        self.experts.filter(|_| !self.dense_layers.contains(&layer))
    }
}
