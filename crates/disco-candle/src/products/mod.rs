//! Products of rows with matrices on an x86-64 processor with AVX2, split over the threads of the worker.
//!
//! Each thread of the current rayon pool computes some outputs. candle's own products of one row use one thread if the
//! matrix is dense; for quantised blocks they use a pool of the process that serves one caller at a time.

mod blocks;
mod dense;
mod elements;
mod formats;
#[cfg(target_arch = "x86_64")]
mod kernels;
#[cfg(not(target_arch = "x86_64"))]
#[path = "unsupported.rs"]
mod kernels;
mod packed;
mod panels;
#[cfg(test)]
mod tests;

use std::ops::Range;

use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};

pub(crate) use dense::product;
pub(crate) use elements::{Element, Kind};
pub(crate) use formats::Numbers;
pub(crate) use kernels::Level;
pub(crate) use packed::Packed;

/// Products of elements that one thread computes sooner than it wakes another one.
const MIN_WORK: usize = 1 << 18;

/// The products of `rows` rows, `outputs` for each row. `compute` returns those of a range of outputs, which starts at a
/// multiple of 16, for all rows.
fn in_parts(rows: usize, outputs: usize, inputs: usize, compute: impl Fn(Range<usize>) -> Vec<f32> + Sync) -> Vec<f32> {
    let parts = rayon::current_num_threads().min(rows * outputs * inputs / MIN_WORK).max(1);
    if parts == 1 {
        return compute(0..outputs);
    }
    let width = outputs.div_ceil(parts).next_multiple_of(blocks::LANES);
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
