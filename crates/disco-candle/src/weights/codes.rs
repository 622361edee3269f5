//! Blocks of GGUF that candle can't hold, which are expanded or packed anew while they are read. Each element is a
//! whole number times the scale of its run of 16 elements, and 32 bits hold the product without rounding. Source:
//! `ggml-quants.c` of llama.cpp, and the Python package `gguf`.

use half::f16;

use super::grids;
use crate::products::Numbers;

/// The kinds of blocks.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codes {
    /// Points of a grid of eight elements, each with a shift of an eighth; a scale of 3 bits for each 32 elements.
    Iq1S,
    /// The same, with a scale of 3 bits for each 16 elements, and a shift for each 8.
    Iq1M,
    /// Points of a grid of eight elements, and their signs; a scale of 4 bits for each 32 elements.
    Iq2Xxs,
    /// The same with a larger grid, and a scale of 4 bits for each 16 elements.
    Iq2Xs,
    /// The same with a larger grid, and a sign for each element.
    Iq2S,
    /// Points of a grid of four elements, and their signs; a scale of 4 bits for each 32 elements.
    Iq3Xxs,
    /// The same with a larger grid, and a sign for each element.
    Iq3S,
    /// 32 codes of a table, and a scale of 16 bits.
    Iq4Nl,
    /// 256 codes of the same table, a scale of 16 bits, and one of 6 bits for each 32 codes.
    Iq4Xs,
    /// 32 floats of 4 bits (E2M1), and a power of two.
    Mxfp4,
    /// The same floats, with a scale of 8 bits (E4M3 without a sign) for each 16 elements.
    Nvfp4,
    /// Digits of base 3, five in a byte, and a scale of 16 bits for all.
    Tq1,
    /// Digits of 2 bits, and a scale of 16 bits for all.
    Tq2,
}

/// Elements of the largest blocks, and of a run with one scale.
const MOST: usize = 256;
const RUN: usize = 16;

/// The numbers of the codes of [`Codes::Iq4Nl`] and [`Codes::Iq4Xs`].
static TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The numbers of the digits of [`Codes::Tq1`] and [`Codes::Tq2`]; the former has three of them.
static DIGITS: [i8; 16] = [-1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Twice the numbers of E2M1.
static E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The values of elements in points of IQ2, IQ3_XXS and IQ3_S, and eight times those of IQ1.
const OF_IQ2: [i8; 3] = [8, 25, 43];
const OF_IQ3_XXS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const OF_IQ3_S: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
const OF_IQ1: [i8; 3] = [-8, 0, 8];

/// The whole numbers of a block and the scale of each run. A block of 32 elements has the first ones only.
struct Block {
    scales: [f32; MOST / RUN],
    codes: [i8; MOST],
}

impl Codes {
    const ALL: [Self; 13] = [
        Self::Iq1S,
        Self::Iq1M,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::Nvfp4,
        Self::Tq1,
        Self::Tq2,
    ];

    /// The kind with the name `name` of GGML.
    pub(super) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|codes| codes.name() == name)
    }

    /// The name in GGML.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Iq1S => "IQ1_S",
            Self::Iq1M => "IQ1_M",
            Self::Iq2Xxs => "IQ2_XXS",
            Self::Iq2Xs => "IQ2_XS",
            Self::Iq2S => "IQ2_S",
            Self::Iq3Xxs => "IQ3_XXS",
            Self::Iq3S => "IQ3_S",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Mxfp4 => "MXFP4",
            Self::Nvfp4 => "NVFP4",
            Self::Tq1 => "TQ1_0",
            Self::Tq2 => "TQ2_0",
        }
    }

    /// Elements per block and bytes per block.
    pub(super) fn block(self) -> (usize, usize) {
        match self {
            Self::Iq1S => (MOST, 50),
            Self::Iq1M => (MOST, 56),
            Self::Iq2Xxs => (MOST, 66),
            Self::Iq2Xs => (MOST, 74),
            Self::Iq2S => (MOST, 82),
            Self::Iq3Xxs => (MOST, 98),
            Self::Iq3S => (MOST, 110),
            Self::Iq4Nl => (32, 18),
            Self::Iq4Xs => (MOST, 136),
            Self::Mxfp4 => (32, 17),
            Self::Nvfp4 => (64, 36),
            Self::Tq1 => (MOST, 54),
            Self::Tq2 => (MOST, 66),
        }
    }

    /// Writes the elements of whole blocks to `elements`.
    pub(super) fn expand(self, blocks: &[u8], elements: &mut [f32]) {
        let (len, bytes) = self.block();
        for (block, elements) in blocks.chunks_exact(bytes).zip(elements.chunks_exact_mut(len)) {
            let Block { scales, codes } = self.decode(block);
            for (element, (run, code)) in elements.iter_mut().zip(codes.iter().enumerate()) {
                *element = scales[run / RUN] * f32::from(*code);
            }
        }
    }

    /// Elements with one scale: 16, or 32, which can be a block of Q8_0.
    pub(super) fn run(self) -> usize {
        if matches!(self, Self::Iq1M | Self::Iq2Xs | Self::Iq2S | Self::Nvfp4) { RUN } else { 2 * RUN }
    }

    /// The whole numbers that there may be.
    pub(super) fn numbers(self) -> Numbers {
        match self {
            Self::Iq4Nl | Self::Iq4Xs => Numbers::Table(&TABLE),
            Self::Mxfp4 | Self::Nvfp4 => Numbers::Table(&E2M1),
            Self::Tq1 | Self::Tq2 => Numbers::Table(&DIGITS),
            Self::Iq1S | Self::Iq1M | Self::Iq3S => Numbers::Small,
            Self::Iq2Xxs | Self::Iq2Xs | Self::Iq2S | Self::Iq3Xxs => Numbers::Wide,
        }
    }

    /// Whole blocks as a scale of 16 bits and the whole numbers of each [run](Self::run). Rounding changes scales below 6e-5 by 3e-8
    /// at most. `None` if a scale is too large.
    pub(super) fn packed(self, blocks: &[u8]) -> Option<Vec<u8>> {
        let (len, bytes) = self.block();
        let run = self.run();
        let mut packed = Vec::with_capacity(blocks.len() / bytes * (len / run) * (2 + run));
        for block in blocks.chunks_exact(bytes) {
            let Block { scales, codes } = self.decode(block);
            for (codes, scales) in codes[..len].chunks_exact(run).zip(scales.chunks_exact(run / RUN)) {
                let scale = Some(f16::from_f32(scales[0])).filter(|scale| scale.is_finite())?;
                packed.extend(scale.to_le_bytes());
                packed.extend(codes.iter().map(|code| *code as u8));
            }
        }
        Some(packed)
    }

    fn decode(self, block: &[u8]) -> Block {
        let mut of = Block { scales: [0.0; MOST / RUN], codes: [0; MOST] };
        let d = half(block);
        match self {
            Self::Iq4Nl => {
                of.scales[..2].fill(d);
                of.nibbles(0, &block[2..], &TABLE);
            }
            Self::Mxfp4 => {
                of.scales[..2].fill((f32::from(block[0]) - 128.0).exp2());
                of.nibbles(0, &block[1..], &E2M1);
            }
            Self::Nvfp4 => {
                for (run, codes) in block[4..].chunks_exact(RUN / 2).enumerate() {
                    of.scales[run] = unsigned_e4m3(block[run]) / 2.0;
                    of.nibbles(RUN * run, codes, &E2M1);
                }
            }
            Self::Tq1 => {
                of.scales.fill(half(&block[52..]));
                let (long, rest) = block[..52].split_at(32);
                let (short, last) = rest.split_at(16);
                let mut codes = of.codes.iter_mut();
                for (bytes, digits) in [(long, 5), (short, 5), (last, 4)] {
                    for power in [1u8, 3, 9, 27, 81].into_iter().take(digits) {
                        // The highest digit of a fraction of 8 bits.
                        let digit = |byte: &u8| (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
                        let digits = bytes.iter().map(|byte| DIGITS[usize::from(digit(byte))]);
                        codes.by_ref().zip(digits).for_each(|(code, digit)| *code = digit);
                    }
                }
            }
            Self::Tq2 => {
                of.scales.fill(half(&block[64..]));
                for (element, code) in of.codes.iter_mut().enumerate() {
                    let byte = block[element / 128 * 32 + element % 32];
                    *code = DIGITS[usize::from(byte >> (element / 32 % 4 * 2) & 3)];
                }
            }
            Self::Iq4Xs => {
                let high = word(block, 2);
                for (number, codes) in block[8..].chunks_exact(RUN).enumerate() {
                    let scale = i32::from(nibble(&block[4..], number)) | i32::from(high >> (2 * number) & 3) << 4;
                    of.scales[2 * number..][..2].fill(d * (scale - 32) as f32);
                    of.nibbles(2 * RUN * number, codes, &TABLE);
                }
            }
            Self::Iq2Xxs => {
                for run in 0..8 {
                    let rest = double(block, 6 + 8 * run);
                    of.scales[2 * run..][..2].fill(d * (2 * (rest >> 28) + 1) as f32 / 8.0);
                    for point in 0..4 {
                        let grid = grids::IQ2_XXS[usize::from(block[2 + 8 * run + point])];
                        let signs = seven(rest >> (7 * point));
                        of.point(32 * run + 8 * point, grid, signs, &OF_IQ2);
                    }
                }
            }
            Self::Iq2Xs => {
                of.scales_of_iq2(d, &block[66..]);
                for point in 0..32 {
                    let code = word(block, 2 + 2 * point);
                    let signs = seven(u32::from(code >> 9));
                    of.point(8 * point, grids::IQ2_XS[usize::from(code & 511)], signs, &OF_IQ2);
                }
            }
            Self::Iq2S => {
                of.scales_of_iq2(d, &block[74..]);
                for point in 0..32 {
                    let high = block[66 + point / 4] >> (2 * (point % 4)) & 3;
                    let grid = grids::IQ2_S[usize::from(block[2 + point]) | usize::from(high) << 8];
                    of.point(8 * point, grid, block[34 + point], &OF_IQ2);
                }
            }
            Self::Iq3Xxs => {
                for run in 0..8 {
                    let rest = double(block, 66 + 4 * run);
                    of.scales[2 * run..][..2].fill(d * (2 * (rest >> 28) + 1) as f32 / 4.0);
                    for point in 0..8 {
                        let signs = seven(rest >> (7 * (point / 2))) >> (4 * (point % 2));
                        let grid = grids::IQ3_XXS[usize::from(block[2 + 8 * run + point])];
                        of.short_point(32 * run + 4 * point, grid, signs, &OF_IQ3_XXS);
                    }
                }
            }
            Self::Iq3S => {
                for point in 0..64 {
                    let run = point / 8;
                    let high = block[66 + run] >> (point % 8) & 1;
                    let signs = block[74 + point / 2] >> (4 * (point % 2));
                    of.scales[2 * run..][..2].fill(d * f32::from(2 * nibble(&block[106..], run) + 1));
                    let grid = grids::IQ3_S[usize::from(block[2 + point]) | usize::from(high) << 8];
                    of.short_point(4 * point, grid, signs, &OF_IQ3_S);
                }
            }
            Self::Iq1S => {
                for point in 0..32 {
                    let run = point / 4;
                    let rest = word(block, 34 + 2 * run);
                    of.scales[2 * run..][..2].fill(d * f32::from(2 * (rest >> 12 & 7) + 1) / 8.0);
                    let high = rest >> (3 * (point % 4)) & 7;
                    of.shifted_point(8 * point, block[2 + point], high as u8, rest >> 15 != 0);
                }
            }
            Self::Iq1M => {
                let all = [0, 1, 2, 3].map(|number| word(block, 48 + 2 * number));
                let bits = (0..).zip(all).fold(0, |bits, (number, scales)| bits | scales >> 12 << (4 * number));
                let d = f16::from_bits(bits).to_f32();
                for run in 0..16 {
                    of.scales[run] = d * f32::from(2 * (all[run / 4] >> (3 * (run % 4)) & 7) + 1) / 8.0;
                }
                for point in 0..32 {
                    let rest = nibble(&block[32..], point);
                    of.shifted_point(8 * point, block[point], rest & 7, rest & 8 != 0);
                }
            }
        }
        of
    }
}

impl Block {
    /// The elements from `first` on, two in a byte: the lower halves come first.
    fn nibbles(&mut self, first: usize, codes: &[u8], table: &[i8; 16]) {
        for (number, code) in codes.iter().enumerate() {
            self.codes[first + number] = table[usize::from(code & 15)];
            self.codes[first + codes.len() + number] = table[usize::from(code >> 4)];
        }
    }

    /// The scales of [`Codes::Iq2Xs`] and [`Codes::Iq2S`].
    fn scales_of_iq2(&mut self, d: f32, scales: &[u8]) {
        for (run, scale) in self.scales.iter_mut().enumerate() {
            *scale = d * f32::from(2 * nibble(scales, run) + 1) / 8.0;
        }
    }

    /// The eight elements of a point from `first` on. A set bit of `signs` is a minus.
    fn point(&mut self, first: usize, point: u16, signs: u8, values: &[i8; 3]) {
        for (number, code) in self.codes[first..first + 8].iter_mut().enumerate() {
            let value = values[usize::from(point >> (2 * number) & 3)];
            *code = if signs >> number & 1 == 0 { value } else { -value };
        }
    }

    /// The four elements of a point of IQ3.
    fn short_point(&mut self, first: usize, point: u16, signs: u8, values: &[i8; 8]) {
        for (number, code) in self.codes[first..first + 4].iter_mut().enumerate() {
            let value = values[usize::from(point >> (4 * number) & 7)];
            *code = if signs >> number & 1 == 0 { value } else { -value };
        }
    }

    /// The eight elements of a point of IQ1, which has the number `low` and three bits more, all of them an eighth higher or lower.
    fn shifted_point(&mut self, first: usize, low: u8, high: u8, is_lower: bool) {
        self.point(first, grids::IQ1[usize::from(low) | usize::from(high) << 8], 0, &OF_IQ1);
        self.codes[first..first + 8].iter_mut().for_each(|code| *code += if is_lower { -1 } else { 1 });
    }
}

/// A float of 8 bits without a sign, which has no infinity. The bit of the sign is not read, and 127 is 0, as in GGML.
fn unsigned_e4m3(bits: u8) -> f32 {
    let [exponent, fraction] = [bits >> 3 & 15, bits & 7].map(f32::from);
    match (bits, exponent) {
        (127, _) => 0.0,
        (_, 0.0) => fraction * (-9f32).exp2(),
        _ => (1.0 + fraction / 8.0) * (exponent - 7.0).exp2(),
    }
}

/// Eight signs of seven bits: the last one makes the number of minuses even.
fn seven(bits: u32) -> u8 {
    let bits = bits as u8 & 127;
    bits | ((bits.count_ones() & 1) as u8) << 7
}

/// One of two numbers of 4 bits in each byte, the lower half first.
fn nibble(bytes: &[u8], number: usize) -> u8 {
    bytes[number / 2] >> (4 * (number % 2)) & 15
}

fn word(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn double(block: &[u8], at: usize) -> u32 {
    u32::from(word(block, at)) | u32::from(word(block, at + 2)) << 16
}

/// The number of 16 bits at the start of a block.
fn half(block: &[u8]) -> f32 {
    f16::from_bits(word(block, 0)).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sum over the bits of the elements of random blocks, in order. `dequantize` of the Python package `gguf` 0.19 gave the
    /// elements.
    const EXPECTED: [(Codes, u64); 13] = [
        (Codes::Iq1S, 0x5481_1578_ba98_e000),
        (Codes::Iq1M, 0x9d9c_6119_98dd_7e00),
        (Codes::Iq2Xxs, 0x91a6_3f1b_c49e_0730),
        (Codes::Iq2Xs, 0xbf42_b2da_2c04_1150),
        (Codes::Iq2S, 0xb3c7_ace8_2dcd_8ce0),
        (Codes::Iq3Xxs, 0xa94c_4c73_04db_fe10),
        (Codes::Iq3S, 0xb5c3_4849_f44e_1680),
        (Codes::Iq4Nl, 0x20c8_19ad_b222_bc80),
        (Codes::Iq4Xs, 0xaaaa_886c_6b9a_2bd4),
        (Codes::Mxfp4, 0xe7de_f0cc_e5c0_0000),
        (Codes::Nvfp4, 0x2105_6978_7444_0000),
        (Codes::Tq1, 0xb5cd_7c90_4dc3_c000),
        (Codes::Tq2, 0xf202_3140_0f1e_c000),
    ];

    const BLOCKS: usize = 256;

    /// Blocks of bytes that look random, most with scales of 0.0687.
    fn blocks(codes: Codes) -> Vec<u8> {
        let (_, bytes) = codes.block();
        let mut state = 1u64;
        let mut blocks: Vec<u8> = (0..BLOCKS * bytes)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u8
            })
            .collect();
        for block in blocks.chunks_exact_mut(bytes) {
            match codes {
                Codes::Mxfp4 => block[0] = 124 + (block[0] & 3),
                Codes::Nvfp4 => (),
                Codes::Tq1 | Codes::Tq2 => block[bytes - 2..].copy_from_slice(&0x2c66u16.to_le_bytes()),
                Codes::Iq1M => {
                    for (number, part) in [0x6, 0x6, 0xc, 0x2].into_iter().enumerate() {
                        let byte = &mut block[49 + 2 * number];
                        *byte = *byte & 15 | part << 4;
                    }
                }
                _ => block[..2].copy_from_slice(&0x2c66u16.to_le_bytes()),
            }
        }
        blocks
    }

    #[test]
    fn packed_blocks_have_the_elements_but_for_the_rounding_of_scales() {
        for codes in Codes::ALL {
            let (len, _) = codes.block();
            let mut elements = vec![0.0; BLOCKS * len];
            codes.expand(&blocks(codes), &mut elements);
            let packed = codes.packed(&blocks(codes)).unwrap();
            let run = codes.run();
            let (all, (_, bytes)) = (blocks(codes), codes.block());
            let numbers: Vec<i8> = all.chunks_exact(bytes).flat_map(|block| codes.decode(block).codes).collect();
            match codes.numbers() {
                Numbers::Table(table) => assert!(numbers.iter().all(|number| *number == 0 || table.contains(number))),
                Numbers::Small => assert!(numbers.iter().all(|number| (-31..=31).contains(number)), "{codes:?}"),
                Numbers::Wide => assert!(numbers.iter().any(|number| *number > 31), "{codes:?}"),
            }
            assert_eq!(packed.len(), elements.len() / run * (2 + run));
            let unpacked = packed
                .chunks_exact(2 + run)
                .flat_map(|block| block[2..].iter().map(|code| half(block) * f32::from(*code as i8)));
            for (unpacked, element) in unpacked.zip(elements) {
                assert!((unpacked - element).abs() <= element.abs() / 2048.0, "{codes:?}: {unpacked}, {element}");
            }
        }
        let mut block = [0; 18];
        block[..2].copy_from_slice(&f16::INFINITY.to_le_bytes());
        assert_eq!(Codes::Iq4Nl.packed(&block), None);
    }

    #[test]
    fn elements_of_all_kinds_are_those_of_ggml() {
        for (codes, expected) in EXPECTED {
            let (len, _) = codes.block();
            let mut elements = vec![0.0; BLOCKS * len];
            codes.expand(&blocks(codes), &mut elements);
            let sum = elements
                .iter()
                .fold(0u64, |sum, element| sum.wrapping_mul(31).wrapping_add(u64::from((element + 0.0).to_bits())));
            assert_eq!(sum, expected, "{codes:?}");
        }
    }
}
