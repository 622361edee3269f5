//! RMS norms.

use candle_core::{DType, Module, Result, Tensor};
use candle_nn::RmsNorm;

/// An RMS norm, whose weights may have an offset.
#[derive(Debug)]
pub(crate) struct Norm {
    inner: RmsNorm,
    /// Whether the weights have 32 bits beside elements of 16: 1 + w would lose most of a small w.
    is_wide: bool,
}

impl Norm {
    /// The norm with the weights `weight + offset`.
    pub(crate) fn new(weight: Tensor, offset: f64, eps: f64) -> Result<Self> {
        if offset == 0.0 {
            return Ok(Self { inner: RmsNorm::new(weight, eps), is_wide: false });
        }
        let is_wide = weight.dtype() != DType::F32;
        Ok(Self { inner: RmsNorm::new((weight.to_dtype(DType::F32)? + offset)?, eps), is_wide })
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

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn a_small_weight_beside_an_offset_is_not_rounded_away() {
        let row = |value: f32| Tensor::new(&[value; 4], &Device::Cpu).unwrap().to_dtype(DType::BF16).unwrap();
        // 1.0015 rounds to 1 in bf16, and the norm of a row of 3 is a row of 1.0015.
        let norm = Norm::new(row(0.0015), 1.0, 0.0).unwrap();
        let x = row(3.0).unsqueeze(0).unwrap();
        let wide = norm.inner.forward(&x.to_dtype(DType::F32).unwrap()).unwrap().to_vec2::<f32>().unwrap();
        assert!((wide[0][0] - 1.0015).abs() < 1e-4, "{wide:?}");
        assert_eq!(norm.forward(&x).unwrap().dtype(), DType::BF16);
    }
}
