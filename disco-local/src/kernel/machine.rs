//! What differs between processors.

use half::f16;

/// A kind of processor that kernels are compiled for.
pub(super) trait Machine {
    /// Bytes of one streaming store, to which its address is aligned; 0: there is none.
    const STREAM: usize;
    /// Whether two ranks get loops of their own, with all addresses in registers. They take time to compile.
    const HAS_PAIR_LOOPS: bool;

    /// Writes past the caches.
    ///
    /// # Safety
    /// `to` is valid for writes and aligned to [`Machine::STREAM`], which divides the bytes of `value`.
    unsafe fn stream<T: Copy>(to: *mut T, value: T);

    /// Orders streaming stores before what follows.
    fn fence();

    /// Half floats to single ones.
    fn widen_f16<const L: usize>(x: [f16; L]) -> [f32; L];

    /// Single floats to the nearest half ones, of two equally near to the even one.
    fn narrow_f16<const L: usize>(x: [f32; L]) -> [f16; L];
}

/// Whatever the target's baseline is.
pub(super) struct Plain;

impl Machine for Plain {
    const STREAM: usize = 0;
    // On x86-64 it runs on processors from before 2013.
    const HAS_PAIR_LOOPS: bool = cfg!(not(target_arch = "x86_64"));

    #[inline(always)]
    unsafe fn stream<T: Copy>(to: *mut T, value: T) {
        // SAFETY: the caller's promise.
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

    /// x86-64-v3: AVX2 and what came with it. AVX-512 was measured and gives these memory-bound loops nothing.
    pub(crate) struct V3;

    /// Whether this processor is one.
    pub(crate) fn has_v3() -> bool {
        macro_rules! all {
            ($($feature:tt),*) => { true $(&& is_x86_feature_detected!($feature))* };
        }
        all!("avx2", "fma", "f16c", "bmi1", "bmi2", "lzcnt", "movbe")
    }

    /// Methods are called by functions that are compiled for this processor, and become part of them.
    impl Machine for V3 {
        const STREAM: usize = 32;
        const HAS_PAIR_LOOPS: bool = true;

        #[inline(always)]
        unsafe fn stream<T: Copy>(to: *mut T, value: T) {
            let (from, to) = (ptr::from_ref(&value).cast::<__m256i>(), to.cast::<__m256i>());
            for unit in 0..size_of::<T>() / 32 {
                // SAFETY: `value` has that many units.
                let bytes = unsafe { from.wrapping_add(unit).read_unaligned() };
                // SAFETY: so does what the caller vouches for, and it is aligned.
                unsafe { _mm256_stream_si256(to.wrapping_add(unit), bytes) };
            }
        }

        #[inline(always)]
        fn fence() {
            // SAFETY: all x86-64 processors have it.
            unsafe { _mm_sfence() };
        }

        #[inline(always)]
        fn widen_f16<const L: usize>(x: [f16; L]) -> [f32; L] {
            let mut wide = [0.0; L];
            for at in (0..L).step_by(8) {
                let eight: [f16; 8] = array::from_fn(|i| x[at + i]);
                // SAFETY: both are 16 bytes of anything.
                let eight: __m128i = unsafe { std::mem::transmute(eight) };
                // SAFETY: only run on processors that have it.
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
                // SAFETY: only run on processors that have it.
                let eight = unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(eight) };
                // SAFETY: as above.
                unsafe { ptr::write_unaligned(narrow.as_mut_ptr().wrapping_add(at).cast(), eight) };
            }
            narrow
        }
    }
}
