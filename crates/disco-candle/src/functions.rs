//! Functions of 32-bit floats whose bits are the same on any processor. They are made of operations that IEEE 754 defines to the bit,
//! which compilers may do for several numbers at once, but not otherwise. Those of the system's library differ between machines.
//!
//! They choose without branches, so that loops over them become vectors; [`each`] has such loops for the processor's instructions.
#![allow(clippy::needless_range_loop)] // Iterators in functions with such instructions may stay calls.
#![allow(unsafe_code)] // A function for instructions that the processor has.

use crate::products::Level;

/// Numbers that are compared and added beside each other.
const LANES: usize = 16;

/// Replaces each number by its function.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "there is one level"))]
pub(crate) fn each(level: Level, numbers: &mut [f32], function: impl Fn(f32) -> f32) {
    #[cfg(target_arch = "x86_64")]
    if level != Level::Scalar {
        // SAFETY: `Level` has found AVX2, which all levels but this one have.
        return unsafe { each_avx2(numbers, function) };
    }
    each_inline(numbers, function);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn each_avx2(numbers: &mut [f32], function: impl Fn(f32) -> f32) {
    each_inline(numbers, function);
}

#[inline(always)]
fn each_inline(numbers: &mut [f32], function: impl Fn(f32) -> f32) {
    for index in 0..numbers.len() {
        numbers[index] = function(numbers[index]);
    }
}

/// Replaces each row of `width` numbers by its [softmax].
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "there is one level"))]
pub(crate) fn softmax_of_rows(level: Level, numbers: &mut [f32], width: usize) {
    #[cfg(target_arch = "x86_64")]
    if level != Level::Scalar {
        // SAFETY: `Level` has found AVX2, which all levels but this one have.
        return unsafe { softmax_of_rows_avx2(numbers, width) };
    }
    softmax_of_rows_inline(numbers, width);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn softmax_of_rows_avx2(numbers: &mut [f32], width: usize) {
    softmax_of_rows_inline(numbers, width);
}

#[inline(always)]
fn softmax_of_rows_inline(numbers: &mut [f32], width: usize) {
    for row in numbers.chunks_exact_mut(width.max(1)) {
        softmax(row, None);
    }
}

/// Replaces scores by their softmax, beside that of a `sink`. The order of additions depends on their number only.
#[inline(always)]
pub(crate) fn softmax(scores: &mut [f32], sink: Option<f32>) {
    // The highest of each lane, and of all lanes. A NaN may be left out here; its share and the sum are NaN.
    let mut lanes = [sink.unwrap_or(f32::NEG_INFINITY); LANES];
    let whole = scores.len() / LANES * LANES;
    let mut first = 0;
    while first < whole {
        let own = &scores[first..first + LANES];
        for lane in 0..LANES {
            lanes[lane] = if own[lane] > lanes[lane] { own[lane] } else { lanes[lane] };
        }
        first += LANES;
    }
    let mut highest = lanes[0];
    for lane in 1..LANES {
        highest = if lanes[lane] > highest { lanes[lane] } else { highest };
    }
    for index in whole..scores.len() {
        highest = if scores[index] > highest { scores[index] } else { highest };
    }
    for index in 0..scores.len() {
        scores[index] = exp(scores[index] - highest);
    }
    let mut sums = [0.0; LANES];
    let mut first = 0;
    while first < whole {
        let own = &scores[first..first + LANES];
        for lane in 0..LANES {
            sums[lane] += own[lane];
        }
        first += LANES;
    }
    let mut sum = sink.map_or(0.0, |sink| exp(sink - highest));
    for lane in 0..LANES {
        sum += sums[lane];
    }
    for index in whole..scores.len() {
        sum += scores[index];
    }
    for index in 0..scores.len() {
        scores[index] /= sum;
    }
}

/// The exponential, to about 2⁻²² of it: 0 below −87, and infinite from 88.3 on.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding this number rounds to an integer, which is in the lowest bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let sum = x * std::f32::consts::LOG2_E + ROUND;
    let n = sum - ROUND;
    let rest = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut power = 1.0 / 720.0;
    for factor in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        power = power * rest + factor;
    }
    let y = power * f32::from_bits((sum.to_bits() << 23).wrapping_add(127 << 23));
    let y = if x < -87.0 { 0.0 } else { y };
    if x > 88.3 { f32::INFINITY } else { y }
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x · σ(x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// The form of GELU with tanh, `x/2 · (1 + tanh u)`, as `x · σ(2u)`.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    const FACTOR: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2;
    x / (1.0 + exp(-FACTOR * x * (1.0 + 0.044715 * x * x)))
}

/// The hyperbolic tangent, to about 2⁻²² of it. Source of the polynomial: Cephes, `tanhf.c`.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let (size, square) = (x.abs(), x * x);
    let mut power = -5.704_988_7e-3;
    for factor in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        power = power * square + factor;
    }
    let near = x + x * square * power;
    let far = (1.0 - 2.0 / (exp(2.0 * size) + 1.0)).copysign(x);
    if size < 0.625 { near } else { far }
}

/// `ln(1 + eˣ)`.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    // ln(1 + e⁻ᵗ) = 2 artanh(s), of which the series converges: s is at most 1/3.
    let small = exp(-x.abs());
    let s = small / (2.0 + small);
    let mut power = 1.0 / 15.0;
    for odd in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        power = power * (s * s) + 1.0 / odd;
    }
    if x > 0.0 { x + 2.0 * s * power } else { 2.0 * s * power }
}

/// The sine, computed in 64 bits and rounded once: to about 2⁻²⁴ up to 10⁸.
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    turned(x, 0)
}

/// The cosine, as above.
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    turned(x, 1)
}

/// The sine of an angle and of so many right angles.
#[inline(always)]
fn turned(x: f32, right_angles: u64) -> f32 {
    // As in `exp`.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = f64::from(x);
    let sum = x * std::f64::consts::FRAC_2_PI + ROUND;
    let n = sum - ROUND;
    // The right angle in two numbers, of which the first one has 33 bits. Source: fdlibm, `e_rem_pio2.c`.
    let rest = (x - n * 1.570_796_326_734_125_6) - n * 6.077_100_506_506_192e-11;
    let square = rest * rest;
    // The series, to 1/13! and 1/12!.
    let (mut sine, mut cosine) = (1.0 / 6_227_020_800.0, 1.0 / 479_001_600.0);
    for factor in [-1.0 / 39_916_800.0, 1.0 / 362_880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0] {
        sine = sine * square + factor;
    }
    for factor in [-1.0 / 3_628_800.0, 1.0 / 40_320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5] {
        cosine = cosine * square + factor;
    }
    let quarter = sum.to_bits().wrapping_add(right_angles);
    let size = if quarter & 1 == 0 { rest + rest * (square * sine) } else { 1.0 + square * cosine };
    (if quarter & 2 == 0 { size } else { -size }) as f32
}

#[cfg(test)]
mod tests {
    use std::f32::consts::{FRAC_PI_2, PI};

    use proptest::prelude::*;

    use super::*;

    type Function = fn(f32) -> f32;

    type Of64 = fn(f64) -> f64;

    /// The functions beside those of 64 bits.
    const ALL: [(&str, Function, Of64); 6] = [
        ("exp", exp, f64::exp),
        ("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        ("silu", silu, |x| x / (1.0 + (-x).exp())),
        ("gelu", gelu, |x| 0.5 * x * (1.0 + tanh_of_gelu(x))),
        ("tanh", tanh, f64::tanh),
        ("softplus", softplus, |x| if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() }),
    ];

    fn tanh_of_gelu(x: f64) -> f64 {
        (std::f64::consts::FRAC_2_PI.sqrt() * x * (1.0 + 0.044715 * x * x)).tanh()
    }

    fn check(x: f32) {
        for (name, own, expected) in ALL {
            let (found, expected) = (f64::from(own(x)), expected(f64::from(x)));
            // f64's own form of gelu loses digits where tanh is near −1.
            let bound = expected.abs() * 6e-7 + if name == "gelu" { 4e-7 * f64::from(x.abs()).min(1.0) } else { 2e-37 };
            assert!((found - expected).abs() <= bound, "{name}({x}) = {found}, not {expected}");
        }
    }

    #[test]
    fn functions_are_those_of_f64_at_all_sizes() {
        for step in -86_000..86_000 {
            check(step as f32 / 1000.0);
        }
        for exponent in -37..1 {
            check(10f32.powi(exponent));
            check(-(10f32.powi(exponent)));
        }
    }

    #[test]
    fn sines_and_cosines_are_those_of_f64_rounded_to_the_nearest_or_next_number() {
        let angles = (0..400_000).map(|step| step as f32 * 0.37).chain((0..1000).map(|step| 1e6 + 1e5 * step as f32));
        for x in angles.chain([1e-30, 1e-8, 1e-4, 0.785, 0.786, FRAC_PI_2, PI]).flat_map(|x| [x, -x]) {
            for (own, expected) in [(sin(x), f64::from(x).sin()), (cos(x), f64::from(x).cos())] {
                let error = (f64::from(own) - expected).abs();
                assert!(
                    error <= expected.abs() * 6.1e-8 + 1e-15 + f64::from(x.abs()) * 1.2e-16,
                    "{x}: {own}, not {expected}"
                );
            }
        }
        assert!(sin(f32::INFINITY).is_nan() && cos(f32::NAN).is_nan());
    }

    #[test]
    fn ends_of_the_functions_are_theirs() {
        assert_eq!([exp(-1e30), exp(f32::NEG_INFINITY), exp(1e30), exp(0.0)], [0.0, 0.0, f32::INFINITY, 1.0]);
        assert_eq!([silu(200.0), silu(-200.0), gelu(1e20), gelu(-1e20)], [200.0, 0.0, 1e20, 0.0]);
        assert_eq!([tanh(1e30), tanh(-1e30), sigmoid(1e30), sigmoid(-1e30)], [1.0, -1.0, 1.0, 0.0]);
        assert_eq!([softplus(1e30), softplus(-1e30)], [1e30, 0.0]);
        for (name, own, _) in ALL {
            assert!(own(f32::NAN).is_nan(), "{name}");
        }
    }

    /// Bits, of which all NaNs have the same.
    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
    }

    proptest! {
        #[test]
        fn all_levels_give_the_same_bits(patterns in prop::collection::vec(any::<u32>(), 1..80), x in -90f32..90.0) {
            let numbers: Vec<f32> = patterns.into_iter().map(f32::from_bits).chain([x, x / 10.0, x / 100.0]).collect();
            for level in Level::all() {
                let found = |function: Function| {
                    let mut y = numbers.clone();
                    each(level, &mut y, function);
                    bits(&y)
                };
                for (name, own) in ALL.into_iter().map(|(name, own, _)| (name, own)).chain([("sin", sin as Function), ("cos", cos)]) {
                    let expected: Vec<f32> = numbers.iter().map(|x| own(*x)).collect();
                    prop_assert_eq!(found(own), bits(&expected), "{} with {:?}", name, level);
                }
            }
        }

        #[test]
        fn softmax_is_that_of_f64_and_the_same_on_all_levels(
            rows in prop::collection::vec(prop::collection::vec(-30f32..30.0, 37), 1..4), width in 1usize..38,
        ) {
            let numbers: Vec<f32> = rows.iter().flat_map(|row| &row[..width]).copied().collect();
            let all = Level::all().into_iter().map(|level| {
                let mut y = numbers.clone();
                softmax_of_rows(level, &mut y, width);
                y
            });
            let all: Vec<_> = all.collect();
            for (row, found) in numbers.chunks(width).zip(all[0].chunks(width)) {
                let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
                for (x, found) in row.iter().zip(found) {
                    let expected = f64::from(*x).exp() / sum;
                    prop_assert!((f64::from(*found) - expected).abs() <= expected * 4e-6, "{} of {}", found, expected);
                }
            }
            for y in &all {
                prop_assert_eq!(bits(y), bits(&all[0]));
            }
        }
    }
}
