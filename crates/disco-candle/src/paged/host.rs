//! Attention to keys and values in blocks, on the host.
#![allow(unsafe_code)] // A function for instructions that the processor has, which `Level` has found out.

use std::ops::Range;

use rayon::iter::{IntoParallelRefIterator as _, ParallelIterator as _};

use super::vectors::{add, dots, softmax, widen};
use super::{BLOCK, Plan, Scope};
use crate::products::{Element, Kind, Level};

/// Tokens of a run that one task computes.
const TILE: usize = 16;
/// Products of elements that one thread computes sooner than it wakes another one.
const MIN_WORK: usize = 1 << 18;

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
pub(super) struct Elements<'a, T> {
    pub(super) query: &'a [T],
    pub(super) keys: &'a [T],
    pub(super) values: &'a [T],
    /// Elements of a head.
    pub(super) width: usize,
    /// Elements from a block of a kv head to the next block, and to the same block of the next kv head.
    pub(super) block: usize,
    pub(super) head: usize,
}

/// The attention of all tokens, in the order of the queries.
pub(super) fn compute<T: Element>(
    scope: &Scope<'_>,
    level: Level,
    all: &Elements<'_, T>,
    narrow: impl Fn(f32) -> T,
) -> Vec<T> {
    let (&Plan { runs, groups, tokens, heads, .. }, width) = (scope.plan, all.width);
    let tasks = tasks(scope.plan);
    let work: usize = runs.iter().map(|run| run.count * (run.first + run.count)).sum();
    let one = |task: &Task| one(scope, level, all, task);
    let is_small = work * heads * width < MIN_WORK || rayon::current_num_threads() == 1;
    let parts: Vec<_> = if is_small { tasks.iter().map(one).collect() } else { tasks.par_iter().map(one).collect() };
    let mut y = vec![narrow(0.0); heads * tokens * width];
    for (task, part) in tasks.iter().zip(parts) {
        let rows = task.tokens.len() * width;
        for (head, part) in groups[task.kv].clone().zip(part.chunks_exact(rows)) {
            let start = (head * tokens + task.at) * width;
            y[start..start + rows].iter_mut().zip(part).for_each(|(y, x)| *y = narrow(*x));
        }
    }
    y
}

fn tasks(plan: &Plan<'_>) -> Vec<Task> {
    let (mut tasks, mut from) = (Vec::new(), 0);
    for (number, run) in plan.runs.iter().enumerate() {
        for start in (0..run.count).step_by(TILE) {
            let tokens = start..run.count.min(start + TILE);
            let task = |kv| Task { run: number, kv, tokens: tokens.clone(), at: from + start };
            tasks.extend((0..plan.groups.len()).map(task));
        }
        from += run.count;
    }
    tasks
}

#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "there are no kernels"))]
fn one<T: Element>(scope: &Scope<'_>, level: Level, all: &Elements<'_, T>, task: &Task) -> Vec<f32> {
    #[cfg(target_arch = "x86_64")]
    if level != Level::Scalar {
        // SAFETY: `Level` has found AVX2, FMA and F16C, which all levels have.
        return unsafe { one_avx2(scope, all, task) };
    }
    rows::<T, false>(scope, all, task)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn one_avx2<T: Element>(scope: &Scope<'_>, all: &Elements<'_, T>, task: &Task) -> Vec<f32> {
    rows::<T, true>(scope, all, task)
}

/// The attention of a task's queries, `[heads of the group, tokens, width]`.
#[inline(always)]
fn rows<T: Element, const FMA: bool>(scope: &Scope<'_>, all: &Elements<'_, T>, task: &Task) -> Vec<f32> {
    let (run, group, width) = (&scope.plan.runs[task.run], scope.plan.groups[task.kv].clone(), all.width);
    let tile = task.tokens.len();
    let count = group.len() * tile;
    // Row `head * tile + token`.
    let mut query = vec![0.0; count * width];
    for head in 0..group.len() {
        let start = ((group.start + head) * scope.plan.tokens + task.at) * width;
        let rows = &mut query[head * tile * width..(head + 1) * tile * width];
        widen::<T, FMA>(&all.query[start..start + tile * width], rows);
    }
    let position = |row: usize| run.first + task.tokens.start + row % tile;
    let lowest = |row: usize| scope.window.map_or(0, |window| (position(row) + 1).saturating_sub(window));
    // The first token that a row does not attend to.
    let ahead = if scope.looks_ahead { scope.window.unwrap_or(run.count) } else { 1 };
    let end = |row: usize| (position(row) + ahead).min(run.first + run.count);
    let (from, to) = (lowest(0) / BLOCK, (end(tile - 1) - 1) / BLOCK);
    let slots = (to + 1 - from) * BLOCK;
    let mut buffer = vec![0.0; BLOCK * width];
    let mut scores = vec![0.0; count * slots];
    for block in from..to + 1 {
        let keys = block_of::<T, FMA>(all.keys, run.table[block], task.kv, all, &mut buffer);
        let mut row = 0;
        while row < count {
            let scores = &mut scores[row * slots + (block - from) * BLOCK..];
            if row + 1 < count {
                dots::<FMA, 2>(&query[row * width..(row + 2) * width], keys, scores, slots);
            } else {
                dots::<FMA, 1>(&query[row * width..], keys, scores, slots);
            }
            row += 2;
        }
    }
    let first = scope.plan.groups[task.kv].start;
    for row in 0..count {
        let sink = scope.sinks.map(|sinks| sinks.values[first + row / tile]);
        let scores = &mut scores[row * slots..(row + 1) * slots];
        let open = lowest(row) - from * BLOCK..end(row) - from * BLOCK;
        softmax(scores, open, scope.cap.map(|cap| cap as f32), sink);
    }
    let mut y = vec![0.0; count * width];
    for block in from..to + 1 {
        let values = block_of::<T, FMA>(all.values, run.table[block], task.kv, all, &mut buffer);
        // Values of slots that are not written yet may be anything.
        let open = |row: usize| {
            let start = lowest(row).max(block * BLOCK);
            start..end(row).min((block + 1) * BLOCK).max(start)
        };
        let mut row = 0;
        while row < count {
            let own = open(row);
            let place = |row: usize| row * slots + own.start - from * BLOCK..row * slots + own.end - from * BLOCK;
            let values = &values[(own.start - block * BLOCK).min(BLOCK) * width..];
            let (first, rest) = y[row * width..].split_at_mut(width);
            if row + 1 < count && open(row + 1) == own {
                let shares = [&scores[place(row)], &scores[place(row + 1)]];
                add::<FMA, 2>([first, &mut rest[..width]], shares, values);
                row += 2;
            } else {
                add::<FMA, 1>([first], [&scores[place(row)]], values);
                row += 1;
            }
        }
    }
    y
}

/// The rows of a block and a kv head.
#[inline(always)]
fn block_of<'a, T: Element, const FMA: bool>(
    memory: &'a [T],
    block: u32,
    kv: usize,
    all: &Elements<'_, T>,
    buffer: &'a mut [f32],
) -> &'a [f32] {
    let start = block as usize * all.block + kv * all.head;
    let rows = &memory[start..start + BLOCK * all.width];
    match T::KIND {
        Kind::F32 => bytemuck::cast_slice(rows),
        _ => {
            widen::<T, FMA>(rows, buffer);
            buffer
        }
    }
}
