//! Products and sums of one or two queries, and the softmax of one. `FMA` says that the processor has AVX2, FMA and F16C, which
//! the caller's function declares; the bits are the same without them.
//!
//! They loop over indexes: closures and iterators in functions with these instructions may stay calls, which halved the speed.
#![allow(clippy::needless_range_loop)]
#![allow(unsafe_code)] // A function for instructions that the processor has.

use std::ops::Range;

use super::BLOCK;
use crate::functions;
use crate::products::{Element, Kind};

/// Chains of additions of a product of a query with a key.
const CHAINS: usize = 8;

#[inline(always)]
pub(super) fn widen<T: Element, const FMA: bool>(from: &[T], to: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if FMA && matches!(T::KIND, Kind::F16) {
        // SAFETY: the processor has F16C.
        unsafe { x86::widen(bytemuck::cast_slice(from), to) };
        return;
    }
    for index in 0..to.len() {
        to[index] = from[index].to_f32();
    }
}

/// The products of `ROWS` queries, which follow each other, with the rows of `keys`. A row of `scores` has `stride` numbers.
#[inline(always)]
pub(super) fn dots<const FMA: bool, const ROWS: usize>(
    queries: &[f32],
    keys: &[f32],
    scores: &mut [f32],
    stride: usize,
) {
    let (width, slots) = (queries.len() / ROWS, BLOCK);
    #[cfg(target_arch = "x86_64")]
    if FMA {
        for first in 0..slots / 4 {
            let keys = &keys[4 * first * width..4 * (first + 1) * width];
            // SAFETY: the processor has AVX2 and FMA.
            let dots = unsafe { x86::dots::<ROWS>(queries, keys) };
            for row in 0..ROWS {
                scores[row * stride + 4 * first..][..4].copy_from_slice(&dots[row]);
            }
        }
        return;
    }
    for row in 0..ROWS {
        let query = &queries[row * width..(row + 1) * width];
        for slot in 0..slots {
            let key = &keys[slot * width..(slot + 1) * width];
            let whole = width / CHAINS * CHAINS;
            let mut sums = [0f32; CHAINS];
            for index in 0..whole {
                sums[index % CHAINS] = query[index].mul_add(key[index], sums[index % CHAINS]);
            }
            let [a, b, c, d, e, f, g, h] = sums;
            let mut sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
            for index in whole..width {
                sum = query[index].mul_add(key[index], sum);
            }
            scores[row * stride + slot] = sum;
        }
    }
}

/// Adds rows of `values` to the rows of `y`, each times its share.
#[inline(always)]
pub(super) fn add<const FMA: bool, const ROWS: usize>(y: [&mut [f32]; ROWS], shares: [&[f32]; ROWS], values: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if FMA {
        // SAFETY: the processor has AVX2 and FMA.
        unsafe { x86::add(y, shares, values) };
        return;
    }
    for row in 0..ROWS {
        let width = y[row].len();
        for slot in 0..shares[row].len() {
            for index in 0..width {
                y[row][index] = shares[row][slot].mul_add(values[slot * width + index], y[row][index]);
            }
        }
    }
}

/// The softmax of the scores in `open`, beside a `sink`; 0 for others.
#[inline(always)]
pub(super) fn softmax(scores: &mut [f32], open: Range<usize>, cap: Option<f32>, sink: Option<f32>) {
    scores[..open.start].fill(0.0);
    scores[open.end..].fill(0.0);
    let scores = &mut scores[open];
    if let Some(cap) = cap {
        for index in 0..scores.len() {
            scores[index] = functions::tanh(scores[index] / cap) * cap;
        }
    }
    functions::softmax(scores, sink);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256, _mm_add_ps, _mm256_castps256_ps128, _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_fmadd_ps,
        _mm256_hadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
    };

    use half::f16;

    /// Elements of a vector.
    const LANES: usize = super::CHAINS;

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(x: &[f32], at: usize) -> __m256 {
        let x = &x[at..at + LANES];
        // SAFETY: so many elements are there.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(to: &mut [f32], at: usize, x: __m256) {
        let to = &mut to[at..at + LANES];
        // SAFETY: so many elements are there.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), x) }
    }

    /// The products of the `ROWS` rows of `a` with the four rows of `b`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn dots<const ROWS: usize>(a: &[f32], b: &[f32]) -> [[f32; 4]; ROWS] {
        let width = b.len() / 4;
        assert!(a.len() == ROWS * width && b.len() == 4 * width);
        let whole = width / LANES * LANES;
        let mut sums = [[_mm256_setzero_ps(); 4]; ROWS];
        let mut at = 0;
        while at < whole {
            let mut of_b = [_mm256_setzero_ps(); 4];
            for row in 0..4 {
                of_b[row] = load(b, row * width + at);
            }
            for row in 0..ROWS {
                let x = load(a, row * width + at);
                for column in 0..4 {
                    sums[row][column] = _mm256_fmadd_ps(x, of_b[column], sums[row][column]);
                }
            }
            at += LANES;
        }
        let mut dots = [[0.0; 4]; ROWS];
        for row in 0..ROWS {
            let [first, second, third, fourth] = sums[row];
            // In each half: the sums of its lanes, in the order of the rows.
            let halves = _mm256_hadd_ps(_mm256_hadd_ps(first, second), _mm256_hadd_ps(third, fourth));
            let all = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
            dots[row] = bytemuck::cast(all);
            for column in 0..4 {
                for index in whole..width {
                    dots[row][column] = a[row * width + index].mul_add(b[column * width + index], dots[row][column]);
                }
            }
        }
        dots
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn add<const ROWS: usize>(y: [&mut [f32]; ROWS], shares: [&[f32]; ROWS], values: &[f32]) {
        const VECTORS: usize = 2;
        let (width, slots) = (y[0].len(), shares[0].len());
        for row in 0..ROWS {
            assert!(y[row].len() == width && shares[row].len() == slots && slots * width <= values.len());
        }
        let whole = width / (VECTORS * LANES) * (VECTORS * LANES);
        let mut at = 0;
        while at < whole {
            let mut sums = [[_mm256_setzero_ps(); VECTORS]; ROWS];
            for row in 0..ROWS {
                for part in 0..VECTORS {
                    sums[row][part] = load(y[row], at + part * LANES);
                }
            }
            for slot in 0..slots {
                let mut value = [_mm256_setzero_ps(); VECTORS];
                for part in 0..VECTORS {
                    value[part] = load(values, slot * width + at + part * LANES);
                }
                for row in 0..ROWS {
                    let share = _mm256_set1_ps(shares[row][slot]);
                    for part in 0..VECTORS {
                        sums[row][part] = _mm256_fmadd_ps(share, value[part], sums[row][part]);
                    }
                }
            }
            for row in 0..ROWS {
                for part in 0..VECTORS {
                    store(y[row], at + part * LANES, sums[row][part]);
                }
            }
            at += VECTORS * LANES;
        }
        for row in 0..ROWS {
            for index in whole..width {
                for slot in 0..slots {
                    y[row][index] = shares[row][slot].mul_add(values[slot * width + index], y[row][index]);
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn widen(from: &[f16], to: &mut [f32]) {
        let whole = to.len() / LANES * LANES;
        assert!(from.len() >= to.len());
        let mut at = 0;
        while at < whole {
            let halves = bytemuck::cast::<[f16; LANES], __m128i>(from.as_chunks::<LANES>().0[at / LANES]);
            store(to, at, _mm256_cvtph_ps(halves));
            at += LANES;
        }
        for index in whole..to.len() {
            to[index] = from[index].to_f32();
        }
    }
}
