//! The loop of a reduction, for one dtype and one kind of processor.
//!
//! All code here must be inlined into a function with the target features of the processor; otherwise it is compiled
//! for the baseline. So the file has only `inline(always)` functions, and neither closures nor iterator adapters.

use std::ptr;

use disco_core::Reduction;

use super::Fold;
use super::machine::Machine;
use super::number::{Mean, Number, Wide};

/// Runs a reduction of elements of type `T`, `L` at a time. Returns false if the reduction is unknown.
///
/// # Safety
/// As [`super::reduce`]; `L` elements are a multiple of [`Machine::STREAM`] bytes.
#[inline(always)]
pub(super) unsafe fn run<M: Machine, T: Number, const L: usize>(fold: Fold<'_>) -> bool {
    match fold.reduction {
        // SAFETY: the caller guarantees it.
        Reduction::Sum => unsafe { each::<M, T, Sum, L>(fold, Sum) },
        // SAFETY: the caller guarantees it.
        Reduction::Prod => unsafe { each::<M, T, Prod, L>(fold, Prod) },
        // SAFETY: the caller guarantees it.
        Reduction::Min => unsafe { each::<M, T, Min, L>(fold, Min) },
        // SAFETY: the caller guarantees it.
        Reduction::Max => unsafe { each::<M, T, Max, L>(fold, Max) },
        // SAFETY: the caller guarantees it.
        Reduction::Avg => unsafe { each::<M, T, Avg, L>(fold, Avg { ranks: fold.inputs.len() }) },
        _ => return false,
    }
    true
}

/// A reduction of elements of type `T`.
trait Rule<T: Number>: Copy {
    /// The type of accumulators.
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
                    // SAFETY: `at + L` is at most `end`. The outputs are aligned to `M::STREAM`, as checked above, and
                    // the size of a block is a multiple of it.
                    unsafe { M::stream(to, block) };
                }
                at += L;
            }
            M::fence();
        }
        // For data in the caches the loop itself is the limit: two ranks get loops with all addresses in registers.
        // SAFETY: the caller guarantees it.
        (&[a, b], &[to]) if M::HAS_PAIR_LOOPS => unsafe { walk::<M, T, R, L>(&[a, b], &[to], first..end, rule) },
        // SAFETY: the caller guarantees it.
        (&[a, b], &[to, too]) if M::HAS_PAIR_LOOPS => unsafe {
            walk::<M, T, R, L>(&[a, b], &[to, too], first..end, rule)
        },
        // SAFETY: the caller guarantees it.
        _ => unsafe { walk::<M, T, R, L>(inputs, outputs, first..end, rule) },
    }
    // The tail goes through the same code, in padded blocks. It is copied as bytes, which need no alignment.
    let (done, left) = (end * size_of::<T>(), count % L * size_of::<T>());
    if left == 0 {
        return;
    }
    let Some((input, rest)) = inputs.split_first() else { return };
    // SAFETY: `done + left` is the end of the input, and `left` is less than a block.
    let mut sums = R::widen::<M, L>(unsafe { filled_up(*input, done, left) });
    for input in rest {
        // SAFETY: `done + left` is the end of the input, and `left` is less than a block.
        let x = R::widen::<M, L>(unsafe { filled_up(*input, done, left) });
        sums = join::<T, R, L>(sums, x);
    }
    let result = rule.narrow::<M, L>(sums);
    for output in outputs {
        // SAFETY: `done + left` is the end of the output, and `left` is less than the size of `result`.
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
        // SAFETY: `at + L` is at most `range.end`, up to which the inputs are valid.
        let block = unsafe { block::<M, T, R, L>(inputs, at, rule) };
        for output in outputs {
            // SAFETY: `at + L` is at most `range.end`, up to which the outputs are valid.
            unsafe { output.cast::<T>().wrapping_add(at).cast::<[T; L]>().write_unaligned(block) };
        }
        at += L;
    }
}

/// The reduction of `L` elements from `at` on.
///
/// # Safety
/// All inputs are valid for `L` elements from `at` on.
#[inline(always)]
unsafe fn block<M: Machine, T: Number, R: Rule<T>, const L: usize>(inputs: &[*const u8], at: usize, rule: R) -> [T; L] {
    let Some((input, rest)) = inputs.split_first() else { return [T::zeroed(); L] };
    // SAFETY: the caller guarantees it.
    let x = unsafe { input.cast::<T>().wrapping_add(at).cast::<[T; L]>().read_unaligned() };
    let mut sums = R::widen::<M, L>(x);
    for input in rest {
        // SAFETY: the caller guarantees it.
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

/// A block of `left` bytes from offset `done`, padded with zeros.
///
/// # Safety
/// `from` is valid for `done + left` bytes, and `left` is less than the size of a block.
#[inline(always)]
unsafe fn filled_up<T: Number, const L: usize>(from: *const u8, done: usize, left: usize) -> [T; L] {
    let mut block = [T::zeroed(); L];
    // SAFETY: the caller guarantees it.
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
