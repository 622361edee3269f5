//! Blocks of GGUF that candle can't hold, which are expanded while they are read. Source: `ggml-quants.c` of llama.cpp.

use half::f16;

/// The kinds of blocks.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codes {
    /// 32 codes of a table, and a scale of 16 bits.
    Iq4Nl,
    /// 256 codes of the same table, a scale of 16 bits, and one of 6 bits for each 32 codes.
    Iq4Xs,
    /// 32 floats of 4 bits (E2M1), and a power of two.
    Mxfp4,
}

/// The numbers of the codes of [`Codes::Iq4Nl`] and [`Codes::Iq4Xs`].
const TABLE: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// The numbers of E2M1.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Codes with one scale.
const RUN: usize = 32;

impl Codes {
    /// The kind with the name `name` of GGML.
    pub(super) fn of(name: &str) -> Option<Self> {
        [Self::Iq4Nl, Self::Iq4Xs, Self::Mxfp4].into_iter().find(|codes| codes.name() == name)
    }

    /// The name in GGML.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Mxfp4 => "MXFP4",
        }
    }

    /// Elements per block and bytes per block.
    pub(super) fn block(self) -> (usize, usize) {
        match self {
            Self::Iq4Nl => (32, 18),
            Self::Iq4Xs => (256, 136),
            Self::Mxfp4 => (32, 17),
        }
    }

    /// Writes the elements of whole blocks to `elements`.
    pub(super) fn expand(self, blocks: &[u8], elements: &mut [f32]) {
        let (len, bytes) = self.block();
        for (block, elements) in blocks.chunks_exact(bytes).zip(elements.chunks_exact_mut(len)) {
            match self {
                Self::Iq4Nl => run(&block[2..], half(block), &TABLE, elements),
                Self::Mxfp4 => run(&block[1..], (f32::from(block[0]) - 127.0).exp2(), &E2M1, elements),
                Self::Iq4Xs => {
                    let high = u16::from_le_bytes([block[2], block[3]]);
                    let codes = block[8..].chunks_exact(RUN / 2).zip(elements.chunks_exact_mut(RUN));
                    for (number, (codes, elements)) in codes.enumerate() {
                        let low = block[4 + number / 2] >> (4 * (number % 2)) & 15;
                        let scale = i32::from(low) | i32::from(high >> (2 * number) & 3) << 4;
                        run(codes, half(block) * (scale - 32) as f32, &TABLE, elements);
                    }
                }
            }
        }
    }
}

/// Elements of 16 bytes: the lower halves come first.
fn run(codes: &[u8], scale: f32, table: &[f32; 16], elements: &mut [f32]) {
    let (first, second) = elements.split_at_mut(RUN / 2);
    for ((code, first), second) in codes.iter().zip(first).zip(second) {
        (*first, *second) = (scale * table[usize::from(code & 15)], scale * table[usize::from(code >> 4)]);
    }
}

/// The number of 16 bits at the start of a block.
fn half(block: &[u8]) -> f32 {
    f16::from_le_bytes([block[0], block[1]]).to_f32()
}
