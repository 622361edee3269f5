//! The operations that differ between processors.

use half::f16;

/// A kind of processor that kernels are compiled for.
pub(super) trait Machine {
    /// Size and alignment of a streaming store in bytes; 0 without streaming stores.
    const STREAM: usize;
    /// Whether two ranks get loops of their own, with all addresses in registers. These loops add compile time.
    const HAS_PAIR_LOOPS: bool;
    /// Divides the number of elements that loops load at a time.
    const NARROWER: usize;

    /// Writes `value` with streaming stores.
    ///
    /// # Safety
    /// `to` is valid for writes and aligned to [`Machine::STREAM`], and the size of `value` is a multiple of it.
    unsafe fn stream<T: Copy>(to: *mut T, value: T);

    /// Orders streaming stores before all later stores.
    fn fence();

    /// Converts half floats to single floats.
    fn widen_f16<const L: usize>(x: [f16; L]) -> [f32; L];

    /// Converts single floats to half floats, rounding to nearest, ties to even.
    fn narrow_f16<const L: usize>(x: [f32; L]) -> [f16; L];
}

/// The baseline of the target.
pub(super) struct Plain;

impl Machine for Plain {
    const STREAM: usize = 0;
    // On x86-64 this variant runs only on processors from before 2013, so the compile time is not worth it.
    const HAS_PAIR_LOOPS: bool = cfg!(not(target_arch = "x86_64"));
    // Short loops compile in half the time.
    const NARROWER: usize = if cfg!(target_arch = "x86_64") { 4 } else { 1 };

    #[inline(always)]
    unsafe fn stream<T: Copy>(to: *mut T, value: T) {
        // SAFETY: the caller guarantees it.
        unsafe { to.write_unaligned(value) }
    }

    #[inline(always)]
    fn fence() {}

    #[inline(always)]
    fn widen_f16<const L: usize>(x: [f16; L]) -> [f32; L] {
        std::array::from_fn(|i| x[i].to_f32())
    }

    #[inline(always)]
    fn narrow_f16<const L: usize>(x: [f32; L]) -> [f16; L] {
        std::array::from_fn(|i| f16::from_f32(x[i]))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use v3::{V3, has_v3};

#[cfg(target_arch = "x86_64")]
mod v3 {
    use std::arch::x86_64::{
        __m128i, __m256i, _MM_FROUND_TO_NEAREST_INT, _mm_sfence, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_stream_si256,
    };
    use std::{array, ptr};

    use half::f16;

    use super::Machine;

    /// x86-64-v3: AVX2 and the features of its time. Measurements showed no gain from AVX-512, since the loops are
    /// memory-bound.
    pub(crate) struct V3;

    /// Whether this processor supports x86-64-v3.
    pub(crate) fn has_v3() -> bool {
        macro_rules! all {
            ($($feature:tt),*) => { true $(&& is_x86_feature_detected!($feature))* };
        }
        all!("avx2", "fma", "f16c", "bmi1", "bmi2", "lzcnt", "movbe")
    }

    /// The methods are inlined into functions with the target features of x86-64-v3.
    impl Machine for V3 {
        const STREAM: usize = 32;
        const HAS_PAIR_LOOPS: bool = true;
        const NARROWER: usize = 1;

        #[inline(always)]
        unsafe fn stream<T: Copy>(to: *mut T, value: T) {
            let (from, to) = (ptr::from_ref(&value).cast::<__m256i>(), to.cast::<__m256i>());
            for unit in 0..size_of::<T>() / 32 {
                // SAFETY: `value` has more than `unit` units.
                let bytes = unsafe { from.wrapping_add(unit).read_unaligned() };
                // SAFETY: the caller guarantees that `to` is valid for the size of `value`, and aligned.
                unsafe { _mm256_stream_si256(to.wrapping_add(unit), bytes) };
            }
        }

        #[inline(always)]
        fn fence() {
            // SAFETY: all x86-64 processors have `sfence`.
            unsafe { _mm_sfence() };
        }

        #[inline(always)]
        fn widen_f16<const L: usize>(x: [f16; L]) -> [f32; L] {
            let mut wide = [0.0; L];
            for at in (0..L).step_by(8) {
                let eight: [f16; 8] = array::from_fn(|i| x[at + i]);
                // SAFETY: both types have 16 bytes, and any bits are valid.
                let eight: __m128i = unsafe { std::mem::transmute(eight) };
                // SAFETY: this code runs only on processors with F16C, as `has_v3` has checked.
                let eight = unsafe { _mm256_cvtph_ps(eight) };
                // SAFETY: `at + 8` is at most `L`, a multiple of 8.
                unsafe { ptr::write_unaligned(wide.as_mut_ptr().wrapping_add(at).cast(), eight) };
            }
            wide
        }

        #[inline(always)]
        fn narrow_f16<const L: usize>(x: [f32; L]) -> [f16; L] {
            let mut narrow = [f16::ZERO; L];
            for at in (0..L).step_by(8) {
                // SAFETY: `at + 8` is at most `L`, a multiple of 8.
                let eight = unsafe { ptr::read_unaligned(x.as_ptr().wrapping_add(at).cast()) };
                // SAFETY: this code runs only on processors with F16C, as `has_v3` has checked.
                let eight = unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(eight) };
                // SAFETY: `at + 8` is at most `L`, a multiple of 8.
                unsafe { ptr::write_unaligned(narrow.as_mut_ptr().wrapping_add(at).cast(), eight) };
            }
            narrow
        }
    }
}
