//! Linear layers whose weights are split over the ranks.

use candle_core::{Module, Result, Tensor};

use crate::comm::Comm;
use crate::matrix::Matrix;

/// A linear layer of which each rank has some outputs: rows of the weights, columns of Wᵀ.
///
/// ```text
/// all ranks  x ──▶ rank r  x·Wᵣᵀ + bᵣ     gradients: x gets the sum over all ranks
/// ```
///
/// ```
/// use candle_core::{Device, Module, Result, Tensor};
/// use disco_candle::{ColumnParallelLinear, Comm, Matrix, RowParallelLinear};
///
/// /// The block relu(x·Aᵀ)·Bᵀ. This rank has the rows `a` of A and the columns `b` of B for the same hidden units.
/// fn block(comm: &Comm, a: Tensor, b: Tensor, x: &Tensor) -> Result<Tensor> {
///     let hidden = ColumnParallelLinear::new(Matrix::dense(a), None, comm.clone());
///     let output = RowParallelLinear::new(Matrix::dense(b), None, comm.clone());
///     output.forward(&hidden.forward(x)?.relu()?)
/// }
///
/// let eye = Tensor::eye(2, candle_core::DType::F32, &Device::Cpu)?;
/// let y = block(&Comm::alone(), eye.clone(), eye, &Tensor::new(&[[1f32, -1.0]], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1.0, 0.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ColumnParallelLinear {
    matrix: Matrix,
    bias: Option<Tensor>,
    comm: Comm,
}

impl ColumnParallelLinear {
    /// The layer of this rank's outputs: `matrix` is `[own outputs, inputs]`, `bias` is `[own outputs]`.
    pub fn new(matrix: Matrix, bias: Option<Tensor>, comm: Comm) -> Self {
        Self { matrix, bias, comm }
    }
}

impl Module for ColumnParallelLinear {
    /// `[.., inputs]`, the same on all ranks, to `[.., own outputs]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = if x.track_op() { self.matrix.forward(&self.comm.copy_to_ranks(x)?) } else { self.matrix.forward(x) }?;
        add(y, &self.bias)
    }
}

/// A linear layer of which each rank has some inputs: columns of the weights, rows of Wᵀ. All ranks get all outputs.
///
/// ```text
/// rank r  xᵣ·Wᵣᵀ ──▶ all ranks  Σ xᵣ·Wᵣᵀ + b     one all_reduce
/// ```
///
/// [`ColumnParallelLinear`] has an example of both layers.
#[derive(Clone, Debug)]
pub struct RowParallelLinear {
    matrix: Matrix,
    bias: Option<Tensor>,
    comm: Comm,
}

impl RowParallelLinear {
    /// The layer of this rank's inputs: `matrix` is `[outputs, own inputs]`. `bias` is `[outputs]`, the same on all
    /// ranks, and is added once.
    pub fn new(matrix: Matrix, bias: Option<Tensor>, comm: Comm) -> Self {
        Self { matrix, bias, comm }
    }
}

impl Module for RowParallelLinear {
    /// `[.., own inputs]` to `[.., outputs]`, the same on all ranks.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.matrix.forward(x)?;
        add(sum(&self.comm, y)?, &self.bias)
    }
}

/// The sum over all ranks: in place, unless a gradient flows through it.
pub(crate) fn sum(comm: &Comm, partial: Tensor) -> Result<Tensor> {
    if partial.track_op() {
        return comm.reduce_from_ranks(&partial);
    }
    comm.all_reduce_in_place(&partial, disco_core::Reduction::Sum)?;
    Ok(partial)
}

pub(crate) fn add(y: Tensor, bias: &Option<Tensor>) -> Result<Tensor> {
    bias.iter().try_fold(y, |y, bias| y.broadcast_add(bias))
}
