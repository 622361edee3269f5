//! Products with dense matrices.

use super::elements::Element;
use super::kernels::{self, Level};
use super::{in_parts, panels};

/// The most rows that are few.
const FEW: usize = 8;

/// `x·Wᵀ` for rows of `inputs` elements.
pub(crate) fn product<T: Element>(level: Level, weight: &[T], x: &[f32], inputs: usize) -> Vec<f32> {
    if x.len() / inputs > FEW {
        panels::product(level, weight, x, inputs)
    } else {
        product_of_few(level, weight, x, inputs)
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
