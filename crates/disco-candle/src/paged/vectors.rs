//! Products, sums and the softmax of one query. `FMA` says that the processor has AVX2 and FMA, which the caller's function declares.
//!
//! They loop over indexes: see the kernels of products.
#![allow(unsafe_code)] // A function for instructions that the processor has.

use std::ops::Range;

use crate::products::Element;

/// Numbers of a value that stay in registers while all slots are added.
const LANES: usize = 16;

#[inline(always)]
pub(super) fn widen<T: Element>(from: &[T], to: &mut [f32]) {
    for index in 0..to.len() {
        to[index] = from[index].to_f32();
    }
}

/// The products of a query with the rows of `keys`, one for each score.
#[inline(always)]
pub(super) fn dots<const FMA: bool>(query: &[f32], keys: &[f32], scores: &mut [f32]) {
    let width = query.len();
    #[cfg(target_arch = "x86_64")]
    if FMA {
        for (scores, keys) in scores.as_chunks_mut().0.iter_mut().zip(keys.chunks_exact(4 * width)) {
            // SAFETY: the processor has AVX2 and FMA.
            *scores = unsafe { x86::four_dots(query, keys) };
        }
        return;
    }
    for (score, key) in scores.iter_mut().zip(keys.chunks_exact(width)) {
        *score = (0..width).map(|index| query[index] * key[index]).sum();
    }
}

/// Adds rows of `values` to `y`, each times its share.
#[inline(always)]
pub(super) fn add<const FMA: bool>(y: &mut [f32], shares: &[f32], values: &[f32]) {
    let width = y.len();
    let (whole, rest) = y.as_chunks_mut::<LANES>();
    for (index, y) in whole.iter_mut().enumerate() {
        let mut sums = *y;
        for (share, value) in shares.iter().zip(values.chunks_exact(width)) {
            let x = &value[index * LANES..(index + 1) * LANES];
            for lane in 0..LANES {
                sums[lane] = multiply_add::<FMA>(*share, x[lane], sums[lane]);
            }
        }
        *y = sums;
    }
    let first = width - rest.len();
    for (index, y) in rest.iter_mut().enumerate() {
        for (share, value) in shares.iter().zip(values.chunks_exact(width)) {
            *y = multiply_add::<FMA>(*share, value[first + index], *y);
        }
    }
}

#[inline(always)]
fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction it is a function.
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The softmax of the scores in `open`, beside a `sink`; 0 for others.
#[inline(always)]
pub(super) fn softmax(scores: &mut [f32], open: Range<usize>, cap: Option<f32>, sink: Option<f32>) {
    let mut highest = sink.unwrap_or(f32::NEG_INFINITY);
    for index in open.clone() {
        if let Some(cap) = cap {
            scores[index] = (scores[index] / cap).tanh() * cap;
        }
        highest = if scores[index] > highest || scores[index].is_nan() { scores[index] } else { highest };
    }
    scores[..open.start].fill(0.0);
    scores[open.end..].fill(0.0);
    for index in open.clone() {
        scores[index] = exp(scores[index] - highest);
    }
    let mut sum = sink.map_or(0.0, |sink| exp(sink - highest));
    for index in open.clone() {
        sum += scores[index];
    }
    for index in open {
        scores[index] /= sum;
    }
}

/// The exponential of a number that is at most 0, to about 2⁻²².
#[inline(always)]
fn exp(x: f32) -> f32 {
    // The multiple of ln 2 that is next to x: adding this number rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -87.0 { -87.0 } else { x };
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let rest = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut power = 1.0 / 720.0;
    for factor in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        power = power * rest + factor;
    }
    power * f32::from_bits(((n as i32 + 127) << 23) as u32)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256, _mm_add_ps, _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_hadd_ps,
        _mm256_setzero_ps,
    };
    use std::array;

    /// The products of `a` with the four rows of `b`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn four_dots(a: &[f32], b: &[f32]) -> [f32; 4] {
        let width = a.len();
        let (whole, rest) = a.as_chunks::<8>();
        let [first, second, third, fourth] = array::from_fn(|row| b[row * width..(row + 1) * width].as_chunks::<8>().0);
        let mut sums = [_mm256_setzero_ps(); 4];
        for ((((a, first), second), third), fourth) in whole.iter().zip(first).zip(second).zip(third).zip(fourth) {
            let a = bytemuck::cast::<[f32; 8], __m256>(*a);
            for (sum, b) in sums.iter_mut().zip([first, second, third, fourth]) {
                *sum = _mm256_fmadd_ps(a, bytemuck::cast(*b), *sum);
            }
        }
        // In each half: the sums of its lanes, in the order of the rows.
        let halves = _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
        let all = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
        let mut dots = bytemuck::cast::<_, [f32; 4]>(all);
        let first = width - rest.len();
        for (row, dot) in dots.iter_mut().enumerate() {
            for (index, a) in rest.iter().enumerate() {
                *dot = a.mul_add(b[row * width + first + index], *dot);
            }
        }
        dots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_that_of_f64() {
        for step in 0..80_000 {
            let x = -(step as f32) / 1000.0;
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) / expected - 1.0).abs() < 4e-7, "{x}");
        }
        assert!(exp(-1e30) < 1e-37 && exp(f32::NAN).is_nan() && exp(0.0) == 1.0);
    }
}
