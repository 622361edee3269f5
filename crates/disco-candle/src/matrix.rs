//! Weights of a linear layer: a dense matrix, or quantised blocks.

use std::ops::Range;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{CpuStorage, DType, Device, Error, Module, Result, Storage, Tensor};

use crate::floats::{of_floats, with_floats};
use crate::products::{Dense, Level, Order, OwnMatrix, Packed, Stored};

/// A matrix of weights, one row for each output, as `y = x·Wᵀ` uses it.
#[derive(Clone, Debug)]
pub struct Matrix(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Dense(Tensor),
    /// Weights on the host, laid out anew.
    Own(Arc<dyn OwnMatrix>),
    Quantized(QMatMul),
}

impl Matrix {
    /// A matrix `[outputs, inputs]` in any dtype of floats, which candle multiplies. Gradients flow through it.
    pub fn dense(weight: Tensor) -> Self {
        Self(Kind::Dense(weight))
    }

    /// As [`dense`](Self::dense), without gradients. On the host, floats of 16 and 32 bits are laid out anew, and the bits of a
    /// product depend on its row and the weights only: not on other rows, on other outputs, on threads or on the processor. Threads
    /// of the current rayon pool share a product, see [`compute_threads`](crate::compute_threads).
    ///
    /// # Errors
    /// `weight` has not two dimensions; errors of candle.
    pub fn inference(weight: Tensor) -> Result<Self> {
        let (level, inputs) = (Level::detect(), weight.dims2()?.1);
        let is_float = matches!(weight.dtype(), DType::F32 | DType::F16 | DType::BF16);
        if !weight.device().is_cpu() || !is_float || inputs == 0 {
            return Ok(Self(Kind::Dense(weight)));
        }
        let weight = weight.contiguous()?;
        let (storage, layout) = weight.storage_and_layout();
        let range = layout.start_offset()..layout.start_offset() + weight.elem_count();
        Ok(Self(Kind::Own(match &*storage {
            Storage::Cpu(CpuStorage::F16(all)) => Arc::new(Dense::new(level, &all[range], inputs)),
            Storage::Cpu(CpuStorage::BF16(all)) => Arc::new(Dense::new(level, &all[range], inputs)),
            Storage::Cpu(CpuStorage::F32(all)) => Arc::new(Dense::new(level, &all[range], inputs)),
            _ => return Err(Error::Msg(format!("a matrix on the host has elements {:?}", weight.dtype()))),
        })))
    }

    /// A quantised matrix `[outputs, inputs]`. The product quantises its argument, too, as candle's `QMatMul` does.
    ///
    /// On the host, the blocks are packed anew for products with vector instructions: as codes of 4 bits
    /// (`Q4_0`, `Q4_1`, `Q2_K`, `Q3_K`, `Q4_K`), 6 bits (`Q5_0`, `Q5_1`, `Q5_K`, `Q6_K`) or 8 bits (`Q8_0`) with their scales. The codes are
    /// those of the file; the scales of K-quants, which are products of two numbers, are rounded to 16-bit floats. Threads of the
    /// current rayon pool share a product, see [`compute_threads`](crate::compute_threads).
    ///
    /// # Errors
    /// candle can't multiply the blocks (see [`unit`](Self::unit)), and they are not packed anew; errors of candle's
    /// `QMatMul`.
    pub fn quantized(weight: QTensor) -> Result<Self> {
        let (dtype, inputs) = (weight.dtype(), weight.shape().dims2()?.1);
        let text = || Error::Msg(format!("candle can't multiply {inputs} columns of {dtype:?}"));
        Self::quantized_columns(Arc::new(weight), 0..inputs)?.ok_or_else(text)
    }

    /// As [`quantized`](Self::quantized), for the columns `columns` of a matrix, which may begin and end inside of a block of
    /// K-quants. Returns `None` if such columns can be multiplied only as a [dense](Self::dense) matrix: packed blocks need
    /// whole runs of 32 columns, those of candle the whole matrix.
    ///
    /// # Errors
    /// Errors of candle's `QMatMul`.
    pub fn quantized_columns(weight: Arc<QTensor>, columns: Range<usize>) -> Result<Option<Self>> {
        let inputs = weight.shape().dims2()?.1;
        if let Some(packed) = Packed::new(Level::detect(), &weight, columns.clone())? {
            return Ok(Some(Self::packed(packed)));
        }
        if columns != (0..inputs) || !inputs.is_multiple_of(Self::unit(weight.dtype())) {
            return Ok(None);
        }
        Ok(Some(Self(Kind::Quantized(QMatMul::from_arc(weight)?))))
    }

    pub(crate) fn packed(packed: Packed) -> Self {
        Self::own(Arc::new(packed))
    }

    pub(crate) fn own(matrix: Arc<dyn OwnMatrix>) -> Self {
        Self(Kind::Own(matrix))
    }

    /// Its description and the bytes of its elements, for memory that outlives the worker; `None` if it is in the memory of candle.
    pub(crate) fn parts(&self) -> Option<(Stored, Vec<&[u8]>)> {
        if let Kind::Own(matrix) = &self.0 { Some(matrix.parts()) } else { None }
    }

    /// This matrix as the columns of a node of a sum: it adds in another order.
    ///
    /// # Errors
    /// The host has not laid out the weights anew: they are on a device, or in blocks that only candle multiplies.
    pub(crate) fn in_order(mut self, order: Order) -> Result<Self> {
        match &mut self.0 {
            Kind::Own(weight) => match Arc::get_mut(weight) {
                Some(weight) => weight.set_order(order),
                None => return Err(Error::Msg("a matrix whose order of additions changes is shared".into())),
            },
            other => return Err(unordered(other)),
        }
        Ok(self)
    }

    /// The products in 32 bits, one row of `x` after the other.
    ///
    /// # Errors
    /// As above; errors of candle.
    pub(crate) fn sums(&self, x: &Tensor) -> Result<Vec<f32>> {
        match &self.0 {
            Kind::Own(weight) => with_floats(x, |x| Ok(weight.product(x))),
            other => Err(unordered(other)),
        }
    }

    /// Number of columns that a part of a quantised matrix is a multiple of, so that candle can multiply its blocks.
    pub fn unit(dtype: GgmlDType) -> usize {
        match dtype {
            // candle multiplies two blocks at a time, and panics at an odd number of them.
            GgmlDType::Q4_1 | GgmlDType::Q5_0 | GgmlDType::Q5_1 => 2 * dtype.block_size(),
            _ => dtype.block_size(),
        }
    }

    /// The device of the weights.
    pub(crate) fn device(&self) -> Device {
        match &self.0 {
            Kind::Dense(weight) | Kind::Quantized(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => {
                weight.device().clone()
            }
            Kind::Own(_) => Device::Cpu,
            Kind::Quantized(QMatMul::QTensor(weight)) => weight.device(),
        }
    }

    /// Number of inputs.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn inputs(&self) -> Result<usize> {
        Ok(self.dims()?.1)
    }

    /// Number of outputs, which are the rows.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn outputs(&self) -> Result<usize> {
        Ok(self.dims()?.0)
    }

    fn dims(&self) -> Result<(usize, usize)> {
        match &self.0 {
            Kind::Dense(weight) | Kind::Quantized(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => {
                weight.dims2()
            }
            Kind::Own(weight) => Ok((weight.outputs(), weight.inputs())),
            Kind::Quantized(QMatMul::QTensor(weight)) => weight.shape().dims2(),
        }
    }

    /// The type of its [`rows`](Self::rows).
    pub fn dtype(&self) -> DType {
        match &self.0 {
            Kind::Dense(weight) | Kind::Quantized(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => {
                weight.dtype()
            }
            Kind::Own(weight) => weight.dtype(),
            Kind::Quantized(QMatMul::QTensor(_)) => DType::F32,
        }
    }

    /// The rows `numbers`, integers `[count]`, as `[count, inputs]`: those of a dense matrix in its type, others in f32. The
    /// scales of blocks that are packed anew are rounded, see [`quantized`](Self::quantized).
    ///
    /// # Errors
    /// There is no such row; errors of candle.
    pub fn rows(&self, numbers: &Tensor) -> Result<Tensor> {
        match &self.0 {
            Kind::Dense(weight) | Kind::Quantized(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => {
                weight.index_select(numbers, 0)
            }
            Kind::Own(weight) => weight.rows(&on_host(numbers, weight.outputs())?),
            Kind::Quantized(QMatMul::QTensor(weight)) => {
                let (outputs, inputs) = weight.shape().dims2()?;
                let (rows, data, device) = (on_host(numbers, outputs)?, weight.data()?, weight.device());
                let bytes = data.len() / outputs.max(1);
                let blocks: Vec<_> = rows.iter().flat_map(|row| &data[row * bytes..][..bytes]).copied().collect();
                let blocks = QStorage::from_data(blocks.into(), &device, weight.dtype())?;
                QTensor::new(blocks, (rows.len(), inputs))?.dequantize(&device)
            }
        }
    }

    /// Bytes of memory of the weights.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Kind::Dense(weight) | Kind::Quantized(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => {
                weight.elem_count() * weight.dtype().size_in_bytes()
            }
            Kind::Own(weight) => weight.bytes(),
            Kind::Quantized(QMatMul::QTensor(weight)) => weight.storage_size_in_bytes(),
        }
    }
}

impl Module for Matrix {
    /// `x·Wᵀ`: `[.., inputs]` to `[.., outputs]`, in the dtype of `x`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.0 {
            Kind::Dense(weight) => by_rows(x, weight.dims2()?, |rows| rows.matmul(&weight.t()?)),
            Kind::Own(weight) => by_rows(x, (weight.outputs(), weight.inputs()), |rows| {
                let y = with_floats(rows, |x| Ok(weight.product(x)))?;
                of_floats(y, &(rows.dim(0)?, weight.outputs()).into(), x.dtype())
            }),
            // Blocks are multiplied in f32.
            Kind::Quantized(weight) if x.dtype() != DType::F32 => {
                weight.forward(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype())
            }
            Kind::Quantized(weight) => weight.forward(x),
        }
    }
}

fn unordered(weights: &Kind) -> Error {
    Error::Msg(format!(
        "ranks can't exchange nodes of sums of {weights:?}: only of weights that the host lays out anew"
    ))
}

/// The numbers of some of `outputs` rows.
#[expect(clippy::disallowed_methods, reason = "blocks are looked up on the host")]
fn on_host(numbers: &Tensor, outputs: usize) -> Result<Vec<usize>> {
    let numbers = numbers.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    let row = |number: i64| {
        let row = usize::try_from(number).ok().filter(|row| *row < outputs);
        row.ok_or_else(|| Error::Msg(format!("a matrix of {outputs} rows has no row {number}")))
    };
    numbers.into_iter().map(row).collect()
}

/// One product of two matrices, not one for each item of a batch.
fn by_rows(
    x: &Tensor,
    (outputs, inputs): (usize, usize),
    product: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let (shape, mut dims) = (x.shape(), x.dims().to_vec());
    if x.rank() < 2 {
        return Err(Error::Msg(format!("the input of a matrix needs two dimensions or more, not {shape:?}")));
    }
    if dims.pop() != Some(inputs) {
        return Err(Error::Msg(format!("the input of a matrix [{outputs}, {inputs}] has the shape {shape:?}")));
    }
    dims.push(outputs);
    product(&x.flatten_to(x.rank() - 2)?)?.reshape(dims)
}
