//! Matrices of runs of columns with a scale and whole numbers, for which candle has no type.

use std::ops::Range;

use crate::Matrix;
use crate::products::{Level, Numbers, Packed};

/// A matrix `[outputs, inputs]`, or a stack of such matrices: for each run of 16 or 32 columns, a scale of 16 bits, and whole numbers
/// of 8 bits, which are multiplied with it. Products keep them as codes of 4, 6 or 8 bits.
#[derive(Clone, Debug)]
pub struct Runs {
    data: Vec<u8>,
    shape: Vec<usize>,
    /// Columns of a run.
    run: usize,
    numbers: Numbers,
}

impl Runs {
    pub(crate) fn new(data: Vec<u8>, shape: Vec<usize>, run: usize, numbers: Numbers) -> Self {
        Self { data, shape, run, numbers }
    }

    /// The columns `columns` of the matrix, or of each matrix of the stack. Returns `None` if such columns can be multiplied only
    /// as a dense matrix: if they are not whole runs of 32 columns.
    pub fn matrices(&self, columns: Range<usize>) -> Option<Vec<Matrix>> {
        let level = Level::detect();
        let (stack, shape) = self.shape.split_last_chunk::<2>()?;
        let count = stack.iter().product::<usize>();
        let bytes = (self.data.len() / count.max(1)).max(1);
        let kind = (self.run, self.numbers);
        let all = self.data.chunks_exact(bytes);
        all.map(|data| Packed::of_runs(level, data, kind, *shape, columns.clone()).map(Matrix::packed)).collect()
    }
}
