//! Conversions between elements and accumulators, by the code of the reductions, so that results have the same bits.
//!
//! The functions that are compiled for several processors have neither closures nor iterator adapters, as those of
//! [`fold`](super::fold).

use disco_core::DType;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use super::machine::{self, Machine, Plain};
use super::number::{Mean as _, Number};

/// The number of elements that are converted at a time.
const LANES: usize = 16;

/// Overwrites `to` with the accumulators of the elements `from`, of type `f32`. Only for floats of fewer bits.
pub(crate) fn widen(dtype: DType, from: &[u8], to: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if machine::has_v3() {
        // SAFETY: this processor has the features of the function.
        return unsafe { widen_v3(dtype, from, to) };
    }
    widen_each::<Plain>(dtype, from, to);
}

/// Overwrites `to` with the elements for the accumulators `from`, which are of dtype `wide` and are divided by `ranks`.
pub(crate) fn narrow(dtype: DType, wide: DType, from: &[u8], ranks: usize, to: &mut [u8]) {
    if dtype != wide {
        #[cfg(target_arch = "x86_64")]
        if machine::has_v3() {
            // SAFETY: this processor has the features of the function.
            return unsafe { narrow_v3(dtype, from, ranks, to) };
        }
        return narrow_each::<Plain>(dtype, from, ranks, to);
    }
    match dtype {
        DType::F32 if ranks > 1 => narrow_all::<Plain, f32>(from, ranks, to),
        DType::F64 if ranks > 1 => narrow_all::<Plain, f64>(from, ranks, to),
        _ => to.copy_from_slice(from),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,movbe")]
fn widen_v3(dtype: DType, from: &[u8], to: &mut [u8]) {
    widen_each::<machine::V3>(dtype, from, to);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,movbe")]
fn narrow_v3(dtype: DType, from: &[u8], ranks: usize, to: &mut [u8]) {
    narrow_each::<machine::V3>(dtype, from, ranks, to);
}

#[inline(always)]
fn widen_each<M: Machine>(dtype: DType, from: &[u8], to: &mut [u8]) {
    match dtype {
        DType::F16 => widen_all::<M, f16>(from, to),
        DType::BF16 => widen_all::<M, bf16>(from, to),
        DType::F8E4M3 => widen_all::<M, F8E4M3>(from, to),
        DType::F8E5M2 => widen_all::<M, F8E5M2>(from, to),
        _ => {}
    }
}

#[inline(always)]
fn narrow_each<M: Machine>(dtype: DType, from: &[u8], ranks: usize, to: &mut [u8]) {
    match dtype {
        DType::F16 => narrow_all::<M, f16>(from, ranks, to),
        DType::BF16 => narrow_all::<M, bf16>(from, ranks, to),
        DType::F8E4M3 => narrow_all::<M, F8E4M3>(from, ranks, to),
        DType::F8E5M2 => narrow_all::<M, F8E5M2>(from, ranks, to),
        _ => {}
    }
}

#[inline(always)]
fn widen_all<M: Machine, T: Number>(from: &[u8], to: &mut [u8]) {
    let (mut at, count) = (0, from.len() / size_of::<T>());
    while at < count {
        let wide = T::widen::<M, LANES>(block(from, at));
        write(&wide, to, at);
        at += LANES;
    }
}

#[inline(always)]
fn narrow_all<M: Machine, T: Number>(from: &[u8], ranks: usize, to: &mut [u8]) {
    let (mut at, count) = (0, to.len() / size_of::<T>());
    while at < count {
        let mut wide = block::<T::Exact>(from, at);
        if ranks > 1 {
            for x in &mut wide {
                *x = x.over(ranks);
            }
        }
        write(&T::round::<M, LANES>(wide), to, at);
        at += LANES;
    }
}

/// The elements of `from` from element `at` on, then zeros.
#[inline(always)]
fn block<T: bytemuck::Pod>(from: &[u8], at: usize) -> [T; LANES] {
    let (mut block, rest) = ([T::zeroed(); LANES], &from[at * size_of::<T>()..]);
    if let Some((whole, _)) = rest.split_at_checked(size_of::<[T; LANES]>()) {
        bytemuck::bytes_of_mut(&mut block).copy_from_slice(whole);
    } else {
        bytemuck::bytes_of_mut(&mut block)[..rest.len()].copy_from_slice(rest);
    }
    block
}

/// Writes the elements to `to` from element `at` on, as many as it has.
#[inline(always)]
fn write<T: bytemuck::Pod>(block: &[T; LANES], to: &mut [u8], at: usize) {
    let rest = &mut to[at * size_of::<T>()..];
    if let Some((whole, _)) = rest.split_at_mut_checked(size_of::<[T; LANES]>()) {
        whole.copy_from_slice(bytemuck::bytes_of(block));
    } else {
        let len = rest.len();
        rest.copy_from_slice(&bytemuck::bytes_of(block)[..len]);
    }
}
