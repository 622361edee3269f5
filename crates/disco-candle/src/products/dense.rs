//! Products with dense matrices, laid out anew for vector code.
//!
//! ```text
//! weights   panels of 32 outputs: for each column, the 32 weights
//! x         groups of 12, 8, 4, 2 or 1 rows: for each column, its numbers
//! sums      a group of rows × 32 outputs, in registers
//! ```

use std::fmt::{self, Debug, Formatter};

use candle_core::{DType, Device, Result, Tensor, WithDType};
use disco_core::shared_memory::FrozenBytes;
use rayon::iter::{IndexedParallelIterator as _, ParallelIterator as _};
use rayon::slice::ParallelSliceMut as _;

use super::elements::{Element, Line, PANEL};
use super::level::Level;
use super::order::Order;
use super::panels::{self, Operands, Sums};
use super::stored::{Elements, Stored};
use super::{OwnMatrix, in_parts};

/// Columns whose weights are moved together, while they are laid out.
const TILE: usize = 64;

/// A dense matrix.
pub(crate) struct Dense<T> {
    level: Level,
    outputs: usize,
    inputs: usize,
    order: Order,
    lines: Elements<Line<T>>,
}

/// Rows of `x`.
struct Group {
    first: usize,
    /// Behind the last row are zeros.
    count: usize,
    /// The numbers of the first column, of the second one, …
    x: Vec<f32>,
}

impl<T: Element> Dense<T> {
    /// The matrix of rows of `inputs` weights each.
    pub(crate) fn new(level: Level, weights: &[T], inputs: usize) -> Self {
        let outputs = weights.len().checked_div(inputs).unwrap_or(0);
        let mut lines = vec![Line([T::zeroed(); PANEL]); outputs.div_ceil(PANEL) * inputs];
        lines.par_chunks_mut(inputs.max(1)).enumerate().for_each(|(panel, lines)| {
            let first = panel * PANEL;
            let rows = &weights[first * inputs..outputs.min(first + PANEL) * inputs];
            for (tile, lines) in lines.chunks_mut(TILE).enumerate() {
                for (lane, row) in rows.chunks_exact(inputs).enumerate() {
                    for (line, weight) in lines.iter_mut().zip(&row[tile * TILE..]) {
                        line.0[lane] = *weight;
                    }
                }
            }
        });
        Self { level, outputs, inputs, order: Order::new(inputs), lines: Elements::Own(lines) }
    }

    /// A matrix of these [`parts`](OwnMatrix::parts).
    pub(super) fn of_stored(level: Level, [outputs, inputs]: [usize; 2], parts: Vec<FrozenBytes>) -> Option<Self> {
        let lines = Elements::stored(parts.into_iter().next(), outputs.div_ceil(PANEL) * inputs)?;
        Some(Self { level, outputs, inputs, order: Order::new(inputs), lines })
    }

    fn panel(&self, number: usize) -> &[Line<T>] {
        &self.lines[number * self.inputs..(number + 1) * self.inputs]
    }

    /// The products of a group of rows with one or two panels.
    fn dots(&self, panels: &[&[Line<T>]], group: &Group, store: &mut dyn FnMut(usize, usize, &[f32; PANEL])) {
        match (group.count, panels) {
            (1, [a, b]) => {
                let [sums] = self.dots_of::<1, 2>([a, b], group);
                sums.iter().enumerate().for_each(|(panel, sums)| store(0, panel, sums));
            }
            _ => {
                for (number, panel) in panels.iter().enumerate() {
                    let mut of_rows = |sums: &[[[f32; PANEL]; 1]]| {
                        sums.iter().enumerate().for_each(|(row, [sums])| store(row, number, sums));
                    };
                    match group.count {
                        1 => of_rows(&self.dots_of::<1, 1>([panel], group)),
                        2 => of_rows(&self.dots_of::<2, 1>([panel], group)),
                        4 => of_rows(&self.dots_of::<4, 1>([panel], group)),
                        8 => of_rows(&self.dots_of::<8, 1>([panel], group)),
                        _ => of_rows(&self.dots_of::<12, 1>([panel], group)),
                    }
                }
            }
        }
    }

    fn dots_of<const ROWS: usize, const P: usize>(&self, panels: [&[Line<T>]; P], group: &Group) -> Sums<ROWS, P> {
        panels::dots(self.level, Operands { order: &self.order, x: group.x.as_chunks().0, panels })
    }
}

impl<T: Element + WithDType> OwnMatrix for Dense<T> {
    fn outputs(&self) -> usize {
        self.outputs
    }

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.lines[..])
    }

    fn set_order(&mut self, order: Order) {
        self.order = order;
    }

    fn parts(&self) -> (Stored, Vec<&[u8]>) {
        let &Self { outputs, inputs, .. } = self;
        (Stored::Dense { kind: T::KIND, outputs, inputs }, vec![bytemuck::cast_slice(&self.lines)])
    }

    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn rows(&self, numbers: &[usize]) -> Result<Tensor> {
        let row = |row: usize| self.panel(row / PANEL).iter().map(move |line| line.0[row % PANEL]);
        Tensor::from_vec(numbers.iter().copied().flat_map(row).collect(), (numbers.len(), self.inputs), &Device::Cpu)
    }

    fn product(&self, x: &[f32]) -> Vec<f32> {
        let rows = x.len().checked_div(self.inputs).unwrap_or(0);
        let groups = grouped(x, self.inputs);
        in_parts(rows, self.outputs, self.inputs, PANEL, |part| {
            let mut y = vec![0.0; rows * part.len()];
            let panels: Vec<_> = part.clone().step_by(PANEL).map(|first| self.panel(first / PANEL)).collect();
            // Two panels at a time have more sums that need not wait for each other.
            for (pair, panels) in panels.chunks(2).enumerate() {
                for group in &groups {
                    let mut store = |row: usize, panel: usize, sums: &[f32; PANEL]| {
                        let at = (2 * pair + panel) * PANEL;
                        let width = PANEL.min(part.len() - at);
                        let row = group.first + row;
                        if row < rows {
                            y[row * part.len() + at..][..width].copy_from_slice(&sums[..width]);
                        }
                    };
                    self.dots(panels, group, &mut store);
                }
            }
            y
        })
    }
}

/// The rows in groups.
fn grouped(x: &[f32], inputs: usize) -> Vec<Group> {
    let all = x.len().checked_div(inputs).unwrap_or(0);
    let mut groups = Vec::new();
    let mut first = 0;
    while first < all {
        let left = all - first;
        let count = [1, 2, 4, 8].into_iter().find(|count| left <= *count).unwrap_or(12);
        let mut group = vec![0.0; count * inputs];
        for (row, x) in x.chunks_exact(inputs).skip(first).take(count).enumerate() {
            for (to, from) in group[row..].iter_mut().step_by(count).zip(x) {
                *to = *from;
            }
        }
        groups.push(Group { first, count, x: group });
        first += count;
    }
    groups
}

impl<T: Element> Debug for Dense<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "dense {} × {}", self.outputs, self.inputs)
    }
}
