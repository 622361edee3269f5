//! Element types in safetensors.

use disco_core::DType;
use safetensors::Dtype;

/// One row for each type.
const TABLE: [(DType, Dtype); 15] = [
    (DType::Bool, Dtype::BOOL),
    (DType::I8, Dtype::I8),
    (DType::U8, Dtype::U8),
    (DType::I16, Dtype::I16),
    (DType::U16, Dtype::U16),
    (DType::I32, Dtype::I32),
    (DType::U32, Dtype::U32),
    (DType::I64, Dtype::I64),
    (DType::U64, Dtype::U64),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::F8E4M3, Dtype::F8_E4M3),
    (DType::F8E5M2, Dtype::F8_E5M2),
];

/// The type in safetensors, if the format has it.
pub(crate) fn stored(dtype: DType) -> Option<Dtype> {
    TABLE.iter().find(|row| row.0 == dtype).map(|row| row.1)
}

/// The type in Disco, if Disco has it.
pub(crate) fn loaded(dtype: Dtype) -> Option<DType> {
    TABLE.iter().find(|row| row.1 == dtype).map(|row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_is_stored_with_its_size() {
        for dtype in DType::all() {
            let there = stored(dtype).unwrap();
            assert_eq!((loaded(there), there.bitsize()), (Some(dtype), 8 * dtype.size()));
        }
    }
}
