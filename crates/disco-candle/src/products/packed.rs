//! Products with quantised blocks, packed anew for vector code.
//!
//! ```text
//! group     16 rows
//! run       32 or 16 columns with one scale for each row, and maybe one least value (16 bits each)
//! codes     vectors of 64 bytes: columns 4i..4i+4 of row 0, of row 1, … of row 15
//!           8 bits: all columns of a run one after the other
//!           4 bits: the first half of the columns in the lower halves of the bytes, the others in the upper halves
//!           6 bits: the lower 4 bits of all columns like that, then the upper 2 bits of 16 columns in each vector
//! weight    (code - zero)·scale + min, or the number in a table that a code of 4 bits stands for, times scale
//! ```

use std::iter;
use std::ops::Range;

use candle_core::quantized::QTensor;
use candle_core::{DType, Device, Result, Tensor};
use disco_core::shared_memory::FrozenBytes;
use half::f16;
use rayon::iter::{IndexedParallelIterator as _, IntoParallelIterator as _, ParallelIterator as _};

use super::blocks::{BLOCK, Block, Codes, Group, LANES, Layout};
use super::formats::{Format, Numbers, Run};
use super::kernels;
use super::level::Level;
use super::order::Order;
use super::stored::{Elements, Stored};
use super::{OwnMatrix, in_parts};

/// A quantised matrix, packed anew.
#[derive(Debug)]
pub(crate) struct Packed {
    level: Level,
    outputs: usize,
    inputs: usize,
    order: Order,
    layout: Layout,
    zero: i32,
    table: Option<[i8; 16]>,
    codes: Elements<Codes>,
    scales: Elements<[f16; LANES]>,
    /// Empty if the type has no least values.
    mins: Elements<[f16; LANES]>,
}

/// Rows of `x` that are multiplied with a run while it is in registers: their blocks for each 32 columns.
enum Rows<'a> {
    One(&'a [[Block; 1]]),
    Two(Vec<[Block; 2]>),
    Four(Vec<[Block; 4]>),
}

/// The runs of a group while they are packed.
struct Part<'a> {
    codes: &'a mut [Codes],
    scales: &'a mut [[f16; LANES]],
    /// Empty if the type has no least values.
    mins: &'a mut [[f16; LANES]],
}

impl Part<'_> {
    /// Stores the run `column` of a row.
    fn store(&mut self, lane: usize, column: usize, run: &Run, layout: Layout) {
        self.scales[column][lane] = f16::from_f32(run.scale);
        if let Some(mins) = self.mins.get_mut(column) {
            mins[lane] = f16::from_f32(run.min);
        }
        let half = layout.columns / 8;
        let word = |number: usize| u32::from_le_bytes(run.codes.as_chunks::<4>().0[number]);
        let lower = |number: usize| word(number) & 0x0f0f_0f0f;
        let upper = |number: usize| word(number) >> 4 & 0x0303_0303;
        let vectors = layout.vectors();
        for (vector, codes) in self.codes[column * vectors..][..vectors].iter_mut().enumerate() {
            let codes = &mut codes.0.as_chunks_mut::<4>().0[lane];
            *codes = u32::to_le_bytes(match vector.checked_sub(half) {
                _ if layout.bits == 8 => word(vector),
                None => lower(vector) | lower(half + vector) << 4,
                Some(four) => (0..4).fold(0, |all, place| all | upper(4 * four + place) << (2 * place)),
            });
        }
    }
}

impl Packed {
    /// Packs the columns `columns` of a matrix on the CPU, which may begin and end inside of its blocks. Returns `None` if
    /// candle has to multiply it: other types, no inputs, columns that cut the blocks of `x`, scales that are not finite in
    /// 16 bits.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn new(level: Level, weight: &QTensor, columns: Range<usize>) -> Result<Option<Self>> {
        let (outputs, all) = weight.shape().dims2()?;
        let format = Format::of(weight.dtype()).filter(|_| weight.device().is_cpu());
        let Some(format) = format else { return Ok(None) };
        Ok(Self::pack(level, &format, &weight.data()?, [outputs, all], columns))
    }

    /// As [`new`](Self::new), for the bytes of runs of `run` columns, see [`Runs`](crate::Runs).
    pub(crate) fn of_runs(
        level: Level,
        data: &[u8],
        (run, numbers): (usize, Numbers),
        shape: [usize; 2],
        columns: Range<usize>,
    ) -> Option<Self> {
        Self::pack(level, &Format::of_runs(run, numbers), data, shape, columns)
    }

    fn pack(
        level: Level,
        format: &Format,
        data: &[u8],
        [outputs, all]: [usize; 2],
        columns: Range<usize>,
    ) -> Option<Self> {
        let inputs = columns.len();
        let is_part =
            inputs > 0 && columns.end <= all && columns.start.is_multiple_of(BLOCK) && inputs.is_multiple_of(BLOCK);
        if !is_part {
            return None;
        }
        let per_row = inputs / format.columns;
        let runs = outputs.div_ceil(LANES) * per_row;
        let layout = Layout { columns: format.columns, bits: format.bits };
        let mut all_codes = vec![Codes([0; 4 * LANES]); runs * layout.vectors()];
        let mut all_scales = vec![[f16::ZERO; LANES]; runs];
        let mut all_mins = vec![[f16::ZERO; LANES]; if format.has_mins { runs } else { 0 }];
        let code_of = format.table.map(|table| {
            let mut codes = [0; 256];
            (0..).zip(table).for_each(|(code, number)| codes[usize::from(*number as u8)] = code);
            codes
        });
        let codes = all_codes.chunks_mut(per_row * layout.vectors());
        let scales = all_scales.chunks_mut(per_row);
        let mins = all_mins.chunks_mut(per_row).map(Some).chain(iter::repeat_with(|| None));
        let parts = codes.zip(scales).zip(mins).map(|((codes, scales), mins)| Part {
            codes,
            scales,
            mins: mins.unwrap_or_default(),
        });
        let parts: Vec<_> = parts.collect();
        parts.into_par_iter().enumerate().for_each(|(number, mut part)| {
            for lane in 0..LANES.min(outputs - number * LANES) {
                let first = ((number * LANES + lane) * all + columns.start) / format.columns;
                for column in 0..per_row {
                    let run = first + column;
                    let block = &data[run / format.runs * format.bytes..][..format.bytes];
                    let mut run = (format.run)(block, run % format.runs);
                    if let Some(code_of) = &code_of {
                        run.codes.iter_mut().for_each(|number| *number = code_of[usize::from(*number)]);
                    }
                    part.store(lane, column, &run, layout);
                }
            }
        });
        let finite = |numbers: &[[f16; LANES]]| numbers.as_flattened().iter().all(|number| number.is_finite());
        (finite(&all_scales) && finite(&all_mins)).then(|| Self {
            level,
            outputs,
            inputs,
            order: Order::new(inputs),
            layout,
            zero: format.zero,
            table: format.table.copied(),
            codes: Elements::Own(all_codes),
            scales: Elements::Own(all_scales),
            mins: Elements::Own(all_mins),
        })
    }

    /// A matrix of these [`parts`](OwnMatrix::parts).
    pub(super) fn of_stored(level: Level, stored: &Stored, parts: Vec<FrozenBytes>) -> Option<Self> {
        let &Stored::Packed { outputs, inputs, columns, bits, zero, table } = stored else { return None };
        let layout = Layout { columns, bits };
        let runs = outputs.div_ceil(LANES) * inputs.checked_div(columns)?;
        let mut parts = parts.into_iter();
        let (codes, scales, mins) = (parts.next(), parts.next(), parts.next());
        let has_mins = mins.as_ref().is_some_and(|mins| !mins.is_empty());
        Some(Self {
            level,
            outputs,
            inputs,
            order: Order::new(inputs),
            layout,
            zero,
            table,
            codes: Elements::stored(codes, runs * layout.vectors())?,
            scales: Elements::stored(scales, runs)?,
            mins: Elements::stored(mins, if has_mins { runs } else { 0 })?,
        })
    }

    /// The products for some outputs, from a multiple of [`LANES`] on: all for the first row of `x`, then all for the
    /// next one.
    fn part<const BITS: usize, const WORDS: usize, const RUNS: usize>(
        &self,
        outputs: Range<usize>,
        groups: &[Rows<'_>],
        rows: usize,
    ) -> Vec<f32> {
        let mut y = vec![0.0; rows * outputs.len()];
        for first in outputs.clone().step_by(LANES) {
            let group = self.group(first / LANES);
            let count = LANES.min(outputs.end - first);
            let mut to = y[first - outputs.start..].chunks_mut(outputs.len());
            let mut store = |all: &[[f32; LANES]]| {
                for (sums, to) in all.iter().zip(to.by_ref()) {
                    to[..count].copy_from_slice(&sums[..count]);
                }
            };
            for rows in groups {
                match rows {
                    Rows::Four(x) => store(&kernels::packed::<BITS, WORDS, RUNS, 4>(self.level, &group, x)),
                    Rows::Two(x) => store(&kernels::packed::<BITS, WORDS, RUNS, 2>(self.level, &group, x)),
                    Rows::One(x) => store(&kernels::packed::<BITS, WORDS, RUNS, 1>(self.level, &group, x)),
                }
            }
        }
        y
    }

    /// The weights of a row.
    pub(super) fn row(&self, row: usize) -> Vec<f32> {
        let (group, lane) = (self.group(row / LANES), row % LANES);
        let mut weights = Vec::with_capacity(self.inputs);
        for (run, scales) in group.scales.iter().enumerate() {
            let (scale, min) = (scales[lane].to_f32(), group.mins.get(run).map_or(0.0, |mins| mins[lane].to_f32()));
            weights.extend((0..self.layout.columns).map(|column| group.number(run, lane, column) as f32 * scale + min));
        }
        weights
    }

    fn group(&self, index: usize) -> Group<'_> {
        let per_row = self.inputs / self.layout.columns;
        let range = index * per_row..(index + 1) * per_row;
        let vectors = self.layout.vectors();
        Group {
            layout: self.layout,
            order: &self.order,
            codes: &self.codes[range.start * vectors..range.end * vectors],
            mins: self.mins.get(range.clone()).unwrap_or_default(),
            scales: &self.scales[range],
            zero: self.zero,
            table: self.table.as_ref(),
        }
    }
}

impl OwnMatrix for Packed {
    fn outputs(&self) -> usize {
        self.outputs
    }

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.codes[..]) + size_of_val(&self.scales[..]) + size_of_val(&self.mins[..])
    }

    fn set_order(&mut self, order: Order) {
        self.order = order;
    }

    fn parts(&self) -> (Stored, Vec<&[u8]>) {
        let &Self { outputs, inputs, layout: Layout { columns, bits }, zero, table, .. } = self;
        let stored = Stored::Packed { outputs, inputs, columns, bits, zero, table };
        let (codes, scales, mins) = (&*self.codes, &*self.scales, &*self.mins);
        (stored, vec![bytemuck::cast_slice(codes), bytemuck::cast_slice(scales), bytemuck::cast_slice(mins)])
    }

    fn dtype(&self) -> DType {
        DType::F32
    }

    fn rows(&self, numbers: &[usize]) -> Result<Tensor> {
        let weights = numbers.iter().flat_map(|row| self.row(*row)).collect();
        Tensor::from_vec(weights, (numbers.len(), self.inputs), &Device::Cpu)
    }

    /// The rows are quantised first.
    fn product(&self, x: &[f32]) -> Vec<f32> {
        let x = kernels::quantized(self.level, x);
        let rows: Vec<_> = x.chunks_exact(self.inputs / BLOCK).collect();
        if rows.is_empty() {
            return Vec::new();
        }
        let groups = grouped(&rows);
        let Layout { columns, bits } = self.layout;
        in_parts(rows.len(), self.outputs, self.inputs, LANES, |outputs| match (bits, columns) {
            (4, 16) => self.part::<4, 4, 2>(outputs, &groups, rows.len()),
            (4, _) => self.part::<4, 8, 1>(outputs, &groups, rows.len()),
            (6, 16) => self.part::<6, 4, 2>(outputs, &groups, rows.len()),
            (6, _) => self.part::<6, 8, 1>(outputs, &groups, rows.len()),
            (_, 16) => self.part::<8, 4, 2>(outputs, &groups, rows.len()),
            (_, _) => self.part::<8, 8, 1>(outputs, &groups, rows.len()),
        })
    }
}

/// The rows in groups.
fn grouped<'a>(rows: &[&'a [Block]]) -> Vec<Rows<'a>> {
    fn by_columns<const R: usize>(rows: &[&[Block]; R]) -> Vec<[Block; R]> {
        let mut by_columns = vec![[Block::EMPTY; R]; rows[0].len()];
        for (number, row) in rows.iter().enumerate() {
            for (to, block) in by_columns.iter_mut().zip(*row) {
                to[number] = *block;
            }
        }
        by_columns
    }
    let (fours, rest) = rows.as_chunks::<4>();
    let (twos, ones) = rest.as_chunks::<2>();
    let fours = fours.iter().map(|rows| Rows::Four(by_columns(rows)));
    let twos = twos.iter().map(|rows| Rows::Two(by_columns(rows)));
    fours.chain(twos).chain(ones.iter().map(|row| Rows::One(row.as_chunks().0))).collect()
}
