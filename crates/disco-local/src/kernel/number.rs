//! Arithmetic of element types, and the types of their accumulators.
//!
//! | dtypes | sum, prod, min, max | avg |
//! |---|---|---|
//! | integers | themselves, wrapping | the exact sum, in 64 or 128 bits; the quotient is truncated toward zero |
//! | bool | any byte but 0 is true, the result is 0 or 1; sum and max are *or*, prod and min *and* | none |
//! | f16, bf16, f8e4m3, f8e5m2 | `f32`, rounded once, at the end | likewise |
//! | f32, f64 | themselves | likewise |

use bytemuck::{Pod, Zeroable};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use super::machine::Machine;

/// An element of a tensor. Conversions take `L` elements at a time.
pub(super) trait Number: Pod {
    /// The accumulator of sums, products and comparisons.
    type Wide: Wide + Pod;
    /// The accumulator of averages.
    type Exact: Mean + Pod;

    fn widen<M: Machine, const L: usize>(x: [Self; L]) -> [Self::Wide; L];

    fn narrow<M: Machine, const L: usize>(x: [Self::Wide; L]) -> [Self; L];

    fn exact<M: Machine, const L: usize>(x: [Self; L]) -> [Self::Exact; L];

    fn round<M: Machine, const L: usize>(x: [Self::Exact; L]) -> [Self; L];
}

/// An accumulator.
pub(super) trait Wide: Copy {
    fn sum(self, other: Self) -> Self;

    fn prod(self, other: Self) -> Self;

    fn min(self, other: Self) -> Self;

    fn max(self, other: Self) -> Self;
}

/// An accumulator of averages.
pub(super) trait Mean: Wide {
    /// Divides by a number of ranks.
    fn over(self, ranks: usize) -> Self;
}

macro_rules! wide_integer {
    ($($ty:ty),*) => {$(
        impl Wide for $ty {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
        }
    )*};
}

wide_integer!(i8, u8, i16, u16, i32, u32, i64, u64, i128);

macro_rules! wide_float {
    ($($ty:ty),*) => {$(
        /// `min` and `max` return NaN if either operand is NaN. Of equal operands (zeros of different sign) they return
        /// the first, so the result depends only on the order of the ranks.
        impl Wide for $ty {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if self <= other || self.is_nan() { self } else { other }
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if self >= other || self.is_nan() { self } else { other }
            }
        }
    )*};
}

wide_float!(f32, f64);

macro_rules! mean {
    ($($ty:ty),*) => {$(
        impl Mean for $ty {
            #[inline(always)]
            fn over(self, ranks: usize) -> Self {
                self / ranks as $ty
            }
        }
    )*};
}

mean!(i64, i128, f32, f64);

/// A row for each type: the accumulator and its conversions, then the accumulator of averages and its conversions.
macro_rules! number {
    ($($ty:ty, $wide:ty: $widen:expr, $narrow:expr; $exact:ty: $exactly:expr, $round:expr;)*) => {$(
        impl Number for $ty {
            type Wide = $wide;
            type Exact = $exact;

            #[inline(always)]
            fn widen<M: Machine, const L: usize>(x: [Self; L]) -> [$wide; L] {
                let mut to = [<$wide>::zeroed(); L];
                for i in 0..L {
                    to[i] = $widen(x[i]);
                }
                to
            }

            #[inline(always)]
            fn narrow<M: Machine, const L: usize>(x: [$wide; L]) -> [Self; L] {
                let mut to = [<Self>::zeroed(); L];
                for i in 0..L {
                    to[i] = $narrow(x[i]);
                }
                to
            }

            #[inline(always)]
            fn exact<M: Machine, const L: usize>(x: [Self; L]) -> [$exact; L] {
                let mut to = [<$exact>::zeroed(); L];
                for i in 0..L {
                    to[i] = $exactly(x[i]);
                }
                to
            }

            #[inline(always)]
            fn round<M: Machine, const L: usize>(x: [$exact; L]) -> [Self; L] {
                let mut to = [<Self>::zeroed(); L];
                for i in 0..L {
                    to[i] = $round(x[i]);
                }
                to
            }
        }
    )*};
}

number! {
    Truth, Truth: Truth::of, |x| x; i64: |x: Truth| i64::from(x.0 != 0), |x| Truth(u8::from(x != 0));
    i8, i8: |x| x, |x| x; i64: i64::from, |x| x as i8;
    u8, u8: |x| x, |x| x; i64: i64::from, |x| x as u8;
    i16, i16: |x| x, |x| x; i64: i64::from, |x| x as i16;
    u16, u16: |x| x, |x| x; i64: i64::from, |x| x as u16;
    i32, i32: |x| x, |x| x; i64: i64::from, |x| x as i32;
    u32, u32: |x| x, |x| x; i64: i64::from, |x| x as u32;
    i64, i64: |x| x, |x| x; i128: i128::from, |x| x as i64;
    u64, u64: |x| x, |x| x; i128: i128::from, |x| x as u64;
    f32, f32: |x| x, |x| x; f32: |x| x, |x| x;
    f64, f64: |x| x, |x| x; f64: |x| x, |x| x;
    bf16, f32: widen_bf16, narrow_bf16; f32: widen_bf16, narrow_bf16;
    F8E4M3, f32: |x: F8E4M3| x.to_f32(), F8E4M3::from_f32; f32: |x: F8E4M3| x.to_f32(), F8E4M3::from_f32;
    F8E5M2, f32: |x: F8E5M2| x.to_f32(), narrow_f8e5m2; f32: |x: F8E5M2| x.to_f32(), narrow_f8e5m2;
}

impl Number for f16 {
    type Wide = f32;
    type Exact = f32;

    #[inline(always)]
    fn widen<M: Machine, const L: usize>(x: [Self; L]) -> [f32; L] {
        M::widen_f16(x)
    }

    #[inline(always)]
    fn narrow<M: Machine, const L: usize>(x: [f32; L]) -> [Self; L] {
        M::narrow_f16(x)
    }

    #[inline(always)]
    fn exact<M: Machine, const L: usize>(x: [Self; L]) -> [f32; L] {
        M::widen_f16(x)
    }

    #[inline(always)]
    fn round<M: Machine, const L: usize>(x: [f32; L]) -> [Self; L] {
        M::narrow_f16(x)
    }
}

/// A bool as a byte: any value but 0 is true. Accumulators are 0 or 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct Truth(u8);

impl Truth {
    #[inline(always)]
    fn of(self) -> Self {
        Self(u8::from(self.0 != 0))
    }
}

impl Wide for Truth {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline(always)]
    fn prod(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.prod(other)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.sum(other)
    }
}

#[inline(always)]
fn widen_bf16(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Rounds to nearest, ties to even; NaN stays NaN. The conversion of the crate `half` has a branch, which prevents
/// vectorisation.
#[inline(always)]
fn narrow_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    bf16::from_bits(if x.is_nan() { nan } else { rounded } as u16)
}

/// Keeps infinity. Both 8-bit types saturate other values to the largest finite value, as on NVIDIA's GPUs. The crate
/// `float8` saturates infinity too, and its `INFINITY` is the largest finite value.
fn narrow_f8e5m2(x: f32) -> F8E5M2 {
    match x {
        f32::INFINITY => F8E5M2::from_bits(0x7c),
        f32::NEG_INFINITY => F8E5M2::from_bits(0xfc),
        x => F8E5M2::from_f32(x),
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Plain;
    use super::*;

    fn wide<T: Number>(x: T) -> T::Wide {
        T::widen::<Plain, 1>([x])[0]
    }

    fn narrow<T: Number>(x: T::Wide) -> T {
        T::narrow::<Plain, 1>([x])[0]
    }

    /// All finite non-negative values of an 8-bit float, from the definition of the format.
    fn finite(exponent_bits: u32, bias: i32, is_finite: impl Fn(u8) -> bool) -> Vec<(u8, f64)> {
        let mantissa_bits = 7 - exponent_bits;
        let value = |code: u8| {
            let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
            match i32::from(code >> mantissa_bits) {
                0 => mantissa * 2f64.powi(1 - bias),
                exponent => (1.0 + mantissa) * 2f64.powi(exponent - bias),
            }
        };
        (0..=0x7f).filter(|&code| is_finite(code)).map(|code| (code, value(code))).collect()
    }

    /// The code of the nearest value; of two equally near ones, the even code.
    fn nearest(values: &[(u8, f64)], x: f64) -> u8 {
        let near = |&&(code, value): &&(u8, f64)| ((value - x).abs(), code % 2);
        values.iter().min_by(|a, b| near(a).partial_cmp(&near(b)).unwrap()).unwrap().0
    }

    fn rounds_to_nearest_even<T: Number<Wide = f32>>(values: &[(u8, f64)]) {
        for (code, value) in values {
            assert_eq!(f64::from(wide(bytemuck::cast::<u8, T>(*code))), *value);
        }
        // The finite values of f16 include all ties of both formats.
        for x in (0..0x7c00).map(|bits| f16::from_bits(bits).to_f32()) {
            let expected = nearest(values, f64::from(x));
            assert_eq!(bytemuck::bytes_of(&narrow::<T>(x)), [expected], "{x}");
            assert_eq!(bytemuck::bytes_of(&narrow::<T>(-x)), [expected | 0x80], "-{x}");
        }
    }

    #[test]
    fn small_floats_round_to_nearest_even_and_stay_finite() {
        rounds_to_nearest_even::<F8E4M3>(&finite(4, 7, |code| code != 0x7f));
        rounds_to_nearest_even::<F8E5M2>(&finite(5, 15, |code| code < 0x7c));
    }

    #[test]
    fn small_floats_keep_nan_and_infinity() {
        for nan in [f32::NAN, -f32::NAN] {
            assert!(wide(narrow::<F8E4M3>(nan)).is_nan() && wide(narrow::<F8E5M2>(nan)).is_nan());
        }
        assert_eq!(wide(narrow::<F8E5M2>(f32::NEG_INFINITY)), f32::NEG_INFINITY);
        assert_eq!(wide(narrow::<F8E5M2>(1e6)), 57344.0);
        assert_eq!(wide(narrow::<F8E4M3>(f32::INFINITY)), 448.0, "the format has no infinity");
    }

    #[test]
    fn min_and_max_return_nan_and_the_first_of_two_zeros() {
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert!(Wide::min(a, b).is_nan() && Wide::max(a, b).is_nan());
        }
        assert!(Wide::max(-0.0f64, 0.0).is_sign_negative() && Wide::min(0.0f64, -0.0).is_sign_positive());
    }

    #[test]
    fn bf16_rounds_like_the_crate_half() {
        for bits in (0..=u32::MAX).step_by(4099).chain([0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0x7f7f_ffff]) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (narrow::<bf16>(x), bf16::from_f32(x));
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
            assert_eq!(wide(ours).to_bits(), ours.to_f32().to_bits());
        }
    }
}
