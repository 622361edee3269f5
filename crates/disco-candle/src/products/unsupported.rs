//! Processors for which there is no vector code here: candle multiplies all matrices.

use super::blocks::{Block, Group, LANES};
use super::elements::{Element, ROWS, WEIGHTS};

/// The vector instructions that the kernels use: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {}

impl Level {
    /// No level.
    pub(crate) fn detect() -> Option<Self> {
        None
    }
}

pub(super) fn packed<const FOUR_BITS: bool, const WORDS: usize, const R: usize>(
    level: Level,
    _: &Group<'_>,
    _: [&[Block]; R],
) -> [[f32; LANES]; R] {
    match level {}
}

pub(super) fn tile<T: Element>(level: Level, _: [&[T]; WEIGHTS], _: [&[f32]; ROWS]) -> [[f32; WEIGHTS]; ROWS] {
    match level {}
}

pub(super) fn dense<T: Element, const R: usize>(level: Level, _: &[T], _: [&[f32]; R]) -> [f32; R] {
    match level {}
}
