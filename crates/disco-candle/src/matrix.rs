//! Weights of a linear layer: a dense matrix, or quantised blocks.

use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{DType, Device, Error, Module, Result, Tensor};

/// A matrix of weights, one row for each output, as `y = x·Wᵀ` uses it.
#[derive(Clone, Debug)]
pub struct Matrix(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Dense(Tensor),
    Quantized(QMatMul),
}

impl Matrix {
    /// A matrix `[outputs, inputs]` in any dtype of floats.
    pub fn dense(weight: Tensor) -> Self {
        Self(Kind::Dense(weight))
    }

    /// A quantised matrix `[outputs, inputs]`. The product quantises its argument, too, as candle's `QMatMul` does.
    ///
    /// # Errors
    /// Errors of candle's `QMatMul`.
    pub fn quantized(weight: QTensor) -> Result<Self> {
        Ok(Self(Kind::Quantized(QMatMul::from_qtensor(weight)?)))
    }

    /// The device of the weights.
    pub(crate) fn device(&self) -> Device {
        match &self.0 {
            Kind::Dense(weight) | Kind::Quantized(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => {
                weight.device().clone()
            }
            Kind::Quantized(QMatMul::QTensor(weight)) => weight.device(),
        }
    }

    /// Number of inputs.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn inputs(&self) -> Result<usize> {
        match &self.0 {
            Kind::Dense(weight) | Kind::Quantized(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => {
                weight.dim(1)
            }
            Kind::Quantized(QMatMul::QTensor(weight)) => Ok(weight.shape().dims2()?.1),
        }
    }

    /// Bytes of memory of the weights.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Kind::Dense(weight) | Kind::Quantized(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => {
                weight.elem_count() * weight.dtype().size_in_bytes()
            }
            Kind::Quantized(QMatMul::QTensor(weight)) => weight.storage_size_in_bytes(),
        }
    }
}

impl Module for Matrix {
    /// `x·Wᵀ`: `[.., inputs]` to `[.., outputs]`, in the dtype of `x`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.0 {
            // One product of two matrices, not one for each item of a batch.
            Kind::Dense(weight) => {
                if x.rank() < 2 {
                    let shape = x.shape();
                    return Err(Error::Msg(format!(
                        "the input of a matrix needs two dimensions or more, not {shape:?}"
                    )));
                }
                let (rows, mut dims) = (x.flatten_to(x.rank() - 2)?, x.dims().to_vec());
                let y = rows.matmul(&weight.t()?)?;
                dims.pop();
                dims.push(weight.dim(0)?);
                y.reshape(dims)
            }
            // Blocks are multiplied in f32.
            Kind::Quantized(weight) if x.dtype() != DType::F32 => {
                weight.forward(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype())
            }
            Kind::Quantized(weight) => weight.forward(x),
        }
    }
}
