//! Attention to keys and values in blocks, on the host.
#![allow(unsafe_code)] // A function for instructions that the processor has, which `Level::detect` has found out.

mod kernels;

use std::ops::Range;

use candle_core::{CpuStorage, CustomOp3, Error, Layout, Result, Shape, Tensor};
use half::{bf16, f16};
use rayon::iter::{IntoParallelRefIterator as _, ParallelIterator as _};

use crate::products::{Element, Kind, Level};

use self::kernels::{add, dots, softmax, widen};

/// Number of tokens of a block.
pub const BLOCK: usize = 16;
/// Tokens of a run that one task computes.
const TILE: usize = 16;
/// Products of elements that one thread computes sooner than it wakes another one.
const MIN_WORK: usize = 1 << 18;

/// Consecutive tokens of a sequence, whose keys and values are in blocks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// The position of the first one in its sequence.
    pub first: usize,
    /// Number of tokens.
    pub count: usize,
    /// The blocks of the sequence, these tokens included.
    pub table: Vec<u32>,
}

impl Run {
    /// `count` tokens from position `first` on of the sequence that has these blocks.
    pub fn new(first: usize, count: usize, table: Vec<u32>) -> Self {
        Self { first, count, table }
    }
}

/// What tokens attend to.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Scope<'a> {
    /// The sequences, whose tokens follow each other in the queries.
    pub runs: &'a [Run],
    /// For each kv head, the query heads that share it.
    pub groups: &'a [Range<usize>],
    /// The number of tokens that a token attends to, itself included.
    pub window: Option<usize>,
    /// Scores are between this and its negative.
    pub cap: Option<f64>,
}

impl<'a> Scope<'a> {
    /// All earlier tokens of the same sequence.
    pub fn new(runs: &'a [Run], groups: &'a [Range<usize>]) -> Self {
        Self { runs, groups, window: None, cap: None }
    }
}

/// The attention of scaled queries `[1, heads, tokens, head_dim]` to keys and values `[blocks, kv heads, 16, head_dim]`: of the
/// shape of the queries. Sums have 32 bits. Tables must have the blocks of all their tokens.
///
/// # Errors
/// The tensors are not contiguous, not on the host, or of different types or other types than f32, f16 and bf16.
pub fn attention(query: &Tensor, keys: &Tensor, values: &Tensor, scope: Scope<'_>) -> Result<Tensor> {
    query.apply_op3_no_bwd(keys, values, &scope)
}

impl CustomOp3 for Scope<'_> {
    fn name(&self) -> &'static str {
        "attention-to-blocks"
    }

    fn cpu_fwd(
        &self,
        query: &CpuStorage,
        query_layout: &Layout,
        keys: &CpuStorage,
        keys_layout: &Layout,
        values: &CpuStorage,
        values_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let layouts = [query_layout, keys_layout, values_layout];
        let computed = match (query, keys, values) {
            (CpuStorage::F32(query), CpuStorage::F32(keys), CpuStorage::F32(values)) => {
                CpuStorage::F32(self.compute([query, keys, values], layouts, |x| x)?)
            }
            (CpuStorage::F16(query), CpuStorage::F16(keys), CpuStorage::F16(values)) => {
                CpuStorage::F16(self.compute([query, keys, values], layouts, f16::from_f32)?)
            }
            (CpuStorage::BF16(query), CpuStorage::BF16(keys), CpuStorage::BF16(values)) => {
                CpuStorage::BF16(self.compute([query, keys, values], layouts, bf16::from_f32)?)
            }
            _ => {
                return Err(Error::Msg(
                    "attention to blocks needs queries, keys and values of one type of floats".into(),
                ));
            }
        };
        Ok((computed, query_layout.shape().clone()))
    }
}

/// The part of one thread: the queries of a kv head for some tokens of a run.
struct Task {
    run: usize,
    kv: usize,
    /// Tokens, from the first one of the run.
    tokens: Range<usize>,
    /// The place of the first one among all queries.
    at: usize,
}

/// Keys and values of a layer, and queries.
struct Elements<'a, T> {
    query: &'a [T],
    keys: &'a [T],
    values: &'a [T],
    /// All queries of a head.
    tokens: usize,
    kv_heads: usize,
    width: usize,
}

impl Scope<'_> {
    fn compute<T: Element>(
        &self,
        elements: [&[T]; 3],
        layouts: [&Layout; 3],
        narrow: impl Fn(f32) -> T,
    ) -> Result<Vec<T>> {
        let slice = |index: usize| {
            let (start, end) = layouts[index]
                .contiguous_offsets()
                .ok_or_else(|| Error::Msg("attention to blocks needs contiguous elements".into()))?;
            Ok::<_, Error>(&elements[index][start..end])
        };
        let ((_, heads, tokens, width), (_, kv_heads, _, _)) =
            (layouts[0].shape().dims4()?, layouts[1].shape().dims4()?);
        let all = Elements { query: slice(0)?, keys: slice(1)?, values: slice(2)?, tokens, kv_heads, width };
        let tasks = self.tasks();
        let work: usize = self.runs.iter().map(|run| run.count * (run.first + run.count)).sum();
        let level = Level::detect();
        let one = |task: &Task| self.one(level, &all, task);
        let is_small = work * heads * width < MIN_WORK || rayon::current_num_threads() == 1;
        let parts: Vec<_> =
            if is_small { tasks.iter().map(one).collect() } else { tasks.par_iter().map(one).collect() };
        let mut y = vec![narrow(0.0); heads * tokens * width];
        for (task, part) in tasks.iter().zip(parts) {
            let rows = task.tokens.len() * width;
            for (head, part) in self.groups[task.kv].clone().zip(part.chunks_exact(rows)) {
                let start = (head * tokens + task.at) * width;
                y[start..start + rows].iter_mut().zip(part).for_each(|(y, x)| *y = narrow(*x));
            }
        }
        Ok(y)
    }

    fn tasks(&self) -> Vec<Task> {
        let (mut tasks, mut from) = (Vec::new(), 0);
        for (number, run) in self.runs.iter().enumerate() {
            for start in (0..run.count).step_by(TILE) {
                let tokens = start..run.count.min(start + TILE);
                let task = |kv| Task { run: number, kv, tokens: tokens.clone(), at: from + start };
                tasks.extend((0..self.groups.len()).map(task));
            }
            from += run.count;
        }
        tasks
    }

    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "there are no kernels"))]
    fn one<T: Element>(&self, level: Option<Level>, all: &Elements<'_, T>, task: &Task) -> Vec<f32> {
        #[cfg(target_arch = "x86_64")]
        if level.is_some() {
            // SAFETY: `Level::detect` has found AVX2, FMA and F16C, which all levels have.
            return unsafe { one_avx2(self, all, task) };
        }
        rows::<T, false>(self, all, task)
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn one_avx2<T: Element>(scope: &Scope<'_>, all: &Elements<'_, T>, task: &Task) -> Vec<f32> {
    rows::<T, true>(scope, all, task)
}

/// The attention of a task's queries, `[heads of the group, tokens, width]`.
///
/// It loops over indexes: see the kernels of products.
#[inline(always)]
fn rows<T: Element, const FMA: bool>(scope: &Scope<'_>, all: &Elements<'_, T>, task: &Task) -> Vec<f32> {
    let (run, group, width) = (&scope.runs[task.run], scope.groups[task.kv].clone(), all.width);
    let tile = task.tokens.len();
    let count = group.len() * tile;
    // Row `head * tile + token`.
    let mut query = vec![0.0; count * width];
    for (head, rows) in group.zip(query.chunks_exact_mut(tile * width)) {
        let start = (head * all.tokens + task.at) * width;
        widen(&all.query[start..start + tile * width], rows);
    }
    let position = |row: usize| run.first + task.tokens.start + row % tile;
    let lowest = |row: usize| scope.window.map_or(0, |window| (position(row) + 1).saturating_sub(window));
    let (from, to) = (lowest(0) / BLOCK, position(tile - 1) / BLOCK);
    let slots = (to + 1 - from) * BLOCK;
    let mut buffer = vec![0.0; BLOCK * width];
    let mut scores = vec![0.0; count * slots];
    for block in from..=to {
        let keys = block_of(all.keys, run.table[block], task.kv, all, &mut buffer);
        for row in 0..count {
            let query = &query[row * width..(row + 1) * width];
            let scores = &mut scores[row * slots + (block - from) * BLOCK..][..BLOCK];
            dots::<FMA>(query, keys, scores);
        }
    }
    for row in 0..count {
        let scores = &mut scores[row * slots..(row + 1) * slots];
        let open = lowest(row) - from * BLOCK..position(row) + 1 - from * BLOCK;
        softmax(scores, open, scope.cap.map(|cap| cap as f32));
    }
    let mut y = vec![0.0; count * width];
    for block in from..=to {
        let values = block_of(all.values, run.table[block], task.kv, all, &mut buffer);
        for row in 0..count {
            // Values of slots that are not written yet may be anything.
            let start = lowest(row).max(block * BLOCK);
            let end = (position(row) + 1).min((block + 1) * BLOCK);
            if start < end {
                let shares = &scores[row * slots..][start - from * BLOCK..end - from * BLOCK];
                add::<FMA>(&mut y[row * width..(row + 1) * width], shares, &values[(start - block * BLOCK) * width..]);
            }
        }
    }
    y
}

/// The rows of a block and a kv head.
#[inline(always)]
fn block_of<'a, T: Element>(
    memory: &'a [T],
    block: u32,
    kv: usize,
    all: &Elements<'_, T>,
    buffer: &'a mut [f32],
) -> &'a [f32] {
    let len = BLOCK * all.width;
    let start = (block as usize * all.kv_heads + kv) * len;
    let rows = &memory[start..start + len];
    match T::KIND {
        Kind::F32 => bytemuck::cast_slice(rows),
        _ => {
            widen(rows, buffer);
            buffer
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mix = |index: u32| index.wrapping_mul(2_654_435_761).wrapping_add(seed).wrapping_mul(2_246_822_519) >> 8;
        (0..count as u32).map(|index| mix(index) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    #[test]
    fn attention_is_that_of_loops_in_f64() {
        let runs = [Run::new(0, 37, vec![3, 0, 5]), Run::new(20, 1, vec![6, 1]), Run::new(15, 3, vec![2, 4])];
        let groups = [0..2, 2..5];
        let (blocks, kv_heads, heads, tokens) = (7, 2, 5, 41);
        for width in [4, 24, 64] {
            for (window, cap) in [(None, None), (Some(7), None), (Some(17), Some(0.8))] {
                let [query, keys, values] = [
                    numbers(heads * tokens * width, 1),
                    numbers(blocks * kv_heads * BLOCK * width, 2),
                    numbers(blocks * kv_heads * BLOCK * width, 3),
                ];
                let scope = Scope { window, cap, ..Scope::new(&runs, &groups) };
                let all = Elements { query: &query, keys: &keys, values: &values, tokens, kv_heads, width };
                let of = |memory: &[f32], run: &Run, kv: usize, position: usize, index: usize| {
                    let block = run.table[position / BLOCK] as usize;
                    f64::from(memory[((block * kv_heads + kv) * BLOCK + position % BLOCK) * width + index])
                };
                for task in scope.tasks() {
                    let (run, levels) = (&runs[task.run], [None, Level::detect()]);
                    let found = levels.map(|level| scope.one(level, &all, &task));
                    let mut rows = 0..;
                    for head in groups[task.kv].clone() {
                        for token in task.tokens.clone() {
                            let row = rows.next().unwrap();
                            let own = run.first + token;
                            let open = window.map_or(0, |window| (own + 1).saturating_sub(window))..own + 1;
                            let at = (head * tokens + task.at + token - task.tokens.start) * width;
                            let score = |position| -> f64 {
                                let products = (0..width).map(|index| {
                                    f64::from(query[at + index]) * of(&keys, run, task.kv, position, index)
                                });
                                let score: f64 = products.sum();
                                cap.map_or(score, |cap| (score / cap).tanh() * cap).exp()
                            };
                            let total: f64 = open.clone().map(score).sum();
                            for index in 0..width {
                                let shares = open.clone().map(|at| score(at) * of(&values, run, task.kv, at, index));
                                let expected = shares.sum::<f64>() / total;
                                for found in &found {
                                    let found = f64::from(found[row * width + index]);
                                    assert!((found - expected).abs() < 2e-5, "{width} {window:?}: {found} {expected}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
