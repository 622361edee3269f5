//! The operands of the kernels: codes of 16 rows, and blocks of `x`.

use half::f16;

use super::order::Order;

/// Rows of a group.
pub(super) const LANES: usize = 16;
/// Numbers of a block of `x`.
pub(super) const BLOCK: usize = 32;

/// Codes of 16 rows.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Codes(pub(super) [u8; 4 * LANES]);

/// The layout of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Columns with one scale.
    pub(super) columns: usize,
    /// Of a code: 4, 6 or 8.
    pub(super) bits: usize,
}

impl Layout {
    /// Number of vectors with the codes of a run.
    pub(super) fn vectors(self) -> usize {
        self.columns * self.bits / 32
    }

    /// A code of a run.
    fn code(self, codes: &[Codes], lane: usize, column: usize) -> u8 {
        let (half, word) = (self.columns / 8, column / 4);
        let byte = |vector: usize| codes[vector].0[4 * lane + column % 4];
        if self.bits == 8 {
            return byte(word);
        }
        let lower = if word < half { byte(word) & 15 } else { byte(word - half) >> 4 };
        if self.bits == 4 { lower } else { lower | (byte(half + word / 4) >> (word % 4 * 2) & 3) << 4 }
    }
}

/// The runs of 16 rows.
pub(super) struct Group<'a> {
    pub(super) layout: Layout,
    pub(super) order: &'a Order,
    pub(super) codes: &'a [Codes],
    pub(super) scales: &'a [[f16; LANES]],
    pub(super) mins: &'a [[f16; LANES]],
    pub(super) zero: i32,
    /// The numbers that codes of 4 bits stand for, if they are not those of the codes; then `zero` is 128.
    pub(super) table: Option<&'a [i8; 16]>,
}

impl Group<'_> {
    /// The number that a code stands for.
    pub(super) fn number(&self, run: usize, lane: usize, column: usize) -> i32 {
        let vectors = self.layout.vectors();
        let code = self.layout.code(&self.codes[run * vectors..][..vectors], lane, column);
        match self.table {
            Some(table) => table[usize::from(code)].into(),
            None => i32::from(code) - self.zero,
        }
    }
}

/// Numbers of a row of `x`, quantised.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// Numbers of 8 bits, four in each word.
    pub(super) words: [i32; BLOCK / 4],
    pub(super) scale: f32,
    /// Sums of the first and of the second half of the numbers.
    pub(super) sums: [i32; 2],
}

impl Block {
    pub(super) const EMPTY: Self = Self { words: [0; BLOCK / 4], scale: 0.0, sums: [0; 2] };

    /// Adding 1.5·2²³ leaves the nearest whole number in the lower bits.
    pub(super) const ROUND: f32 = 12_582_912.0;

    /// The nearest numbers of 8 bits. An infinite or NaN element makes the scale infinite or NaN.
    pub(super) fn quantize(x: &[f32; BLOCK]) -> Self {
        // Bits of floats without signs are in the order of the floats; NaN comes last.
        let largest = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
        let (scale, factor) = Self::scale(largest);
        let (mut numbers, mut sums) = ([0; BLOCK], [0; 2]);
        for index in 0..BLOCK {
            numbers[index] = (x[index] * factor + Self::ROUND).to_bits() as i8;
            sums[index / (BLOCK / 2)] += i32::from(numbers[index]);
        }
        Self { words: bytemuck::cast(numbers), scale, sums }
    }

    /// The words of a run in its block, their sum and their scale.
    #[inline]
    pub(super) fn part<const WORDS: usize>(&self, run: usize) -> (&[i32], i32, f32) {
        if WORDS == 8 {
            (&self.words, self.sums[0] + self.sums[1], self.scale)
        } else {
            (&self.words[run % 2 * WORDS..][..WORDS], self.sums[run % 2], self.scale)
        }
    }

    /// The scale of a block, and its inverse, for the bits of its largest element without sign.
    #[inline]
    pub(super) fn scale(largest: u32) -> (f32, f32) {
        let scale = f32::from_bits(largest) / 127.0;
        (scale, if scale == 0.0 { 0.0 } else { scale.recip() })
    }
}
