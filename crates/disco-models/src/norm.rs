//! Norms of hidden states, queries and keys.

use candle_core::{DType, Module, Result, Tensor};
use candle_nn::LayerNorm;
use disco_candle::rms_norm;

/// A norm.
#[derive(Debug)]
pub(crate) enum Norm {
    Rms(Rms),
    Layer(LayerNorm),
}

/// A root mean square norm.
#[derive(Debug)]
pub(crate) struct Rms {
    /// On a device other than the host it may have 32 bits beside elements of 16, which are computed with 32 bits then.
    weight: Tensor,
    eps: f32,
}

impl Rms {
    pub(crate) fn new(weight: Tensor, eps: f64) -> Result<Self> {
        let weight = if weight.device().is_cpu() { weight.to_dtype(DType::F32)? } else { weight };
        Ok(Self { weight, eps: eps as f32 })
    }
}

impl Module for Norm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rms(Rms { weight, eps }) if x.device().is_cpu() => rms_norm(x, weight, *eps),
            Self::Rms(Rms { weight, eps }) => {
                candle_nn::ops::rms_norm(&x.to_dtype(weight.dtype())?.contiguous()?, weight, *eps)?.to_dtype(x.dtype())
            }
            Self::Layer(norm) => norm.forward(x),
        }
    }
}
