//! Arithmetic of all element types: integers wrap; floats narrower than `f32` are computed in `f32` and rounded once.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// An element in memory.
pub(crate) trait Number {
    /// The type of computation.
    type Wide: Wide;
    /// Size in bytes.
    const BYTES: usize;
    /// Reads an element from its bytes.
    fn read(bytes: &[u8]) -> Self::Wide;
    /// Writes an element to its bytes.
    fn write(value: Self::Wide, bytes: &mut [u8]);
}

/// A type of computation.
pub(crate) trait Wide: Copy {
    /// The sum.
    fn sum(self, other: Self) -> Self;
    /// The product.
    fn prod(self, other: Self) -> Self;
    /// The larger one.
    fn max(self, other: Self) -> Self;
    /// The smaller one.
    fn min(self, other: Self) -> Self;
    /// The mean of `count` numbers, of which `self` is the sum.
    fn mean(self, of: usize) -> Self;
}

/// Implements a number that is its own type of computation.
macro_rules! own {
    ($number:ty) => {
        impl Number for $number {
            type Wide = Self;
            const BYTES: usize = size_of::<Self>();

            fn read(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }

            fn write(value: Self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
    };
}

macro_rules! integers {
    ($($number:ty)*) => {$(
        impl Wide for $number {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }

            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }

            /// Rounds towards zero.
            fn mean(self, of: usize) -> Self {
                (self as i128 / of as i128) as Self
            }
        }

        own!($number);
    )*};
}

macro_rules! floats {
    ($($number:ty)*) => {$(
        impl Wide for $number {
            fn sum(self, other: Self) -> Self {
                self + other
            }

            fn prod(self, other: Self) -> Self {
                self * other
            }

            fn max(self, other: Self) -> Self {
                <$number>::max(self, other)
            }

            fn min(self, other: Self) -> Self {
                <$number>::min(self, other)
            }

            fn mean(self, of: usize) -> Self {
                self * (1.0 / of as Self)
            }
        }

        own!($number);
    )*};
}

/// Implements a float that is computed in `f32`.
macro_rules! small {
    ($($number:ty: $bits:ty, $round:expr;)*) => {$(
        impl Number for $number {
            type Wide = f32;
            const BYTES: usize = size_of::<$bits>();

            fn read(bytes: &[u8]) -> f32 {
                Self::from_bits(<$bits as Number>::read(bytes)).to_f32()
            }

            fn write(value: f32, bytes: &mut [u8]) {
                <$bits as Number>::write($round(value).to_bits(), bytes);
            }
        }
    )*};
}

// Half-precision floats are read as `u16`.
integers! { i8 u8 u16 i32 u32 i64 u64 }
floats! { f32 f64 }
small! {
    f16: u16, f16::from_f32;
    bf16: u16, bf16::from_f32;
    F8E4M3: u8, F8E4M3::from_f32;
    F8E5M2: u8, round_e5m2;
}

/// Rounds as CUDA's conversions do: infinity stays infinity, and a finite number that is too large becomes the largest
/// finite number. `float8` converts infinity to the largest finite number, too.
fn round_e5m2(x: f32) -> F8E5M2 {
    match x {
        f32::INFINITY => F8E5M2::from_bits(0x7c),
        f32::NEG_INFINITY => F8E5M2::from_bits(0xfc),
        x => F8E5M2::from_f32(x),
    }
}
