//! Products of a group of rows with panels of weights.
//!
//! The kernels loop over indexes: closures and iterators in functions with these instructions may stay calls.
#![allow(clippy::needless_range_loop)]
#![allow(unsafe_code)] // Functions for instructions that the processor has, which `Level` has found out.

use super::elements::{Element, Line, PANEL};
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Scalar};
use super::level::Level;
use super::order::{DEPTH, Order};

/// How many lines ahead of the current one a kernel prefetches.
const AHEAD: usize = 32;

/// Rows of `x` and panels of weights with the same columns.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, T, const ROWS: usize, const P: usize> {
    pub(super) order: &'a Order,
    /// The numbers of the rows for each column.
    pub(super) x: &'a [[f32; ROWS]],
    pub(super) panels: [&'a [Line<T>]; P],
}

/// Sums of rows for each output of panels.
pub(super) type Sums<const ROWS: usize, const P: usize> = [[[f32; PANEL]; P]; ROWS];

/// The products of rows with panels.
pub(super) fn dots<T: Element, const ROWS: usize, const P: usize>(
    level: Level,
    operands: Operands<'_, T, ROWS, P>,
) -> Sums<ROWS, P> {
    match level {
        Level::Scalar => {
            let mut y = [[[0.0; PANEL]; P]; ROWS];
            (0..ROWS).for_each(|row| block::<_, T, ROWS, 1, PANEL, P>(Scalar, operands, (row, 0), &mut y));
            y
        }
        // SAFETY: `Level` has found AVX2, FMA and F16C.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2(operands) },
        // SAFETY: `Level` has found AVX-512F.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512(operands) },
    }
}

/// All sums are in registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512<T: Element, const ROWS: usize, const P: usize>(operands: Operands<'_, T, ROWS, P>) -> Sums<ROWS, P> {
    let mut y = [[[0.0; PANEL]; P]; ROWS];
    // SAFETY: this function declares the instructions.
    let lanes = unsafe { Avx512::assume() };
    block::<_, T, ROWS, ROWS, { PANEL / Avx512::COUNT }, P>(lanes, operands, (0, 0), &mut y);
    y
}

/// As above: there are 16 registers, so four rows take half a panel at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2<T: Element, const ROWS: usize, const P: usize>(operands: Operands<'_, T, ROWS, P>) -> Sums<ROWS, P> {
    const WHOLE: usize = PANEL / Avx2::COUNT;
    let mut y = [[[0.0; PANEL]; P]; ROWS];
    // SAFETY: this function declares the instructions.
    let lanes = unsafe { Avx2::assume() };
    if ROWS < 4 {
        block::<_, T, ROWS, ROWS, WHOLE, P>(lanes, operands, (0, 0), &mut y);
        return y;
    }
    for row in (0..ROWS).step_by(4) {
        for half in [0, PANEL / 2] {
            block::<_, T, ROWS, 4, { WHOLE / 2 }, P>(lanes, operands, (row, half), &mut y);
        }
    }
    y
}

/// The products of `R` rows, from `row` on, with `W` vectors of outputs of each panel, from `lane` on.
#[inline(always)]
fn block<V: Lanes, T: Element, const ROWS: usize, const R: usize, const W: usize, const P: usize>(
    lanes: V,
    Operands { order, x, panels }: Operands<'_, T, ROWS, P>,
    (row, lane): (usize, usize),
    y: &mut Sums<ROWS, P>,
) {
    let zeros = [[[lanes.splat(0.0); W]; P]; R];
    let (mut waiting, mut depth) = ([zeros; DEPTH], 0);
    for shard in order.shards() {
        let mut sums = zeros;
        for column in shard.columns.clone() {
            let x = &x[column];
            // The fewer operands wait in registers, of which AVX2 has 16.
            if R < 4 {
                let mut numbers = [lanes.splat(0.0); R];
                for own in 0..R {
                    numbers[own] = lanes.splat(x[row + own]);
                }
                for panel in 0..P {
                    let line = &panels[panel][column];
                    lanes.prefetch(std::ptr::from_ref(line).wrapping_add(AHEAD));
                    for vector in 0..W {
                        let weights = lanes.widen(&line.0[lane + vector * V::COUNT..]);
                        for own in 0..R {
                            let sum = &mut sums[own][panel][vector];
                            *sum = lanes.fused(numbers[own], weights, *sum);
                        }
                    }
                }
                continue;
            }
            for panel in 0..P {
                let line = &panels[panel][column];
                let mut weights = [lanes.splat(0.0); W];
                for (vector, weights) in weights.iter_mut().enumerate() {
                    *weights = lanes.widen(&line.0[lane + vector * V::COUNT..]);
                }
                for own in 0..R {
                    let x = lanes.splat(x[row + own]);
                    for vector in 0..W {
                        let sum = &mut sums[own][panel][vector];
                        *sum = lanes.fused(x, weights[vector], *sum);
                    }
                }
            }
        }
        for _ in 0..shard.meetings {
            depth -= 1;
            for own in 0..R {
                for panel in 0..P {
                    for vector in 0..W {
                        let sum = &mut sums[own][panel][vector];
                        *sum = lanes.plus(waiting[depth][own][panel][vector], *sum);
                    }
                }
            }
        }
        waiting[depth] = sums;
        depth += 1;
    }
    for own in 0..R {
        for panel in 0..P {
            for vector in 0..W {
                lanes.store(waiting[0][own][panel][vector], &mut y[row + own][panel][lane + vector * V::COUNT..]);
            }
        }
    }
}
