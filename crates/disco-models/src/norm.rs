//! Norms of hidden states, queries and keys.

use candle_core::{DType, Module, Result, Tensor};
use candle_nn::{LayerNorm, RmsNorm};

/// A norm.
#[derive(Debug)]
pub(crate) enum Norm {
    Rms(RmsNorm),
    /// Its weights have 32 bits beside elements of 16.
    Wide(RmsNorm),
    Layer(LayerNorm),
}

impl Module for Norm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rms(norm) => norm.forward(x),
            Self::Wide(norm) => norm.forward(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype()),
            Self::Layer(norm) => norm.forward(x),
        }
    }
}
