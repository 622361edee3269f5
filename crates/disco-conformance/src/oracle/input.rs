//! Inputs of ranks.

use disco_core::{DType, Reduction};

use super::elements::encode;
use super::rounding::Format;

/// The kind of numbers in the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Values {
    /// Arbitrary bits, for operations that don't reduce.
    Bits,
    /// Whole numbers so small that the result of a reduction is exact in every order.
    Whole,
    /// Arbitrary numbers whose reduction overflows no float; integers wrap.
    Any,
    /// Floats of which some are NaN.
    Nan,
}

impl Values {
    /// The name in texts: `whole numbers`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bits => "any bits",
            Self::Whole => "whole numbers",
            Self::Any => "any numbers",
            Self::Nan => "numbers and NaN",
        }
    }

    /// The input of rank `rank` of `size` for a reduction, as bytes. It depends only on the arguments; `salt` is a part
    /// of the seed.
    pub(crate) fn bytes(
        self,
        dtype: DType,
        reduction: Reduction,
        (rank, size): (usize, usize),
        count: usize,
        salt: u64,
    ) -> Vec<u8> {
        if self == Self::Bits {
            return random(dtype, salt + rank as u64, count);
        }
        let mut next = bits(salt + rank as u64 + 1000 * size as u64);
        let mut bytes = Vec::with_capacity(count * dtype.size() + 8);
        for index in 0..count {
            // For each index, the places are a permutation of the ranks, so that only some ranks have large numbers.
            let place = (rank + index) % size;
            let word = match self {
                Self::Nan if next().is_multiple_of(5) => nan(dtype),
                Self::Whole | Self::Bits => whole(dtype, reduction, place, size, next()),
                Self::Any | Self::Nan => any(dtype, reduction, place, size, next()),
            };
            // A copy of constant length and a cut are faster than a copy of the element's length.
            let end = bytes.len() + dtype.size();
            bytes.extend_from_slice(&word.to_le_bytes());
            bytes.truncate(end);
        }
        bytes
    }
}

/// Elements of pseudo-random bits from `seed`; 0 and 1 for bool.
pub(crate) fn random(dtype: DType, seed: u64, count: usize) -> Vec<u8> {
    let mut next = bits(seed);
    let mut bytes: Vec<u8> = Vec::with_capacity(count * dtype.size() + 8);
    while bytes.len() < count * dtype.size() {
        bytes.extend_from_slice(&next().to_le_bytes());
    }
    bytes.truncate(count * dtype.size());
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|byte| *byte &= 1);
    }
    bytes
}

fn whole(dtype: DType, reduction: Reduction, place: usize, size: usize, bits: u64) -> u64 {
    let signed = dtype.is_float() || matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let sign = if signed && bits & 1 == 1 { -1.0 } else { 1.0 };
    let bits = bits >> 1;
    if dtype == DType::Bool {
        // Chosen so that *and* and *or* have both results also among many ranks.
        let mostly = bits % (2 * size as u64 + 1);
        return u64::from(if bits >> 32 & 1 == 0 { mostly == 0 } else { mostly != 0 });
    }
    let number = match reduction {
        // Powers of two whose product is at most 2^5, and a few zeros.
        Reduction::Prod if bits.is_multiple_of(29) => 0.0,
        Reduction::Prod => sign * if place < 5 { (1 + bits % 2) as f64 } else { 1.0 },
        // All partial sums are exact in the mantissa.
        Reduction::Sum | Reduction::Avg => {
            let most = Format::of(dtype).map_or(100, |format| 1u64 << (format.mantissa + 1).min(20));
            let largest = (most / size as u64).clamp(1, 1000);
            if (place as u64) < most / largest { sign * (bits % (largest + 1)) as f64 } else { 0.0 }
        }
        _ => sign * (bits % 5) as f64,
    };
    encode(dtype, number)
}

fn any(dtype: DType, reduction: Reduction, place: usize, size: usize, bits: u64) -> u64 {
    if dtype == DType::Bool {
        return [0, 0, 0, 1, 2, 255][bits as usize % 6];
    }
    if !dtype.is_float() {
        return match reduction {
            // Vendors divide a wrapped sum, so the sum must not wrap.
            Reduction::Avg => average(dtype, bits, size),
            _ => bits,
        };
    }
    let unit = (bits >> 12) as f64 / (1u64 << 52) as f64;
    let sign = if bits & 1 == 1 { -1.0 } else { 1.0 };
    let number = match reduction {
        // Between 0.5 and 2 on a few ranks, and 1 on the others: no product overflows or underflows an 8-bit float.
        Reduction::Prod => sign * if place < 7 { 0.5 + 1.5 * unit } else { 1.0 },
        _ => sign * 8.0 / size as f64 * unit * if bits >> 1 & 3 == 0 { 0.01 } else { 1.0 },
    };
    encode(dtype, number)
}

/// An integer whose sum over `size` ranks does not wrap.
fn average(dtype: DType, bits: u64, size: usize) -> u64 {
    let width = 8 * dtype.size() as u32;
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let half = if signed { 1i128 << (width - 1) } else { 0 };
    let in_type = i128::from(bits) % (1i128 << width) - half;
    (in_type / size as i128) as u64
}

fn nan(dtype: DType) -> u64 {
    match dtype {
        DType::F8E4M3 | DType::F8E5M2 => 0x7f,
        DType::F16 => 0x7e00,
        DType::BF16 => 0x7fc0,
        DType::F32 => f32::NAN.to_bits().into(),
        _ => f64::NAN.to_bits(),
    }
}

/// A stream of bits (xorshift).
pub(crate) fn bits(seed: u64) -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed.wrapping_add(1)) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
