//! Vectors of 32-bit floats: one number on any processor, 8 or 16 on those of x86-64.
//!
//! A value of a type here says that the processor has its instructions. The methods are inlined into functions that declare the
//! instructions; calls of the intrinsics are inlined there only.
#![allow(unsafe_code)] // Functions for instructions that the processor has.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::elements::Element;
#[cfg(target_arch = "x86_64")]
use super::elements::Kind;

/// The instructions for numbers that are computed together.
pub(super) trait Lanes: Copy {
    const COUNT: usize;

    type Vector: Copy;

    fn splat(self, x: f32) -> Self::Vector;

    /// The first weights as 32-bit floats.
    fn widen<T: Element>(self, weights: &[T]) -> Self::Vector;

    /// Writes the first numbers.
    fn store(self, x: Self::Vector, to: &mut [f32]);

    /// `a · b + sum`, rounded once.
    fn fused(self, a: Self::Vector, b: Self::Vector, sum: Self::Vector) -> Self::Vector;

    fn plus(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Asks for memory that is needed soon, of which any address is allowed.
    fn prefetch<T>(self, ahead: *const T);
}

/// No vectors.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

impl Lanes for Scalar {
    const COUNT: usize = 1;

    type Vector = f32;

    #[inline(always)]
    fn splat(self, x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn widen<T: Element>(self, weights: &[T]) -> f32 {
        weights[0].to_f32()
    }

    #[inline(always)]
    fn store(self, x: f32, to: &mut [f32]) {
        to[0] = x;
    }

    #[inline(always)]
    fn fused(self, a: f32, b: f32, sum: f32) -> f32 {
        a.mul_add(b, sum)
    }

    #[inline(always)]
    fn plus(self, a: f32, b: f32) -> f32 {
        a + b
    }

    #[inline(always)]
    fn prefetch<T>(self, _: *const T) {}
}

/// Implements [`Lanes`] by intrinsics.
#[cfg(target_arch = "x86_64")]
macro_rules! lanes {
    ($name:ident, $what:literal, $vector:ty, $splat:ident, $f32:ident, $f16:ident, $bf16:ident, $store:ident, $fused:ident, $plus:ident) => {
        #[doc = $what]
        #[derive(Clone, Copy)]
        pub(super) struct $name(());

        impl $name {
            /// # Safety
            /// The processor has these instructions.
            pub(super) unsafe fn assume() -> Self {
                Self(())
            }
        }

        impl Lanes for $name {
            const COUNT: usize = size_of::<$vector>() / size_of::<f32>();

            type Vector = $vector;

            #[inline(always)]
            fn splat(self, x: f32) -> $vector {
                // SAFETY: the processor has the instructions, as below.
                unsafe { $splat(x) }
            }

            #[inline(always)]
            fn widen<T: Element>(self, weights: &[T]) -> $vector {
                let weights = weights[..Self::COUNT].as_ptr();
                match T::KIND {
                    // SAFETY: as above, and so many elements of this kind are there, as below.
                    Kind::F32 => unsafe { $f32(weights.cast()) },
                    // SAFETY: as above.
                    Kind::F16 => unsafe { $f16(weights.cast()) },
                    // SAFETY: as above.
                    Kind::Bf16 => unsafe { $bf16(weights.cast()) },
                }
            }

            #[inline(always)]
            fn store(self, x: $vector, to: &mut [f32]) {
                let to = to[..Self::COUNT].as_mut_ptr();
                // SAFETY: as above.
                unsafe { $store(to, x) };
            }

            #[inline(always)]
            fn fused(self, a: $vector, b: $vector, sum: $vector) -> $vector {
                // SAFETY: as above.
                unsafe { $fused(a, b, sum) }
            }

            #[inline(always)]
            fn plus(self, a: $vector, b: $vector) -> $vector {
                // SAFETY: as above.
                unsafe { $plus(a, b) }
            }

            #[inline(always)]
            fn prefetch<T>(self, ahead: *const T) {
                // SAFETY: prefetching any address is allowed.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
lanes!(
    Avx2,
    "AVX2, FMA and F16C.",
    __m256,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    halves_256,
    brains_256,
    _mm256_storeu_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps
);

#[cfg(target_arch = "x86_64")]
lanes!(
    Avx512,
    "AVX-512F.",
    __m512,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    halves_512,
    brains_512,
    _mm512_storeu_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps
);

/// Elements of 16 bits as 32-bit floats.
///
/// # Safety
/// So many elements are there.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn halves_256(from: *const __m128i) -> __m256 {
    // SAFETY: the caller's promise.
    _mm256_cvtph_ps(unsafe { from.read_unaligned() })
}

/// # Safety
/// As above.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn brains_256(from: *const __m128i) -> __m256 {
    // SAFETY: the caller's promise.
    let wide = _mm256_cvtepu16_epi32(unsafe { from.read_unaligned() });
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
}

/// # Safety
/// As above.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn halves_512(from: *const __m256i) -> __m512 {
    // SAFETY: the caller's promise.
    _mm512_cvtph_ps(unsafe { from.read_unaligned() })
}

/// # Safety
/// As above.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn brains_512(from: *const __m256i) -> __m512 {
    // SAFETY: the caller's promise.
    let wide = _mm512_cvtepu16_epi32(unsafe { from.read_unaligned() });
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
}
