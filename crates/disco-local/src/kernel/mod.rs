//! Vector code over raw memory: reductions, copies, exchanges.
//!
//! Loops are written over short arrays, which the compiler vectorises. Each function is compiled for several kinds of
//! processors, and the variant is chosen at run time. A result does not depend on the variant, on the alignment or on
//! the position of an element: the tail is padded to a whole block and goes through the same code.

#![allow(unsafe_code)]

mod convert;
mod fold;
mod machine;
mod number;

use std::ptr;

use disco_core::{DType, Reduction};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

pub(crate) use convert::{narrow, widen};
use machine::{Machine, Plain};
use number::Truth;

/// One reduction over memory.
#[derive(Clone, Copy)]
pub(crate) struct Fold<'a> {
    /// The dtype of all inputs and outputs.
    pub(crate) dtype: DType,
    /// The reduction.
    pub(crate) reduction: Reduction,
    /// The inputs, in the order of the ranks.
    pub(crate) inputs: &'a [*const u8],
    /// The outputs, each of which gets the result.
    pub(crate) outputs: &'a [*mut u8],
    /// Index of the first element to reduce.
    pub(crate) first: usize,
    /// Number of elements to reduce.
    pub(crate) count: usize,
    /// Whether to write results with streaming stores, which is faster for data that does not fit in the caches.
    pub(crate) stream: bool,
}

/// Overwrites the outputs with the reduction of the inputs. Returns false if the dtype does not support the reduction.
///
/// # Safety
/// Each input and output is valid for `count` elements from element `first` on. Nothing else writes the inputs or
/// accesses the outputs meanwhile. An output is identical with an input or overlaps no input, and no two outputs
/// overlap.
pub(crate) unsafe fn reduce(fold: Fold<'_>) -> bool {
    #[cfg(target_arch = "x86_64")]
    if machine::has_v3() {
        // SAFETY: this processor has the features of the function; the caller guarantees the rest.
        return unsafe { reduce_v3(fold) };
    }
    // SAFETY: the caller guarantees it.
    unsafe { reduce_plain(fold) }
}

/// A variant of [`reduce`]: its name, its [`Machine`](machine::Machine) and the attributes of its functions. Each dtype
/// has a function.
macro_rules! variant {
    ($name:ident, $machine:ty $(, $attribute:meta)*) => {
        variant! { $name, $machine, [$(#[$attribute])*],
            // The number of elements loaded at a time, before the division by `NARROWER`: at least 32 bytes, and at most as
            // many as the registers hold.
            Bool => Truth, 32;
            I8 => i8, 32;
            U8 => u8, 32;
            I16 => i16, 32;
            U16 => u16, 32;
            I32 => i32, 16;
            U32 => u32, 16;
            I64 => i64, 8;
            U64 => u64, 8;
            F16 => f16, 16;
            BF16 => bf16, 16;
            F32 => f32, 16;
            F64 => f64, 8;
            F8E4M3 => F8E4M3, 32;
            F8E5M2 => F8E5M2, 32;
        }
    };
    ($name:ident, $machine:ty, $attributes:tt, $($dtype:ident => $ty:ty, $lanes:literal;)*) => {
        /// # Safety
        /// As [`reduce`], on a processor with the features of the variant.
        unsafe fn $name(fold: Fold<'_>) -> bool {
            match fold.dtype {
                $(DType::$dtype => {
                    variant! { $attributes
                        /// # Safety
                        /// As [`reduce`], on a processor with the features of the variant.
                        #[inline(never)]
                        unsafe fn run(fold: Fold<'_>) -> bool {
                            // SAFETY: the caller guarantees it.
                            unsafe { fold::run::<$machine, $ty, { $lanes / <$machine as Machine>::NARROWER }>(fold) }
                        }
                    }
                    // SAFETY: the caller guarantees it.
                    unsafe { run(fold) }
                })*
                _ => false,
            }
        }
    };
    ([$($attribute:tt)*] $function:item) => {
        $($attribute)*
        $function
    };
}

variant!(reduce_plain, Plain);
#[cfg(target_arch = "x86_64")]
variant!(reduce_v3, machine::V3, target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,movbe"));

/// Copies `bytes` bytes, with streaming stores if `stream`.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `bytes` bytes. They don't overlap. Nothing else writes `from` or
/// accesses `to` meanwhile.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize, stream: bool) {
    #[cfg(target_arch = "x86_64")]
    if stream && machine::has_v3() {
        // SAFETY: this processor has the features of the function; the caller guarantees the rest.
        return unsafe { copy_v3(from, to, bytes) };
    }
    // SAFETY: the caller guarantees it.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) }
}

/// # Safety
/// As [`copy`], on a processor with x86-64-v3.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_v3(from: *const u8, to: *mut u8, bytes: usize) {
    const UNIT: usize = 32;
    let head = to.align_offset(UNIT).min(bytes);
    // SAFETY: `head` is at most `bytes`, for which the caller guarantees that both pointers are valid.
    unsafe { ptr::copy(from, to, head) };
    let whole = (bytes - head) / UNIT * UNIT;
    for at in (head..head + whole).step_by(UNIT) {
        // SAFETY: `at + UNIT` is at most `bytes`.
        let unit = unsafe { from.wrapping_add(at).cast::<[u8; UNIT]>().read_unaligned() };
        // SAFETY: `at + UNIT` is at most `bytes`, and `to` is aligned to `UNIT` from `head` on.
        unsafe { machine::V3::stream(to.wrapping_add(at).cast(), unit) };
    }
    machine::V3::fence();
    let done = head + whole;
    // SAFETY: `done` is at most `bytes`.
    unsafe { ptr::copy(from.wrapping_add(done), to.wrapping_add(done), bytes - done) };
}

/// Exchanges two ranges of `bytes` bytes.
///
/// # Safety
/// Both are valid for reads and writes of `bytes` bytes and don't overlap, and nothing else accesses them meanwhile.
pub(crate) unsafe fn swap(a: *mut u8, b: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees it.
    unsafe { ptr::swap_nonoverlapping(a, b, bytes) }
}

#[cfg(all(test, target_arch = "x86_64"))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Pseudo-random bits, among them NaN, infinite, subnormal and normal values of all float types.
    fn bits(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn run(dtype: DType, reduction: Reduction, inputs: &[Vec<u8>], v3: bool, stream: bool, shift: usize) -> Vec<u8> {
        let len = inputs[0].len();
        let mut out = vec![0u8; len + 64];
        let inputs: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr()).collect();
        let outputs = [out.as_mut_ptr().wrapping_add(shift)];
        let fold =
            Fold { dtype, reduction, inputs: &inputs, outputs: &outputs, first: 0, count: len / dtype.size(), stream };
        let known = if v3 {
            // SAFETY: the vectors have `count` elements and belong to this thread; the caller has checked for v3.
            unsafe { reduce_v3(fold) }
        } else {
            // SAFETY: the vectors have `count` elements and belong to this thread.
            unsafe { reduce_plain(fold) }
        };
        assert!(known, "{dtype} {reduction}");
        out[shift..shift + len].to_vec()
    }

    #[test]
    fn all_variants_give_the_same_bits() {
        if !machine::has_v3() {
            return;
        }
        for dtype in DType::all() {
            for reduction in Reduction::ALL.into_iter().filter(|r| (*r, dtype) != (Reduction::Avg, DType::Bool)) {
                for count in [1, 15, 16, 100, 1000] {
                    let inputs: Vec<Vec<u8>> = (0..3).map(|rank| bits(rank + 1, count * dtype.size())).collect();
                    let plain = run(dtype, reduction, &inputs, false, false, 0);
                    let plain: Vec<u8> = canonical(dtype, &plain);
                    for (stream, shift) in [(false, 0), (false, 3), (true, 0), (true, 3)] {
                        let vector = run(dtype, reduction, &inputs, true, stream, shift);
                        assert!(canonical(dtype, &vector) == plain, "{dtype} {reduction} x {count}, {stream} {shift}");
                    }
                }
            }
        }
    }

    /// Replaces all NaNs by one value: the compiler may swap the operands of an addition, which changes the bits of a
    /// NaN.
    fn canonical(dtype: DType, bytes: &[u8]) -> Vec<u8> {
        let is_nan = |x: &[u8]| match dtype {
            DType::F16 => f16::from_ne_bytes(x.try_into().unwrap()).is_nan(),
            DType::BF16 => bf16::from_ne_bytes(x.try_into().unwrap()).is_nan(),
            DType::F32 => f32::from_ne_bytes(x.try_into().unwrap()).is_nan(),
            DType::F64 => f64::from_ne_bytes(x.try_into().unwrap()).is_nan(),
            DType::F8E4M3 => x[0] & 0x7f == 0x7f,
            DType::F8E5M2 => x[0] & 0x7f > 0x7c,
            _ => false,
        };
        bytes.chunks(dtype.size()).flat_map(|x| if is_nan(x) { vec![0xff; x.len()] } else { x.to_vec() }).collect()
    }

    #[test]
    fn streaming_copies_are_complete_at_any_alignment() {
        let from = bits(1, 300);
        for (start, shift, len) in [(0, 0, 256), (1, 3, 257), (7, 31, 31), (0, 5, 0), (3, 32, 290)] {
            let mut to = vec![0u8; 400];
            // SAFETY: both ranges are inside vectors of this thread.
            unsafe { copy(from[start..].as_ptr(), to[shift..].as_mut_ptr(), len, true) };
            assert_eq!(to[shift..shift + len], from[start..start + len]);
            assert!(to[..shift].iter().chain(&to[shift + len..]).all(|byte| *byte == 0));
        }
    }
}
