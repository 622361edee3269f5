//! Blocks of GGUF files as codes of 4 or 8 bits: `weight = (code - zero)·scale + min`.
//!
//! The layouts are those of `ggml-common.h` of llama.cpp.

use candle_core::quantized::GgmlDType;
use half::f16;

/// A quantised type.
pub(super) struct Format {
    /// Bytes of a block of the file.
    pub(super) bytes: usize,
    /// Runs of columns with a scale of their own in a block of the file.
    pub(super) runs: usize,
    /// Columns of a run: 16 or 32.
    pub(super) columns: usize,
    /// Of a code: 4, 6 or 8.
    pub(super) bits: usize,
    pub(super) has_mins: bool,
    pub(super) zero: i32,
    /// The numbers that codes of 4 bits stand for; runs have these numbers in place of codes.
    pub(super) table: Option<&'static [i8; 16]>,
    /// Reads a run of a block.
    pub(super) run: fn(&[u8], usize) -> Run,
}

/// The numbers of runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Numbers {
    /// Those of a table.
    Table(&'static [i8; 16]),
    /// Magnitudes up to 31.
    Small,
    /// All.
    Wide,
}

/// Columns of a row with one scale.
pub(super) struct Run {
    pub(super) scale: f32,
    /// 0 if the type has no least values.
    pub(super) min: f32,
    /// Of which the first [`Format::columns`] count.
    pub(super) codes: [u8; 32],
}

/// The codes of 8 and of 6 bits for 0.
const ZERO: i32 = 128;
const SMALL_ZERO: i32 = 32;

impl Format {
    /// The format of a type, if it has blocks that models use.
    pub(super) fn of(dtype: GgmlDType) -> Option<Self> {
        let (columns, bits, has_mins, zero, run): (_, _, _, _, fn(&[u8], usize) -> Run) = match dtype {
            GgmlDType::Q4_0 => (32, 4, false, 8, |block, _| {
                let codes = nibbles(&block[2..]);
                Run { scale: float(block, 0), min: 0.0, codes }
            }),
            GgmlDType::Q4_1 => (32, 4, true, 0, |block, _| {
                let codes = nibbles(&block[4..]);
                Run { scale: float(block, 0), min: float(block, 2), codes }
            }),
            GgmlDType::Q5_0 => (32, 6, false, 16, |block, _| {
                let codes = five_bits(&block[2..]);
                Run { scale: float(block, 0), min: 0.0, codes }
            }),
            GgmlDType::Q5_1 => (32, 6, true, 0, |block, _| {
                let codes = five_bits(&block[4..]);
                Run { scale: float(block, 0), min: float(block, 2), codes }
            }),
            GgmlDType::Q8_0 => (32, 8, false, ZERO, |block, _| {
                let codes = codes(|column| block[2 + column] ^ ZERO as u8);
                Run { scale: float(block, 0), min: 0.0, codes }
            }),
            GgmlDType::Q2K => (16, 4, true, 0, q2k),
            GgmlDType::Q3K => (16, 4, false, 4, q3k),
            GgmlDType::Q4K => (32, 4, true, 0, q4k),
            GgmlDType::Q5K => (32, 6, true, 0, q5k),
            GgmlDType::Q6K => (16, 6, false, 32, q6k),
            _ => return None,
        };
        let (bytes, runs) = (dtype.type_size(), dtype.block_size() / columns);
        Some(Self { bytes, runs, columns, bits, has_mins, zero, table: None, run })
    }

    /// The format of [`Runs`](crate::Runs) of 16 or 32 columns: a scale of 16 bits, and whole numbers of 8 bits.
    pub(super) fn of_runs(columns: usize, numbers: Numbers) -> Self {
        let (bits, zero, table, run): (_, _, _, fn(&[u8], usize) -> Run) = match numbers {
            Numbers::Table(table) => (4, ZERO, Some(table), signed::<0>),
            Numbers::Small => (6, SMALL_ZERO, None, signed::<SMALL_ZERO>),
            Numbers::Wide => (8, ZERO, None, signed::<ZERO>),
        };
        Self { bytes: 2 + columns, runs: 1, columns, bits, has_mins: false, zero, table, run }
    }
}

/// A scale and whole numbers.
fn signed<const ZERO: i32>(block: &[u8], _: usize) -> Run {
    let numbers = &block[2..];
    let codes = codes(|column| numbers[column % numbers.len()].wrapping_add(ZERO as u8));
    Run { scale: float(block, 0), min: 0.0, codes }
}

/// The codes of all columns. Functions of arrays that call closures may stay calls.
#[inline(always)]
fn codes(code: impl Fn(usize) -> u8) -> [u8; 32] {
    let mut all = [0; 32];
    for (column, to) in all.iter_mut().enumerate() {
        *to = code(column);
    }
    all
}

/// 16 scales and least values of 4 bits, codes of 2 bits, factors of scales and least values.
fn q2k(block: &[u8], run: usize) -> Run {
    let (scales, packed, factors) = (block[run], &block[16..80], &block[80..]);
    let codes = codes(|column| two_bits(packed, 16 * run + column));
    let [scale, min] = [scales & 15, scales >> 4].map(f32::from);
    Run { scale: float(factors, 0) * scale, min: -float(factors, 2) * min, codes }
}

/// The third bits of the codes, their lower two bits, 16 scales of 6 bits, their factor.
fn q3k(block: &[u8], run: usize) -> Run {
    let (thirds, packed, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let codes = codes(|column| {
        let column = 16 * run + column;
        two_bits(packed, column) | (thirds[column % 32] >> (column / 32 % 8) & 1) << 2
    });
    let scale = scales[run % 8] >> (run / 8 * 4) & 15 | (scales[8 + run % 4] >> (run / 4 * 2) & 3) << 4;
    Run { scale: float(block, 108) * (f32::from(scale) - 32.0), min: 0.0, codes }
}

/// Factors of scales and least values, 8 pairs of them with 6 bits each, codes of 4 bits.
fn q4k(block: &[u8], run: usize) -> Run {
    let packed = &block[16 + run / 2 * 32..];
    let codes = codes(|column| packed[column] >> (run % 2 * 4) & 15);
    let [scale, min] = scale_and_min(block, run);
    Run { scale, min, codes }
}

/// As [`q4k`], with the fifth bits of the codes before the others.
fn q5k(block: &[u8], run: usize) -> Run {
    let (fifths, packed) = (&block[16..48], &block[48 + run / 2 * 32..]);
    let fifth = |column: usize| (fifths[column] >> run & 1) << 4;
    let codes = codes(|column| packed[column] >> (run % 2 * 4) & 15 | fifth(column));
    let [scale, min] = scale_and_min(block, run);
    Run { scale, min, codes }
}

/// The lower four bits of the codes, their upper two bits, 16 scales of 8 bits, their factor.
fn q6k(block: &[u8], run: usize) -> Run {
    let (packed, upper, scale) = (&block[..128], &block[128..192], block[192 + run] as i8);
    let codes = codes(|column| {
        let column = 16 * (run % 8) + column % 16;
        let lower = packed[run / 8 * 64 + column % 64] >> (column / 64 * 4) & 15;
        let upper = upper[run / 8 * 32 + column % 32] >> (column / 32 * 2) & 3;
        lower | upper << 4
    });
    Run { scale: float(block, 208) * f32::from(scale), min: 0.0, codes }
}

fn scale_and_min(block: &[u8], run: usize) -> [f32; 2] {
    let packed = &block[4..16];
    let [scale, min] = if run < 4 {
        [packed[run] & 63, packed[run + 4] & 63]
    } else {
        let upper = |at: usize| packed[at] >> 6 << 4;
        [packed[run + 4] & 15 | upper(run - 4), packed[run + 4] >> 4 | upper(run)]
    };
    [float(block, 0) * f32::from(scale), -float(block, 2) * f32::from(min)]
}

fn float(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The lower halves of 16 bytes, and then the upper halves.
fn nibbles(bytes: &[u8]) -> [u8; 32] {
    codes(|column| bytes[column % 16] >> (column / 16 * 4) & 15)
}

/// Codes of which the fifth bits are in the first 4 bytes.
fn five_bits(bytes: &[u8]) -> [u8; 32] {
    let lower = nibbles(&bytes[4..]);
    codes(|column| lower[column] | (bytes[column / 8] >> (column % 8) & 1) << 4)
}

/// A code of 2 bits: a byte has columns that are 32 apart. Columns after the last one have that of some other.
fn two_bits(codes: &[u8], column: usize) -> u8 {
    let column = column % 256;
    codes[column / 128 * 32 + column % 32] >> (column / 32 % 4 * 2) & 3
}
