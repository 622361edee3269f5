//! Processors for which there is no vector code here: candle multiplies all matrices.

use std::ops::Range;

use super::blocks::{Block, Group, LANES};
use super::elements::Element;

/// The vector instructions that the kernels use: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {}

impl Level {
    /// No level.
    pub(crate) fn detect() -> Option<Self> {
        None
    }
}

pub(super) fn packed<const BITS: usize, const WORDS: usize, const R: usize>(
    level: Level,
    _: &Group<'_>,
    _: [&[Block]; R],
) -> [[f32; LANES]; R] {
    match level {}
}

pub(super) fn panel<const R: usize>(level: Level, _: &[f32], _: &[f32], _: &mut [f32], _: usize) {
    match level {}
}

pub(super) fn pack_panel<T: Element>(level: Level, _: &[T], _: usize, _: Range<usize>, _: &mut [f32]) {
    match level {}
}

pub(super) fn dense<T: Element, const R: usize>(level: Level, _: &[T], _: [&[f32]; R]) -> [f32; R] {
    match level {}
}
