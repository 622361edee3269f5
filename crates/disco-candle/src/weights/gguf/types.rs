//! The types of elements of GGUF files.

use candle_core::quantized::GgmlDType;

use crate::weights::{Codes, Encoding};

/// A type of elements.
#[derive(Clone, Copy)]
pub(super) struct GgmlType {
    pub(super) encoding: Encoding,
    /// Elements per block.
    pub(super) block: usize,
    /// Bytes per block.
    pub(super) bytes: usize,
}

/// A code of `enum ggml_type`.
pub(super) fn ggml_type(code: u32) -> Option<GgmlType> {
    if let Some(dtype) = candle_dtype(code) {
        return Some(GgmlType { encoding: Encoding::Ggml(dtype), block: dtype.block_size(), bytes: dtype.type_size() });
    }
    let (_, name, block, bytes) = OTHER_TYPES.iter().find(|(known, ..)| *known == code)?;
    let (block, bytes) = (*block, *bytes);
    let encoding = Codes::of(name).map_or(Encoding::Other(name), Encoding::Codes);
    Some(GgmlType { encoding, block, bytes })
}

/// Codes of the types that candle can hold.
fn candle_dtype(code: u32) -> Option<GgmlDType> {
    Some(match code {
        0 => GgmlDType::F32,
        1 => GgmlDType::F16,
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        9 => GgmlDType::Q8_1,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        15 => GgmlDType::Q8K,
        30 => GgmlDType::BF16,
        _ => return None,
    })
}

/// The types that candle can't hold: code, name, elements and bytes per block. Source: `GGML_QUANT_SIZES` of llama.cpp's
/// package `gguf`; the four that are blocks of Q4_0 and IQ4_NL in another order are of older releases.
static OTHER_TYPES: [(u32, &str, usize, usize); 23] = [
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (31, "Q4_0_4_4", 32, 18),
    (32, "Q4_0_4_8", 32, 18),
    (33, "Q4_0_8_8", 32, 18),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (36, "IQ4_NL_4_4", 32, 18),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_are_expanded_have_the_sizes_of_their_types() {
        let expanded =
            OTHER_TYPES.iter().filter_map(|(_, name, block, bytes)| Some((Codes::of(name)?, (*block, *bytes))));
        let expanded: Vec<_> = expanded.collect();
        assert_eq!(expanded.len(), 13);
        assert!(expanded.iter().all(|(codes, sizes)| codes.block() == *sizes));
    }
}
