//! Element types as numbers, and what they are accumulated in.

use bytemuck::{Pod, Zeroable};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// One element of a tensor.
pub(crate) trait Element: Pod {
    /// What it is accumulated in.
    type Wide: Wide;

    fn widen(self) -> Self::Wide;

    fn narrow(wide: Self::Wide) -> Self;
}

/// An accumulator.
pub(crate) trait Wide: Copy {
    fn sum(self, other: Self) -> Self;

    fn prod(self, other: Self) -> Self;

    fn min(self, other: Self) -> Self;

    fn max(self, other: Self) -> Self;

    /// Divided by a number of ranks.
    fn over(self, ranks: usize) -> Self;
}

/// 128 bits hold any sum of 64-bit integers; the low bits of a product do not depend on the high ones.
impl Wide for i128 {
    fn sum(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn prod(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }

    fn min(self, other: Self) -> Self {
        Ord::min(self, other)
    }

    fn max(self, other: Self) -> Self {
        Ord::max(self, other)
    }

    fn over(self, ranks: usize) -> Self {
        self / ranks as i128
    }
}

macro_rules! wide_float {
    ($($ty:ty),*) => {$(
        /// `min` and `max` give NaN where either is, and the first of equals: zeros of both signs come out in rank order.
        impl Wide for $ty {
            fn sum(self, other: Self) -> Self {
                self + other
            }

            fn prod(self, other: Self) -> Self {
                self * other
            }

            fn min(self, other: Self) -> Self {
                if self <= other || self.is_nan() { self } else { other }
            }

            fn max(self, other: Self) -> Self {
                if self >= other || self.is_nan() { self } else { other }
            }

            fn over(self, ranks: usize) -> Self {
                self / ranks as $ty
            }
        }
    )*};
}

wide_float!(f32, f64);

macro_rules! element {
    ($($ty:ty as $wide:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Element for $ty {
            type Wide = $wide;

            fn widen(self) -> $wide {
                $widen(self)
            }

            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }
        }
    )*};
}

element! {
    Bool as i128, |x: Bool| i128::from(x.0 != 0), |x| Bool(u8::from(x != 0));
    i8 as i128, i128::from, |x| x as i8;
    u8 as i128, i128::from, |x| x as u8;
    i16 as i128, i128::from, |x| x as i16;
    u16 as i128, i128::from, |x| x as u16;
    i32 as i128, i128::from, |x| x as i32;
    u32 as i128, i128::from, |x| x as u32;
    i64 as i128, i128::from, |x| x as i64;
    u64 as i128, i128::from, |x| x as u64;
    f16 as f32, f16::to_f32, f16::from_f32;
    bf16 as f32, bf16::to_f32, bf16::from_f32;
    f32 as f32, |x| x, |x| x;
    f64 as f64, |x| x, |x| x;
    F8E4M3 as f32, |x: F8E4M3| x.to_f32(), F8E4M3::from_f32;
    F8E5M2 as f32, |x: F8E5M2| x.to_f32(), f8e5m2;
}

/// One byte of truth: any but 0 is true.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Bool(u8);

/// Infinity stays infinity; other values beyond the largest become the largest, in both 8-bit types, as on NVIDIA's GPUs.
/// `float8` does that to infinity too, and its `INFINITY` is the largest finite value.
fn f8e5m2(x: f32) -> F8E5M2 {
    match x {
        f32::INFINITY => F8E5M2::from_bits(0x7c),
        f32::NEG_INFINITY => F8E5M2::from_bits(0xfc),
        x => F8E5M2::from_f32(x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All finite values of an 8-bit float, from the format's definition.
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

    /// The nearest value, of two equally near ones that with an even code.
    fn nearest(values: &[(u8, f64)], x: f64) -> u8 {
        let near = |&&(code, value): &&(u8, f64)| ((value - x).abs(), code % 2);
        values.iter().min_by(|a, b| near(a).partial_cmp(&near(b)).unwrap()).unwrap().0
    }

    fn rounds_to_nearest_even<T: Element<Wide = f32>>(values: &[(u8, f64)]) {
        for (code, value) in values {
            assert_eq!(f64::from(bytemuck::cast::<u8, T>(*code).widen()), *value);
        }
        // The finite values of f16 have all ties of both formats among them.
        for x in (0..0x7c00).map(|bits| f16::from_bits(bits).to_f32()) {
            let expected = nearest(values, f64::from(x));
            assert_eq!(bytemuck::bytes_of(&T::narrow(x)), [expected], "{x}");
            assert_eq!(bytemuck::bytes_of(&T::narrow(-x)), [expected | 0x80], "-{x}");
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
            assert!(F8E4M3::narrow(nan).widen().is_nan() && F8E5M2::narrow(nan).widen().is_nan());
        }
        assert_eq!(F8E5M2::narrow(f32::NEG_INFINITY).widen(), f32::NEG_INFINITY);
        assert_eq!(F8E5M2::narrow(1e6).widen(), 57344.0);
        assert_eq!(F8E4M3::narrow(f32::INFINITY).widen(), 448.0, "there is no infinity in this format");
    }

    #[test]
    fn min_and_max_give_nan_and_zeros_in_rank_order() {
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert!(Wide::min(a, b).is_nan() && Wide::max(a, b).is_nan());
        }
        assert!(Wide::max(-0.0f64, 0.0).is_sign_negative() && Wide::min(0.0f64, -0.0).is_sign_positive());
    }
}
