//! Products of many rows with a dense matrix.
//!
//! ```text
//! weights   panels of 32 outputs and up to 256 columns: for each column, its 32 weights
//! x         groups of 12, 8 or 4 rows: for each column, its numbers
//! sums      a group of rows × 32 outputs, in registers
//! ```
//!
//! Each product is one chain of fused additions along the columns, whatever the number of rows, outputs and threads is.

use std::ops::Range;

use super::elements::{Element, PANEL};
use super::in_parts;
use super::kernels::{self, Level};

/// Columns of a panel, which stays in a processor's first cache with the numbers of a group of rows.
const COLUMNS: usize = 256;

/// Rows of a small group, and of the padding.
const FOUR: usize = 4;

/// Rows of `x`, by columns.
struct Group {
    rows: Range<usize>,
    /// The numbers of the first column, of the second one, …
    x: Vec<f32>,
}

/// `x·Wᵀ` for rows of `inputs` elements.
pub(super) fn product<T: Element>(level: Level, weight: &[T], x: &[f32], inputs: usize) -> Vec<f32> {
    let rows = x.len() / inputs;
    let groups = grouped(x, inputs);
    in_parts(rows, weight.len() / inputs, inputs, |part| {
        let width = part.len().next_multiple_of(PANEL);
        let mut y = vec![0.0; rows.next_multiple_of(FOUR) * width];
        let mut panel = vec![0.0; COLUMNS * PANEL];
        for first in (0..part.len()).step_by(PANEL) {
            let outputs = part.start + first..part.end.min(part.start + first + PANEL);
            let weight = &weight[outputs.start * inputs..outputs.end * inputs];
            for from in (0..inputs).step_by(COLUMNS) {
                let columns = from..inputs.min(from + COLUMNS);
                kernels::pack_panel(level, weight, inputs, columns.clone(), &mut panel);
                for Group { rows, x } in &groups {
                    let x = &x[columns.start * rows.len()..columns.end * rows.len()];
                    let y = &mut y[rows.start * width + first..];
                    match rows.len() {
                        12 => kernels::panel::<12>(level, &panel, x, y, width),
                        8 => kernels::panel::<8>(level, &panel, x, y, width),
                        _ => kernels::panel::<FOUR>(level, &panel, x, y, width),
                    }
                }
            }
        }
        for row in (0..rows).filter(|_| width > part.len()) {
            y.copy_within(row * width..row * width + part.len(), row * part.len());
        }
        y.truncate(rows * part.len());
        y
    })
}

/// The rows in groups. Behind the last row are zeros.
fn grouped(x: &[f32], inputs: usize) -> Vec<Group> {
    let all = x.len() / inputs;
    let mut groups = Vec::new();
    let mut start = 0;
    while start < all {
        let count = (all - start).next_multiple_of(FOUR).min(12);
        let mut group = vec![0.0; count * inputs];
        for (row, x) in x.chunks_exact(inputs).skip(start).take(count).enumerate() {
            for (to, from) in group[row..].iter_mut().step_by(count).zip(x) {
                *to = *from;
            }
        }
        groups.push(Group { rows: start..start + count, x: group });
        start += count;
    }
    groups
}
