//! Products of rows with matrices, split over the threads of the worker. The bits of each depend on its row and its weights only: the
//! order of additions is in `order.rs`.
//!
//! Each thread of the current rayon pool computes some outputs. candle's own products of one row use one thread if the
//! matrix is dense; for quantised blocks they use a pool of the process that serves one caller at a time.

mod blocks;
mod dense;
mod elements;
mod formats;
mod kernels;
mod lanes;
mod level;
mod order;
mod packed;
mod panels;
mod stored;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vectors;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor, WithDType};
use disco_core::shared_memory::FrozenBytes;
use half::{bf16, f16};
use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};

pub(crate) use dense::Dense;
pub(crate) use elements::{Element, Kind};
pub(crate) use formats::Numbers;
pub(crate) use level::Level;
pub use order::cuts;
pub(crate) use order::{Order, nodes, sum};
pub(crate) use packed::Packed;
pub(crate) use stored::Stored;

/// A matrix of weights on the host in a layout of its own, one row for each output.
pub(crate) trait OwnMatrix: Debug + Send + Sync {
    fn outputs(&self) -> usize;

    fn inputs(&self) -> usize;

    /// Size in bytes.
    fn bytes(&self) -> usize;

    /// Its description and the bytes of its elements, for memory that outlives the worker.
    fn parts(&self) -> (Stored, Vec<&[u8]>);

    /// The type of its rows.
    fn dtype(&self) -> DType;

    /// Some rows, `[rows, inputs]`.
    fn rows(&self, numbers: &[usize]) -> Result<Tensor>;

    /// Adds in another order, of as many columns.
    fn set_order(&mut self, order: Order);

    /// `x·Wᵀ` for rows of [`inputs`](Self::inputs) elements each.
    fn product(&self, x: &[f32]) -> Vec<f32>;
}

/// The matrix that was stored in these parts; `None` if it needs others.
pub(crate) fn open(stored: &Stored, parts: Vec<FrozenBytes>) -> Option<Arc<dyn OwnMatrix>> {
    fn dense<T: Element + WithDType>(shape: [usize; 2], parts: Vec<FrozenBytes>) -> Option<Arc<dyn OwnMatrix>> {
        Some(Arc::new(Dense::<T>::of_stored(Level::detect(), shape, parts)?))
    }
    match *stored {
        Stored::Dense { kind, outputs, inputs } => match kind {
            Kind::F32 => dense::<f32>([outputs, inputs], parts),
            Kind::F16 => dense::<f16>([outputs, inputs], parts),
            Kind::Bf16 => dense::<bf16>([outputs, inputs], parts),
        },
        Stored::Packed { .. } => Some(Arc::new(Packed::of_stored(Level::detect(), stored, parts)?)),
    }
}

/// Products of elements that one thread computes sooner than it wakes another one.
const MIN_WORK: usize = 1 << 18;

/// The products of `rows` rows, `outputs` for each row. `compute` returns those of a range of outputs, which starts at a
/// multiple of `unit`, for all rows.
fn in_parts(
    rows: usize,
    outputs: usize,
    inputs: usize,
    unit: usize,
    compute: impl Fn(Range<usize>) -> Vec<f32> + Sync,
) -> Vec<f32> {
    let parts = rayon::current_num_threads().min(rows * outputs * inputs / MIN_WORK).max(1);
    if parts == 1 {
        return compute(0..outputs);
    }
    let width = outputs.div_ceil(parts).next_multiple_of(unit);
    let parts = (0..outputs.div_ceil(width)).into_par_iter();
    let parts: Vec<_> = parts.map(|part| compute(part * width..outputs.min((part + 1) * width))).collect();
    let mut y = Vec::with_capacity(rows * outputs);
    for row in 0..rows {
        for part in &parts {
            let width = part.len() / rows;
            y.extend_from_slice(&part[row * width..(row + 1) * width]);
        }
    }
    y
}
