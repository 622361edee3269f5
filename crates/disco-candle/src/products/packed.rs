//! Products with quantised blocks, packed anew for vector code.
//!
//! ```text
//! group     16 rows
//! block     32 columns, for each row a scale and maybe a least value (16 bits each)
//! codes     vectors of 64 bytes: columns 4i..4i+4 of row 0, of row 1, … of row 15
//!           8 bits: 8 vectors a block
//!           4 bits: 4 vectors a block, with the columns 4i+16.. in the upper halves of the bytes
//! weight    (code - zero)·scale + min
//! ```

use std::array::from_fn;
use std::ops::Range;

use candle_core::Result;
use candle_core::quantized::{GgmlDType, QTensor};
use half::f16;

use super::in_parts;
use super::kernels::{self, Level};

/// Rows of a group.
pub(super) const LANES: usize = 16;
/// Columns of a block.
const BLOCK: usize = 32;
/// Rows of `x` that are multiplied with a block while it is in registers.
const ROWS: usize = 4;

/// A quantised matrix, packed anew.
#[derive(Debug)]
pub(crate) struct Packed {
    level: Level,
    outputs: usize,
    inputs: usize,
    has_four_bits: bool,
    zero: i32,
    codes: Vec<Codes>,
    scales: Vec<[f16; LANES]>,
    /// Empty if the type has no least values.
    mins: Vec<[f16; LANES]>,
}

/// Codes of 16 rows.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Codes(pub(super) [u8; 4 * LANES]);

/// The blocks of 16 rows.
pub(super) struct Group<'a> {
    pub(super) codes: &'a [Codes],
    pub(super) scales: &'a [[f16; LANES]],
    pub(super) mins: &'a [[f16; LANES]],
    pub(super) zero: i32,
}

/// A quantised block of `x`.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// Numbers of 8 bits, four in each word.
    pub(super) words: [i32; BLOCK / 4],
    pub(super) scale: f32,
    /// Sum of the numbers.
    pub(super) sum: i32,
}

impl Packed {
    /// Packs a matrix on the CPU. Returns `None` for types of blocks that candle multiplies at least as fast.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn new(level: Level, weight: &QTensor) -> Result<Option<Self>> {
        let Some(format) = Format::of(weight.dtype()).filter(|_| weight.device().is_cpu()) else { return Ok(None) };
        let (outputs, inputs) = weight.shape().dims2()?;
        let (groups, blocks) = (outputs.div_ceil(LANES), inputs / BLOCK);
        let per_block = if format.has_four_bits { 4 } else { 8 };
        let mut packed = Self {
            level,
            outputs,
            inputs,
            has_four_bits: format.has_four_bits,
            zero: format.zero,
            codes: vec![Codes([0; 4 * LANES]); groups * blocks * per_block],
            scales: vec![[f16::ZERO; LANES]; groups * blocks],
            mins: vec![[f16::ZERO; LANES]; if format.has_mins { groups * blocks } else { 0 }],
        };
        for (index, bytes) in weight.data()?.chunks_exact(weight.dtype().type_size()).enumerate() {
            let (row, column) = (index / blocks, index % blocks);
            let (block, lane) = (row / LANES * blocks + column, row % LANES);
            let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]);
            packed.scales[block][lane] = half(0);
            if let Some(mins) = packed.mins.get_mut(block) {
                mins[lane] = half(2);
            }
            let codes = (format.codes)(bytes);
            for (column, code) in codes.into_iter().enumerate() {
                let (column, shift) = if format.has_four_bits { (column % 16, column / 16 * 4) } else { (column, 0) };
                packed.codes[block * per_block + column / 4].0[lane * 4 + column % 4] |= code << shift;
            }
        }
        Ok(Some(packed))
    }

    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.codes[..]) + size_of_val(&self.scales[..]) + size_of_val(&self.mins[..])
    }

    /// `x·Wᵀ` for rows of [`inputs`](Self::inputs) elements each, which are quantised first.
    pub(crate) fn product(&self, x: &[f32]) -> Vec<f32> {
        let x: Vec<_> = x.as_chunks().0.iter().map(Block::quantize).collect();
        let rows: Vec<_> = x.chunks_exact(self.inputs / BLOCK).collect();
        in_parts(rows.len(), self.outputs, self.inputs, |outputs| {
            if self.has_four_bits { self.part::<true>(outputs, &rows) } else { self.part::<false>(outputs, &rows) }
        })
    }

    /// The products for some outputs, from a multiple of [`LANES`] on: all for the first row of `x`, then all for the
    /// next one.
    fn part<const FOUR_BITS: bool>(&self, outputs: Range<usize>, rows: &[&[Block]]) -> Vec<f32> {
        let mut y = vec![0.0; rows.len() * outputs.len()];
        for first in outputs.clone().step_by(LANES) {
            let group = self.group(first / LANES);
            let mut store = |row: usize, sums: &[f32; LANES]| {
                let count = LANES.min(outputs.end - first);
                let at = row * outputs.len() + first - outputs.start;
                y[at..at + count].copy_from_slice(&sums[..count]);
            };
            let (many, few) = rows.as_chunks::<ROWS>();
            for (chunk, rows) in many.iter().enumerate() {
                let sums = kernels::packed::<FOUR_BITS, ROWS>(self.level, &group, *rows);
                sums.iter().enumerate().for_each(|(row, sums)| store(chunk * ROWS + row, sums));
            }
            for (row, x) in few.iter().enumerate() {
                let [sums] = kernels::packed::<FOUR_BITS, 1>(self.level, &group, [x]);
                store(many.len() * ROWS + row, &sums);
            }
        }
        y
    }

    fn group(&self, index: usize) -> Group<'_> {
        let blocks = self.inputs / BLOCK;
        let range = index * blocks..(index + 1) * blocks;
        let per_block = if self.has_four_bits { 4 } else { 8 };
        Group {
            codes: &self.codes[range.start * per_block..range.end * per_block],
            mins: self.mins.get(range.clone()).unwrap_or_default(),
            scales: &self.scales[range],
            zero: self.zero,
        }
    }
}

impl Block {
    /// The nearest numbers of 8 bits. An infinite or NaN element makes the scale infinite or NaN.
    fn quantize(x: &[f32; BLOCK]) -> Self {
        // Bits of floats without signs are in the order of the floats; NaN comes last.
        let largest = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
        let scale = f32::from_bits(largest) / 127.0;
        let factor = if scale == 0.0 { 0.0 } else { scale.recip() };
        // Adding 1.5·2²³ leaves the nearest whole number in the lower bits.
        let round = |x: f32| (x * factor + 12_582_912.0).to_bits() as i8;
        let numbers = x.map(round);
        Self { sum: numbers.iter().map(|number| i32::from(*number)).sum(), words: bytemuck::cast(numbers), scale }
    }
}

/// How the blocks of a type become codes.
struct Format {
    has_four_bits: bool,
    has_mins: bool,
    zero: i32,
    /// The codes of a block that starts with a scale, and with a least value if the type has them.
    codes: fn(&[u8]) -> [u8; BLOCK],
}

impl Format {
    fn of(dtype: GgmlDType) -> Option<Self> {
        let four_bits = |has_mins, zero, codes| Self { has_four_bits: true, has_mins, zero, codes };
        let eight_bits = |has_mins, codes| Self { has_four_bits: false, has_mins, zero: 128, codes };
        Some(match dtype {
            GgmlDType::Q4_0 => four_bits(false, 8, |bytes| nibbles(&bytes[2..])),
            GgmlDType::Q4_1 => four_bits(true, 0, |bytes| nibbles(&bytes[4..])),
            GgmlDType::Q5_0 => eight_bits(false, |bytes| five_bits(&bytes[2..], 16)),
            GgmlDType::Q5_1 => eight_bits(true, |bytes| five_bits(&bytes[4..], 0)),
            GgmlDType::Q8_0 => eight_bits(false, |bytes| from_fn(|column| bytes[2 + column] ^ 0x80)),
            _ => return None,
        })
    }
}

/// The lower halves of 16 bytes, and then the upper halves.
fn nibbles(bytes: &[u8]) -> [u8; BLOCK] {
    from_fn(|column| bytes[column % 16] >> (column / 16 * 4) & 15)
}

/// Codes of which the fifth bits are in the first 4 bytes, minus `zero`, as codes of 8 bits.
fn five_bits(bytes: &[u8], zero: u8) -> [u8; BLOCK] {
    let lower = nibbles(&bytes[4..]);
    from_fn(|column| 128 - zero + (lower[column] | (bytes[column / 8] >> (column % 8) & 1) << 4))
}
