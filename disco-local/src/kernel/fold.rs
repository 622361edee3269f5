//! The loop of a reduction, for one dtype on one machine.
//!
//! Everything here becomes part of a function that is compiled for the machine: code that stayed outside would be compiled
//! for the baseline. So these are functions that are always inlined, and neither closures nor iterator adapters.

use std::ptr;

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
    match fold.reduction {
        // SAFETY: the caller's promise.
        Reduction::Sum => unsafe { each::<M, T, Sum, L>(fold, Sum) },
        // SAFETY: the caller's promise.
        Reduction::Prod => unsafe { each::<M, T, Prod, L>(fold, Prod) },
        // SAFETY: the caller's promise.
        Reduction::Min => unsafe { each::<M, T, Min, L>(fold, Min) },
        // SAFETY: the caller's promise.
        Reduction::Max => unsafe { each::<M, T, Max, L>(fold, Max) },
        // SAFETY: the caller's promise.
        Reduction::Avg => unsafe { each::<M, T, Avg, L>(fold, Avg { ranks: fold.inputs.len() }) },
        _ => return false,
    }
    true
}

/// How elements of type `T` become one.
trait Rule<T: Number>: Copy {
    /// What they are accumulated in.
    type Sum: Copy;

    fn widen<M: Machine, const L: usize>(x: [T; L]) -> [Self::Sum; L];

    fn join(a: Self::Sum, b: Self::Sum) -> Self::Sum;

    fn narrow<M: Machine, const L: usize>(self, x: [Self::Sum; L]) -> [T; L];
}

macro_rules! rules {
    ($($name:ident => $join:ident),*) => {$(
        #[derive(Clone, Copy)]
        struct $name;

        impl<T: Number> Rule<T> for $name {
            type Sum = T::Wide;

            #[inline(always)]
            fn widen<M: Machine, const L: usize>(x: [T; L]) -> [T::Wide; L] {
                T::widen::<M, L>(x)
            }

            #[inline(always)]
            fn join(a: T::Wide, b: T::Wide) -> T::Wide {
                a.$join(b)
            }

            #[inline(always)]
            fn narrow<M: Machine, const L: usize>(self, x: [T::Wide; L]) -> [T; L] {
                T::narrow::<M, L>(x)
            }
        }
    )*};
}

rules!(Sum => sum, Prod => prod, Min => min, Max => max);

#[derive(Clone, Copy)]
struct Avg {
    ranks: usize,
}

impl<T: Number> Rule<T> for Avg {
    type Sum = T::Exact;

    #[inline(always)]
    fn widen<M: Machine, const L: usize>(x: [T; L]) -> [T::Exact; L] {
        T::exact::<M, L>(x)
    }

    #[inline(always)]
    fn join(a: T::Exact, b: T::Exact) -> T::Exact {
        a.sum(b)
    }

    #[inline(always)]
    fn narrow<M: Machine, const L: usize>(self, mut x: [T::Exact; L]) -> [T; L] {
        for x in &mut x {
            *x = x.over(self.ranks);
        }
        T::round::<M, L>(x)
    }
}

/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn each<M: Machine, T: Number, R: Rule<T>, const L: usize>(fold: Fold<'_>, rule: R) {
    let Fold { inputs, outputs, first, count, .. } = fold;
    let end = first + count - count % L;
    match (inputs, outputs) {
        _ if fold.stream && aligned::<M, T>(outputs, first) => {
            let mut at = first;
            while at < end {
                // SAFETY: `at + L` is at most `end`.
                let block = unsafe { block::<M, T, R, L>(inputs, at, rule) };
                for output in outputs {
                    let to = output.cast::<T>().wrapping_add(at).cast::<[T; L]>();
                    // SAFETY: as above; outputs and blocks are multiples of what a store is aligned to.
                    unsafe { M::stream(to, block) };
                }
                at += L;
            }
            M::fence();
        }
        // What is in the cache is as fast as the code: two ranks get loops with all addresses in registers.
        // SAFETY: the caller's promise.
        (&[a, b], &[to]) if M::HAS_PAIR_LOOPS => unsafe { walk::<M, T, R, L>(&[a, b], &[to], first..end, rule) },
        // SAFETY: the caller's promise.
        (&[a, b], &[to, too]) if M::HAS_PAIR_LOOPS => unsafe {
            walk::<M, T, R, L>(&[a, b], &[to, too], first..end, rule)
        },
        // SAFETY: the caller's promise.
        _ => unsafe { walk::<M, T, R, L>(inputs, outputs, first..end, rule) },
    }
    // What is left goes through the same code, on blocks that are filled up. In bytes, which are aligned everywhere.
    let (done, left) = (end * size_of::<T>(), count % L * size_of::<T>());
    if left == 0 {
        return;
    }
    let Some((input, rest)) = inputs.split_first() else { return };
    // SAFETY: `done + left` are all bytes, and `left` is less than a block.
    let mut sums = R::widen::<M, L>(unsafe { filled_up(*input, done, left) });
    for input in rest {
        // SAFETY: as above.
        let x = R::widen::<M, L>(unsafe { filled_up(*input, done, left) });
        sums = join::<T, R, L>(sums, x);
    }
    let result = rule.narrow::<M, L>(sums);
    for output in outputs {
        // SAFETY: as above.
        unsafe { ptr::copy(result.as_ptr().cast(), output.wrapping_add(done), left) };
    }
}

/// Reduces whole blocks with ordinary stores.
///
/// # Safety
/// As [`run`], for blocks from `range.start` up to `range.end`.
#[inline(always)]
unsafe fn walk<M: Machine, T: Number, R: Rule<T>, const L: usize>(
    inputs: &[*const u8],
    outputs: &[*mut u8],
    range: std::ops::Range<usize>,
    rule: R,
) {
    let mut at = range.start;
    while at < range.end {
        // SAFETY: `at + L` is at most the end.
        let block = unsafe { block::<M, T, R, L>(inputs, at, rule) };
        for output in outputs {
            // SAFETY: as above.
            unsafe { output.cast::<T>().wrapping_add(at).cast::<[T; L]>().write_unaligned(block) };
        }
        at += L;
    }
}

/// The reduction of `L` elements from `at` on.
///
/// # Safety
/// All inputs have them.
#[inline(always)]
unsafe fn block<M: Machine, T: Number, R: Rule<T>, const L: usize>(inputs: &[*const u8], at: usize, rule: R) -> [T; L] {
    let Some((input, rest)) = inputs.split_first() else { return [T::zeroed(); L] };
    // SAFETY: the caller's promise.
    let x = unsafe { input.cast::<T>().wrapping_add(at).cast::<[T; L]>().read_unaligned() };
    let mut sums = R::widen::<M, L>(x);
    for input in rest {
        // SAFETY: the caller's promise.
        let x = unsafe { input.cast::<T>().wrapping_add(at).cast::<[T; L]>().read_unaligned() };
        sums = join::<T, R, L>(sums, R::widen::<M, L>(x));
    }
    rule.narrow::<M, L>(sums)
}

#[inline(always)]
fn join<T: Number, R: Rule<T>, const L: usize>(mut sums: [R::Sum; L], x: [R::Sum; L]) -> [R::Sum; L] {
    for i in 0..L {
        sums[i] = R::join(sums[i], x[i]);
    }
    sums
}

/// `left` bytes after the first `done`, and zeros.
///
/// # Safety
/// They are there, and less than `L` elements.
#[inline(always)]
unsafe fn filled_up<T: Number, const L: usize>(from: *const u8, done: usize, left: usize) -> [T; L] {
    let mut block = [T::zeroed(); L];
    // SAFETY: the caller's promise.
    unsafe { ptr::copy(from.wrapping_add(done), block.as_mut_ptr().cast(), left) };
    block
}

/// Whether streaming stores can begin at element `first` of all outputs.
#[inline(always)]
fn aligned<M: Machine, T: Number>(outputs: &[*mut u8], first: usize) -> bool {
    let mut aligned = M::STREAM > 0;
    for output in outputs {
        aligned = aligned && (output.cast::<T>().wrapping_add(first) as usize).is_multiple_of(M::STREAM);
    }
    aligned
}
