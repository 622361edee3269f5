//! Vector code over raw memory: reductions, copies, exchanges.
//!
//! Loops are written over short arrays, which the compiler turns into the widest vectors of the machine that a variant is
//! compiled for; the variant is chosen at run time. A result is the same whatever the variant, the alignment and the
//! place of an element: the tail goes through the same code, filled up.

#![allow(unsafe_code)]

mod fold;
mod machine;
mod number;

use std::ptr;

use disco_core::{DType, Reduction};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use machine::{Machine as _, Plain};
use number::Truth;

/// One reduction over memory.
#[derive(Clone, Copy)]
pub(crate) struct Fold<'a> {
    /// Elements of all of them.
    pub(crate) dtype: DType,
    /// How many become one.
    pub(crate) reduction: Reduction,
    /// What is reduced, in this order.
    pub(crate) inputs: &'a [*const u8],
    /// Where the result goes.
    pub(crate) outputs: &'a [*mut u8],
    /// The first element that is, and how many are.
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Whether the results go past the caches, which pays for what does not fit in them.
    pub(crate) stream: bool,
}

/// Overwrites the outputs with the reduction of the inputs. False if there is no such reduction.
///
/// # Safety
/// Each input and output is valid for `count` elements from the `first`; nothing else writes the inputs or touches the outputs meanwhile;
/// an output is the very memory of an input or overlaps none, and no two outputs overlap.
pub(crate) unsafe fn reduce(fold: Fold<'_>) -> bool {
    #[cfg(target_arch = "x86_64")]
    if machine::has_v3() {
        // SAFETY: this processor has what the function is compiled for; the rest is the caller's promise.
        return unsafe { reduce_v3(fold) };
    }
    // SAFETY: the caller's promise.
    unsafe { reduce_plain(fold) }
}

/// A variant of [`reduce`] for one machine: its name, and what its functions are compiled for. One function a dtype.
macro_rules! variant {
    ($name:ident, $machine:ty $(, $attribute:meta)*) => {
        variant! { $name, $machine, [$(#[$attribute])*],
            // The number is how many elements are loaded at a time: 32 bytes or more, and no more than registers hold.
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
        /// As [`reduce`], on such a machine.
        unsafe fn $name(fold: Fold<'_>) -> bool {
            match fold.dtype {
                $(DType::$dtype => {
                    variant! { $attributes
                        /// # Safety
                        /// As [`reduce`], on such a machine.
                        #[inline(never)]
                        unsafe fn run(fold: Fold<'_>) -> bool {
                            // SAFETY: the caller's promise.
                            unsafe { fold::run::<$machine, $ty, $lanes>(fold) }
                        }
                    }
                    // SAFETY: the caller's promise.
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

/// Copies `bytes` bytes, past the caches if `stream`.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of so many; nothing else writes the one or touches the other meanwhile.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize, stream: bool) {
    #[cfg(target_arch = "x86_64")]
    if stream && machine::has_v3() {
        // SAFETY: this processor has what the function is compiled for; the rest is the caller's promise.
        return unsafe { copy_v3(from, to, bytes) };
    }
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) }
}

/// # Safety
/// As [`copy`], on a processor with x86-64-v3.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_v3(from: *const u8, to: *mut u8, bytes: usize) {
    const UNIT: usize = 32;
    let head = to.align_offset(UNIT).min(bytes);
    // SAFETY: `head` is at most `bytes`, for which the caller gives its promise.
    unsafe { ptr::copy(from, to, head) };
    let whole = (bytes - head) / UNIT * UNIT;
    for at in (head..head + whole).step_by(UNIT) {
        // SAFETY: `at + UNIT` is at most `bytes`.
        let unit = unsafe { from.wrapping_add(at).cast::<[u8; UNIT]>().read_unaligned() };
        // SAFETY: as above, and `to` is aligned from `head` on.
        unsafe { machine::V3::stream(to.wrapping_add(at).cast(), unit) };
    }
    machine::V3::fence();
    let done = head + whole;
    // SAFETY: `done` is at most `bytes`.
    unsafe { ptr::copy(from.wrapping_add(done), to.wrapping_add(done), bytes - done) };
}

/// Exchanges two stretches of `bytes` bytes.
///
/// # Safety
/// Both are valid for so many, do not overlap, and nothing else touches them meanwhile.
pub(crate) unsafe fn swap(a: *mut u8, b: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::swap_nonoverlapping(a, b, bytes) }
}

#[cfg(all(test, target_arch = "x86_64"))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Bits that are NaN, infinite, subnormal and ordinary in all float types.
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
        let known = match v3 {
            // SAFETY: the vectors are as long as the fold says, and this thread's own; the caller has asked for v3.
            true => unsafe { reduce_v3(fold) },
            // SAFETY: as above.
            false => unsafe { reduce_plain(fold) },
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

    /// With all NaNs alike: which of two NaNs an addition gives depends on the order that the compiler puts them in.
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
    fn copies_past_the_caches_are_whole_at_any_alignment() {
        let from = bits(1, 300);
        for (start, shift, len) in [(0, 0, 256), (1, 3, 257), (7, 31, 31), (0, 5, 0), (3, 32, 290)] {
            let mut to = vec![0u8; 400];
            // SAFETY: both ranges lie in the vectors, which are this thread's own.
            unsafe { copy(from[start..].as_ptr(), to[shift..].as_mut_ptr(), len, true) };
            assert_eq!(to[shift..shift + len], from[start..start + len]);
            assert!(to[..shift].iter().chain(&to[shift + len..]).all(|byte| *byte == 0));
        }
    }
}
