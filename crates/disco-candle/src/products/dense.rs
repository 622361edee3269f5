//! Products with dense matrices.

use bytemuck::Pod;
use half::{bf16, f16};

use super::kernels::{self, Level};
use super::in_parts;

/// The most rows of `x` for which the products here are faster than those of matrices.
pub(crate) const MAX_ROWS: usize = 4;

/// How the elements of a dense matrix become 32-bit floats.
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
}

/// The elements of a dense matrix.
pub(crate) trait Element: Pod + Send + Sync {
    const KIND: Kind;

    fn to_f32(self) -> f32;
}

impl Element for f32 {
    const KIND: Kind = Kind::F32;

    fn to_f32(self) -> f32 {
        self
    }
}

impl Element for f16 {
    const KIND: Kind = Kind::F16;

    fn to_f32(self) -> f32 {
        Self::to_f32(self)
    }
}

impl Element for bf16 {
    const KIND: Kind = Kind::Bf16;

    fn to_f32(self) -> f32 {
        Self::to_f32(self)
    }
}

/// `x·Wᵀ` for at most [`MAX_ROWS`] rows of `x` and the rows of `weight`, of `inputs` elements each.
pub(crate) fn product<T: Element>(level: Level, weight: &[T], x: &[f32], inputs: usize) -> Vec<f32> {
    let rows: Vec<_> = x.chunks_exact(inputs).collect();
    let outputs = weight.len() / inputs;
    in_parts(rows.len(), outputs, inputs, |part| {
        let weight = &weight[part.start * inputs..part.end * inputs];
        match rows[..] {
            [a] => part_of(level, weight, [a]),
            [a, b] => part_of(level, weight, [a, b]),
            [a, b, c] => part_of(level, weight, [a, b, c]),
            [a, b, c, d] => part_of(level, weight, [a, b, c, d]),
            _ => Vec::new(),
        }
    })
}

/// The products of some rows of weights: all for the first row of `x`, then all for the next one.
fn part_of<T: Element, const R: usize>(level: Level, weight: &[T], x: [&[f32]; R]) -> Vec<f32> {
    let outputs = weight.len() / x[0].len();
    let mut y = vec![0.0; R * outputs];
    for (output, row) in weight.chunks_exact(x[0].len()).enumerate() {
        for (index, sum) in kernels::dense(level, row, x).into_iter().enumerate() {
            y[index * outputs + output] = sum;
        }
    }
    y
}
