//! RMS norms.

use candle_core::{DType, Module, Result, Tensor};
use candle_nn::RmsNorm;

/// An RMS norm, whose weights may have an offset.
#[derive(Debug)]
pub(crate) struct Norm {
    inner: RmsNorm,
    /// Whether the weights have 32 bits beside elements of 16.
    is_wide: bool,
}

impl Norm {
    /// The norm with the weights `weight + offset`. `is_wide`: they have 32 bits beside elements of 16.
    pub(crate) fn new(weight: Tensor, offset: f64, eps: f64, is_wide: bool) -> Result<Self> {
        let weight = if offset == 0.0 { weight } else { (weight + offset)? };
        Ok(Self { inner: RmsNorm::new(weight, eps), is_wide })
    }
}

impl Module for Norm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if self.is_wide {
            return self.inner.forward(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype());
        }
        self.inner.forward(x)
    }
}
