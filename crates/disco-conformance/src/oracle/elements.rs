//! Conversions between bytes and numbers.

use disco_core::DType;

use super::rounding::Format;

/// The elements of a tensor as numbers that hold each of them exactly.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Elements {
    /// Integers; for `bool`, 0 and 1.
    Ints(Vec<i128>),
    /// Floats.
    Floats(Vec<f64>),
}

impl Elements {
    /// Reads the elements of a tensor.
    pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Self {
        let words = bytes.chunks_exact(dtype.size()).map(word);
        match Format::of(dtype) {
            Some(_) if dtype == DType::F64 => Self::Floats(words.map(f64::from_bits).collect()),
            Some(_) if dtype == DType::F32 => {
                Self::Floats(words.map(|word| f64::from(f32::from_bits(word as u32))).collect())
            }
            Some(format) => Self::Floats(words.map(|word| format.decode(word)).collect()),
            None => Self::Ints(words.map(|word| int(dtype, word)).collect()),
        }
    }

    /// The element at `index` as text.
    pub(crate) fn show(&self, index: usize) -> String {
        match self {
            Self::Ints(ints) => ints.get(index).map_or_else(String::new, ToString::to_string),
            Self::Floats(floats) => floats.get(index).map_or_else(String::new, ToString::to_string),
        }
    }
}

/// The bits of a number in a dtype: rounded for a float type, truncated to the low bits for an integer type.
pub(crate) fn encode(dtype: DType, number: f64) -> u64 {
    match Format::of(dtype) {
        Some(_) if dtype == DType::F64 => number.to_bits(),
        Some(_) if dtype == DType::F32 => u64::from((number as f32).to_bits()),
        Some(format) => format.encode(number),
        None => number as i64 as u64,
    }
}

/// Wraps an integer to a dtype: keeps its low bits.
pub(crate) fn wrap(dtype: DType, wide: i128) -> i128 {
    int(dtype, wide as u64)
}

fn int(dtype: DType, word: u64) -> i128 {
    match dtype {
        DType::Bool => i128::from(word as u8 != 0),
        DType::I8 => (word as i8).into(),
        DType::I16 => (word as i16).into(),
        DType::I32 => (word as i32).into(),
        DType::I64 => (word as i64).into(),
        DType::U8 => (word as u8).into(),
        DType::U16 => (word as u16).into(),
        DType::U32 => (word as u32).into(),
        _ => word.into(),
    }
}

fn word(element: &[u8]) -> u64 {
    // Copies of constant lengths need no call of `memcpy`.
    match *element {
        [a] => a.into(),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => unreachable!("elements have 1, 2, 4 or 8 bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_keep_their_sign_and_wrap() {
        assert_eq!(Elements::decode(DType::I16, &[0xfe, 0xff, 3, 0]), Elements::Ints(vec![-2, 3]));
        assert_eq!(Elements::decode(DType::U64, &[0xff; 8]), Elements::Ints(vec![u64::MAX.into()]));
        assert_eq!(Elements::decode(DType::Bool, &[0, 2]), Elements::Ints(vec![0, 1]));
        assert_eq!(wrap(DType::I8, 128), -128);
        assert_eq!(wrap(DType::U8, -1), 255);
    }
}
