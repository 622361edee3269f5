//! The loop of a reduction, for one dtype on one machine.

use std::{array, ptr};

use disco_core::Reduction;

use super::Fold;
use super::machine::Machine;
use super::number::{Mean, Number, Wide};

/// Runs a reduction of elements of type `T`, `L` at a time. False if there is no such reduction.
///
/// # Safety
/// As [`super::reduce`]; `L` elements are a multiple of [`Machine::STREAM`] bytes.
#[inline(always)]
pub(super) unsafe fn run<M: Machine, T: Number, const L: usize>(fold: Fold<'_>) -> bool {
    let ranks = fold.inputs.len();
    let (widen, narrow) = (T::widen::<M, L>, T::narrow::<M, L>);
    match fold.reduction {
        // SAFETY: the caller's promise.
        Reduction::Sum => unsafe { each::<M, T, T::Wide, L>(fold, widen, Wide::sum, narrow) },
        // SAFETY: the caller's promise.
        Reduction::Prod => unsafe { each::<M, T, T::Wide, L>(fold, widen, Wide::prod, narrow) },
        // SAFETY: the caller's promise.
        Reduction::Min => unsafe { each::<M, T, T::Wide, L>(fold, widen, Wide::min, narrow) },
        // SAFETY: the caller's promise.
        Reduction::Max => unsafe { each::<M, T, T::Wide, L>(fold, widen, Wide::max, narrow) },
        Reduction::Avg => {
            let round = |sums: [T::Exact; L]| T::round::<M, L>(array::from_fn(|i| sums[i].over(ranks)));
            // SAFETY: the caller's promise.
            unsafe { each::<M, T, T::Exact, L>(fold, T::exact::<M, L>, Wide::sum, round) }
        }
        _ => return false,
    }
    true
}

/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn each<M: Machine, T: Number, W: Copy, const L: usize>(
    fold: Fold<'_>,
    widen: impl Fn([T; L]) -> [W; L],
    join: impl Fn(W, W) -> W,
    narrow: impl Fn([W; L]) -> [T; L],
) {
    let Fold { inputs, outputs, first, count, .. } = fold;
    let aligned = |output: &*mut u8| {
        let output = output.cast::<T>().wrapping_add(first);
        M::STREAM > 0 && (output as usize).is_multiple_of(M::STREAM)
    };
    let stream = fold.stream && outputs.iter().all(aligned);
    let whole = first..first + count - count % L;
    let block = |inputs: &[*const u8], at: usize| {
        // SAFETY: `at + L` is at most `first + count`.
        let load = |from: *const u8| unsafe { from.cast::<T>().wrapping_add(at).cast::<[T; L]>().read_unaligned() };
        narrow(combine(inputs, load, &widen, &join))
    };
    let store = |output: &*mut u8, at: usize, block: [T; L]| {
        let to = output.cast::<T>().wrapping_add(at).cast::<[T; L]>();
        // SAFETY: as above.
        unsafe { to.write_unaligned(block) };
    };
    match (inputs, outputs) {
        _ if stream => {
            for at in whole.clone().step_by(L) {
                let block = block(inputs, at);
                for output in outputs {
                    let to = output.cast::<T>().wrapping_add(at).cast::<[T; L]>();
                    // SAFETY: as above; outputs and blocks are multiples of what a store is aligned to.
                    unsafe { M::stream(to, block) };
                }
            }
            M::fence();
        }
        // What is in the cache is as fast as the code: two ranks get loops with all addresses in registers.
        (&[a, b], &[to]) => whole.clone().step_by(L).for_each(|at| store(&to, at, block(&[a, b], at))),
        (&[a, b], &[to, too]) => {
            for at in whole.clone().step_by(L) {
                let block = block(&[a, b], at);
                store(&to, at, block);
                store(&too, at, block);
            }
        }
        _ => {
            for at in whole.clone().step_by(L) {
                let block = block(inputs, at);
                outputs.iter().for_each(|output| store(output, at, block));
            }
        }
    }
    // In bytes, which are aligned everywhere.
    let (done, left) = (whole.end * size_of::<T>(), count % L * size_of::<T>());
    if left == 0 {
        return;
    }
    // The same code for what is left, on blocks that are filled up.
    let load = |from: *const u8| {
        let mut block = [T::zeroed(); L];
        // SAFETY: `done + left` are all bytes, and `left` is less than the block.
        unsafe { ptr::copy(from.wrapping_add(done), block.as_mut_ptr().cast(), left) };
        block
    };
    let result = narrow(combine(inputs, load, &widen, &join));
    for output in outputs {
        // SAFETY: as above.
        unsafe { ptr::copy(result.as_ptr().cast(), output.wrapping_add(done), left) };
    }
}

/// One block of all inputs, in their order.
#[inline(always)]
fn combine<T: Number, W: Copy, const L: usize>(
    inputs: &[*const u8],
    load: impl Fn(*const u8) -> [T; L],
    widen: &impl Fn([T; L]) -> [W; L],
    join: &impl Fn(W, W) -> W,
) -> [W; L] {
    let add = |mut sums: [W; L], input: *const u8| {
        let x = widen(load(input));
        for i in 0..L {
            sums[i] = join(sums[i], x[i]);
        }
        sums
    };
    match inputs {
        // The most frequent case, without a loop inside of the loop.
        [a, b] => add(widen(load(*a)), *b),
        [first, rest @ ..] => rest.iter().fold(widen(load(*first)), |sums, input| add(sums, *input)),
        [] => widen([T::zeroed(); L]),
    }
}
