//! Element types of tensors, with their DLPack codes.

use std::str::FromStr;

/// The type of a tensor's elements.
///
/// The enum is non-exhaustive because vendors keep adding narrow floats. On the wire and in DLPack a type is a code, a
/// width in bits and a number of lanes; Disco supports one lane only.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 64 bits.
    U64,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// 8 bits, 4 of exponent, finite values and NaN only (DLPack's `float8_e4m3fn`).
    F8E4M3,
    /// 8 bits, 5 of exponent, with infinities.
    F8E5M2,
}

/// One row a type: name, DLPack code, bits.
const TABLE: [(DType, &str, u8, u8); 15] = [
    (DType::Bool, "bool", 6, 8),
    (DType::I8, "i8", 0, 8),
    (DType::U8, "u8", 1, 8),
    (DType::I16, "i16", 0, 16),
    (DType::U16, "u16", 1, 16),
    (DType::I32, "i32", 0, 32),
    (DType::U32, "u32", 1, 32),
    (DType::I64, "i64", 0, 64),
    (DType::U64, "u64", 1, 64),
    (DType::F16, "f16", 2, 16),
    (DType::BF16, "bf16", 4, 16),
    (DType::F32, "f32", 2, 32),
    (DType::F64, "f64", 2, 64),
    (DType::F8E4M3, "f8e4m3", 10, 8),
    (DType::F8E5M2, "f8e5m2", 12, 8),
];

impl DType {
    /// All types, in the order of the enum.
    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|row| row.0)
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        (TABLE[self as usize].3 / 8) as usize
    }

    /// The short name: `f32`, `bf16`, `f8e4m3`.
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// DLPack's type code and width in bits.
    pub const fn dlpack(self) -> (u8, u8) {
        (TABLE[self as usize].2, TABLE[self as usize].3)
    }

    /// The type with DLPack's `(code, bits, lanes)`, if Disco supports it.
    pub fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Option<Self> {
        let row = TABLE.iter().find(|row| lanes == 1 && (row.2, row.3) == (code, bits))?;
        Some(row.0)
    }

    /// True for `f16` to `f64`, `bf16` and the 8-bit floats.
    pub const fn is_float(self) -> bool {
        matches!(self.dlpack().0, 2 | 4 | 10 | 12)
    }
}

crate::format_as!(Display for DType, |it| "{}", it.name());

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        let row = TABLE.iter().find(|row| row.1 == name);
        row.map(|row| row.0).ok_or_else(|| UnknownDType(name.to_owned()))
    }
}

/// A text is not the name of a dtype.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype `{0}`; known are {known}", known = TABLE.map(|row| row.1).join(", "))]
pub struct UnknownDType(String);

/// A Rust type for the elements of a host tensor.
///
/// `u8` also views `bool` and the 8-bit floats, for which there is no plain Rust type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no element type of a tensor",
    label = "not an element type",
    note = "elements are `i8` to `i64`, `u8` to `u64`, `half::f16`, `half::bf16`, `f32` and `f64`; `usize` is `u64` or `u32` as an element, and `u8` views `bool` and the 8-bit floats"
)]
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The dtype of a new tensor of these elements.
    const DTYPE: DType;

    /// Whether a tensor of this type may be viewed as `Self`.
    fn views(dtype: DType) -> bool {
        dtype == Self::DTYPE
    }
}

macro_rules! element {
    ($($ty:ty => $dtype:ident),*) => {
        $(impl Element for $ty { const DTYPE: DType = DType::$dtype; })*
    };
}

element!(i8 => I8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    half::f16 => F16, half::bf16 => BF16, f32 => F32, f64 => F64);

impl Element for u8 {
    const DTYPE: DType = DType::U8;

    fn views(dtype: DType) -> bool {
        dtype.size() == 1 && dtype != DType::I8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_order_of_the_enum() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, index);
        }
    }

    #[test]
    fn dlpack_codes_and_names_convert_back_to_the_dtype() {
        for dtype in DType::all() {
            let (code, bits) = dtype.dlpack();
            assert_eq!(DType::from_dlpack(code, bits, 1), Some(dtype));
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
        }
        assert_eq!(DType::from_dlpack(2, 32, 4), None, "vectors are not elements");
        assert!("float".parse::<DType>().unwrap_err().to_string().contains("known are bool, i8"));
    }
}
