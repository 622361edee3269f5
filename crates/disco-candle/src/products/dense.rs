//! Products with dense matrices.

use candle_core::DType;

use super::elements::{Element, ROWS, WEIGHTS};
use super::in_parts;
use super::kernels::{self, Level};

/// Columns whose products are added before the next ones: [`ROWS`] rows of them stay in a processor's first cache.
const COLUMNS: usize = 1024;

/// Rows of weights, of which the columns stay in its second cache.
const BLOCK: usize = 96;

/// The most rows that are few.
const FEW: usize = 8;

/// `x·Wᵀ` for rows of `inputs` elements.
pub(crate) fn product<T: Element>(level: Level, weight: &[T], x: &[f32], inputs: usize) -> Vec<f32> {
    if x.len() / inputs > FEW {
        product_of_many(level, weight, x, inputs)
    } else {
        product_of_few(level, weight, x, inputs)
    }
}

/// The most rows of `x` for which [`product`] is faster than candle's product of matrices, which reads weights of 16 bits into
/// memory of 32 bits first.
pub(crate) fn max_rows(dtype: DType) -> usize {
    match dtype {
        DType::F32 => 32,
        DType::BF16 | DType::F16 => 64,
        _ => 0,
    }
}

/// [`product`] for a few rows, of which each reads all weights again.
pub(super) fn product_of_few<T: Element>(level: Level, weight: &[T], x: &[f32], inputs: usize) -> Vec<f32> {
    let rows: Vec<_> = x.chunks_exact(inputs).collect();
    in_parts(rows.len(), weight.len() / inputs, inputs, |part| {
        let weight = &weight[part.start * inputs..part.end * inputs];
        let products = rows.chunks(4).map(|rows| match *rows {
            [a] => part_of(level, weight, [a]),
            [a, b] => part_of(level, weight, [a, b]),
            [a, b, c] => part_of(level, weight, [a, b, c]),
            [a, b, c, d] => part_of(level, weight, [a, b, c, d]),
            _ => Vec::new(),
        });
        products.reduce(|first, next| [first, next].concat()).unwrap_or_default()
    })
}

/// [`product`] for many rows. The order of additions does not depend on how many there are.
pub(super) fn product_of_many<T: Element>(level: Level, weight: &[T], x: &[f32], inputs: usize) -> Vec<f32> {
    let rows = x.len() / inputs;
    in_parts(rows, weight.len() / inputs, inputs, |part| {
        let mut y = vec![0.0; rows * part.len()];
        for first in part.clone().step_by(BLOCK) {
            let last = part.end.min(first + BLOCK) - 1;
            for from in (0..inputs).step_by(COLUMNS) {
                let columns = from..inputs.min(from + COLUMNS);
                let of = |row: usize| row * inputs + columns.start..row * inputs + columns.end;
                for row in (0..rows).step_by(ROWS) {
                    // Behind the last row, that one is computed again.
                    let x = std::array::from_fn(|index| &x[of((row + index).min(rows - 1))]);
                    for output in (first..=last).step_by(WEIGHTS) {
                        let weights = std::array::from_fn(|index| &weight[of((output + index).min(last))]);
                        let products = kernels::tile(level, weights, x);
                        for (index, products) in products.iter().enumerate().take(rows - row) {
                            let place = (row + index) * part.len() + output - part.start;
                            for (y, product) in y[place..].iter_mut().zip(products).take(last + 1 - output) {
                                *y += product;
                            }
                        }
                    }
                }
            }
        }
        y
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
