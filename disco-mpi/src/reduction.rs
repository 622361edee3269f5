//! What MPI can't compute with, in numbers that it can: halves and eighths in f32, averages of integers in i64.
//!
//! Sums of widened numbers are rounded once, and averages of integers are exact and truncate toward zero: those of 64 bits are
//! summed as two halves of 32.

use disco_core::{DType, Reduction};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// How the elements of a reduction go through MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they are.
    Native,
    /// Each as so many numbers of this dtype.
    Wide(DType, usize),
}

/// The form of a reduction. Sums of 8 and 16 bits wrap around here, also where the library `saturates`: Open MPI 5.0.11 does, on
/// processors with AVX (100i8 + 100i8 = 127).
pub(crate) fn form(dtype: DType, reduction: Reduction, saturates: bool) -> Form {
    match dtype {
        DType::I8 | DType::U8 | DType::I16 | DType::U16 if saturates && reduction == Reduction::Sum => {
            Form::Wide(DType::I64, 1)
        }
        DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => Form::Wide(DType::F32, 1),
        DType::I64 | DType::U64 if reduction == Reduction::Avg => Form::Wide(DType::I64, 2),
        dtype if reduction == Reduction::Avg && !dtype.is_float() => Form::Wide(DType::I64, 1),
        _ => Form::Native,
    }
}

/// Writes elements as wider numbers.
pub(crate) fn widen(dtype: DType, from: &[u8], to: &mut [u8]) {
    match dtype {
        DType::F16 => each::<2, 4>(from, to, |bytes| f16::from_ne_bytes(bytes).to_f32().to_ne_bytes()),
        DType::BF16 => each::<2, 4>(from, to, |bytes| bf16::from_ne_bytes(bytes).to_f32().to_ne_bytes()),
        DType::F8E4M3 => each::<1, 4>(from, to, |[bits]| F8E4M3::from_bits(bits).to_f32().to_ne_bytes()),
        DType::F8E5M2 => each::<1, 4>(from, to, |[bits]| F8E5M2::from_bits(bits).to_f32().to_ne_bytes()),
        DType::I8 => each::<1, 8>(from, to, |bytes| i64::from(i8::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::U8 => each::<1, 8>(from, to, |bytes| i64::from(u8::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::I16 => each::<2, 8>(from, to, |bytes| i64::from(i16::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::U16 => each::<2, 8>(from, to, |bytes| i64::from(u16::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::I32 => each::<4, 8>(from, to, |bytes| i64::from(i32::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::U32 => each::<4, 8>(from, to, |bytes| i64::from(u32::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::I64 => each::<8, 16>(from, to, |bytes| halves(i64::from_ne_bytes(bytes).into())),
        DType::U64 => each::<8, 16>(from, to, |bytes| halves(u64::from_ne_bytes(bytes).into())),
        // Never asked for: see `form`.
        _ => {}
    }
}

/// Writes results back as elements; averages are over `ranks`.
pub(crate) fn narrow(dtype: DType, from: &[u8], to: &mut [u8], ranks: Option<usize>) {
    let float = |bytes: [u8; 4]| f32::from_ne_bytes(bytes) / ranks.unwrap_or(1) as f32;
    let int = |bytes: [u8; 8]| i64::from_ne_bytes(bytes) / ranks.unwrap_or(1) as i64;
    let wide = |bytes: [u8; 16]| whole(bytes) / ranks.unwrap_or(1) as i128;
    match dtype {
        DType::F16 => each::<4, 2>(from, to, |bytes| f16::from_f32(float(bytes)).to_ne_bytes()),
        DType::BF16 => each::<4, 2>(from, to, |bytes| bf16::from_f32(float(bytes)).to_ne_bytes()),
        DType::F8E4M3 => each::<4, 1>(from, to, |bytes| [F8E4M3::from_f32(float(bytes)).to_bits()]),
        DType::F8E5M2 => each::<4, 1>(from, to, |bytes| [eighth(float(bytes))]),
        DType::I8 | DType::U8 => each::<8, 1>(from, to, |bytes| (int(bytes) as u8).to_ne_bytes()),
        DType::I16 | DType::U16 => each::<8, 2>(from, to, |bytes| (int(bytes) as u16).to_ne_bytes()),
        DType::I32 | DType::U32 => each::<8, 4>(from, to, |bytes| (int(bytes) as u32).to_ne_bytes()),
        DType::I64 | DType::U64 => each::<16, 8>(from, to, |bytes| (wide(bytes) as u64).to_ne_bytes()),
        _ => {}
    }
}

/// Makes averages of sums that MPI has computed.
pub(crate) fn divide(dtype: DType, sums: &mut [u8], ranks: usize) {
    match dtype {
        DType::F32 => sums.as_chunks_mut().0.iter_mut().for_each(|bytes: &mut [u8; 4]| {
            *bytes = (f32::from_ne_bytes(*bytes) / ranks as f32).to_ne_bytes();
        }),
        DType::F64 => sums.as_chunks_mut().0.iter_mut().for_each(|bytes: &mut [u8; 8]| {
            *bytes = (f64::from_ne_bytes(*bytes) / ranks as f64).to_ne_bytes();
        }),
        _ => {}
    }
}

/// float8's own conversion knows no infinity.
fn eighth(value: f32) -> u8 {
    match value {
        f32::INFINITY => 0x7c,
        f32::NEG_INFINITY => 0xfc,
        value => F8E5M2::from_f32(value).to_bits(),
    }
}

fn each<const N: usize, const M: usize>(from: &[u8], to: &mut [u8], convert: impl Fn([u8; N]) -> [u8; M]) {
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        *to = convert(*from);
    }
}

/// The upper and the lower 32 bits, so that sums of each fit 64.
fn halves(value: i128) -> [u8; 16] {
    let (upper, lower) = ((value >> 32) as i64, (value & 0xffff_ffff) as i64);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&upper.to_ne_bytes());
    bytes[8..].copy_from_slice(&lower.to_ne_bytes());
    bytes
}

fn whole(bytes: [u8; 16]) -> i128 {
    let half = |at: usize| i64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
    (i128::from(half(0)) << 32) + i128::from(half(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_of_64_bits_are_exact() {
        let values = [i64::MIN, i64::MAX, -1, 0, 7];
        for value in values {
            let bytes = halves(value.into());
            assert_eq!(whole(bytes), i128::from(value));
        }
        let bytes = [i64::MIN; 1].map(i64::to_ne_bytes).concat();
        let mut wide = [0; 16];
        widen(DType::I64, &bytes, &mut wide);
        // Three of them.
        let (upper, lower) = (wide[..8].try_into().unwrap(), wide[8..].try_into().unwrap());
        let sum = [3 * i64::from_ne_bytes(upper), 3 * i64::from_ne_bytes(lower)].map(i64::to_ne_bytes).concat();
        let mut average = [0; 8];
        narrow(DType::I64, &sum, &mut average, Some(3));
        assert_eq!(i64::from_ne_bytes(average), i64::MIN);
    }

    #[test]
    fn what_is_widened_comes_back() {
        for dtype in DType::all() {
            let Form::Wide(wide, numbers) = form(dtype, Reduction::Avg, false) else { continue };
            // Which has no average.
            if dtype == DType::Bool {
                continue;
            }
            // No pattern is a NaN's, which may change.
            let bytes: Vec<u8> = (0..10 * dtype.size()).map(|at| (at * 7 % 100) as u8).collect();
            let mut widened = vec![0; bytes.len() / dtype.size() * wide.size() * numbers];
            widen(dtype, &bytes, &mut widened);
            let mut back = vec![0; bytes.len()];
            narrow(dtype, &widened, &mut back, None);
            assert_eq!(back, bytes, "{dtype}");
        }
    }
}
