//! Products of rows of blocks with the rows of a group.
#![allow(unsafe_code)] // Functions for instructions that the processor has, which `Level` has found out.

use std::array;
use std::ops::Range;

use super::blocks::{Block, Group, LANES};
use super::level::Level;
use super::order::{DEPTH, Shard};
#[cfg(target_arch = "x86_64")]
use super::vectors;

/// Products of the rows of a group with `R` rows. A block has `RUNS` runs of `WORDS` times 4 columns; `x` has the blocks of
/// the rows for each 32 columns.
pub(super) fn packed<const BITS: usize, const WORDS: usize, const RUNS: usize, const R: usize>(
    level: Level,
    group: &Group<'_>,
    x: &[[Block; R]],
) -> [[f32; LANES]; R] {
    match level {
        Level::Scalar => array::from_fn(|row| array::from_fn(|lane| dot::<WORDS, R>(group, lane, x, row))),
        // SAFETY: `Level` has found AVX2, FMA and F16C.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { vectors::packed_avx2::<BITS, WORDS, RUNS, R>(group, x) },
        // SAFETY: `Level` has found AVX-512F, BW and VNNI.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { vectors::packed_avx512::<BITS, WORDS, RUNS, R>(group, x) },
    }
}

/// Rows as blocks.
pub(super) fn quantized(level: Level, x: &[f32]) -> Vec<Block> {
    match level {
        Level::Scalar => x.as_chunks().0.iter().map(Block::quantize).collect(),
        // SAFETY: `Level` has found AVX2.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => unsafe { vectors::quantized_avx2(x) },
    }
}

/// The product of a row of a group with a row of `x`.
fn dot<const WORDS: usize, const R: usize>(group: &Group<'_>, lane: usize, x: &[[Block; R]], row: usize) -> f32 {
    let (mut waiting, mut depth) = ([0.0; DEPTH], 0);
    for shard in group.order.shards() {
        let mut sum = 0f32;
        for index in runs::<WORDS>(shard) {
            let (words, total, scale) = x[index * WORDS / 8][row].part::<WORDS>(index);
            let numbers: &[i8] = bytemuck::cast_slice(words);
            let products = (0..).zip(numbers).map(|(column, x)| group.number(index, lane, column) * i32::from(*x));
            let factor = group.scales[index][lane].to_f32() * scale;
            sum = (products.sum::<i32>() as f32).mul_add(factor, sum);
            if let Some(mins) = group.mins.get(index) {
                sum = mins[lane].to_f32().mul_add(scale * total as f32, sum);
            }
        }
        for _ in 0..shard.meetings {
            depth -= 1;
            sum += waiting[depth];
        }
        waiting[depth] = sum;
        depth += 1;
    }
    waiting[0]
}

/// The runs of a shard.
pub(super) fn runs<const WORDS: usize>(shard: &Shard) -> Range<usize> {
    shard.columns.start / (4 * WORDS)..shard.columns.end / (4 * WORDS)
}
