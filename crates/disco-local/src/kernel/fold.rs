//! The loop of a reduction, for one dtype and one kind of processor.
//!
//! All code here must be inlined into a function with the target features of the processor; otherwise it is compiled
//! for the baseline. So the file has only `inline(always)` functions, and neither closures nor iterator adapters.

use std::mem::MaybeUninit;
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
    // SAFETY: `done + left` is the end of the inputs, and `left` is less than a block.
    let result = rule.narrow::<M, L>(unsafe { tree::<M, T, R, Tail, L>(inputs, Tail { done, left }) });
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
    // SAFETY: the caller guarantees it.
    rule.narrow::<M, L>(unsafe { tree::<M, T, R, At, L>(inputs, At(at)) })
}

/// The most accumulators that wait for their right neighbours: one for each bit of a number of ranks.
const MAX_WAITING: usize = u32::BITS as usize;

/// Reduces blocks of all inputs in a binary tree over their positions: of `n` inputs, the left branch has the largest power of
/// two below `n`. So the branches of `2^k` neighbours are the same in each longer tree, and up to three inputs are reduced one
/// after the other.
///
/// # Safety
/// The source is inside all inputs.
#[inline(always)]
unsafe fn tree<M: Machine, T: Number, R: Rule<T>, S: Source<T, L>, const L: usize>(
    inputs: &[*const u8],
    source: S,
) -> [R::Sum; L] {
    if inputs.len() <= 4 {
        // SAFETY: the caller guarantees it.
        return unsafe { small_tree::<M, T, R, S, L>(inputs, source) };
    }
    let mut waiting = [MaybeUninit::<[R::Sum; L]>::uninit(); MAX_WAITING];
    let (mut count, mut at) = (0, 0);
    let mut sums = R::widen::<M, L>([T::zeroed(); L]);
    while at < inputs.len() {
        let left = inputs.len() - at;
        let four = if left < 4 { &inputs[at..] } else { &inputs[at..at + 4] };
        // SAFETY: the caller guarantees it.
        sums = unsafe { small_tree::<M, T, R, S, L>(four, source) };
        if left >= 4 {
            // The branches that end here: one for each bit of the number of fours that this one turns from one to zero.
            let mut fours = at / 4;
            while fours % 2 == 1 {
                count -= 1;
                // SAFETY: as many have been written as `at / 4` has bits that are one.
                sums = join::<T, R, L>(unsafe { waiting[count].assume_init() }, sums);
                fours /= 2;
            }
        }
        if left > 4 {
            waiting[count].write(sums);
            count += 1;
        }
        at += 4;
    }
    while count > 0 {
        count -= 1;
        // SAFETY: `count` of them and this one have been written.
        sums = join::<T, R, L>(unsafe { waiting[count].assume_init() }, sums);
    }
    sums
}

/// [`tree`] for at most four inputs, in registers.
///
/// # Safety
/// As [`tree`].
#[inline(always)]
unsafe fn small_tree<M: Machine, T: Number, R: Rule<T>, S: Source<T, L>, const L: usize>(
    inputs: &[*const u8],
    source: S,
) -> [R::Sum; L] {
    let Some(first) = inputs.first() else { return R::widen::<M, L>([T::zeroed(); L]) };
    // SAFETY: the caller guarantees it.
    let mut left = R::widen::<M, L>(unsafe { source.load(*first) });
    if inputs.len() > 1 {
        // SAFETY: the caller guarantees it.
        left = join::<T, R, L>(left, R::widen::<M, L>(unsafe { source.load(inputs[1]) }));
    }
    if inputs.len() > 2 {
        // SAFETY: the caller guarantees it.
        let mut right = R::widen::<M, L>(unsafe { source.load(inputs[2]) });
        if inputs.len() > 3 {
            // SAFETY: the caller guarantees it.
            right = join::<T, R, L>(right, R::widen::<M, L>(unsafe { source.load(inputs[3]) }));
        }
        left = join::<T, R, L>(left, right);
    }
    left
}

/// Where a block lies in each input.
trait Source<T, const L: usize>: Copy {
    /// # Safety
    /// The block is inside the input.
    unsafe fn load(self, input: *const u8) -> [T; L];
}

/// A whole block, from this element on.
#[derive(Clone, Copy)]
struct At(usize);

impl<T: Number, const L: usize> Source<T, L> for At {
    #[inline(always)]
    unsafe fn load(self, input: *const u8) -> [T; L] {
        // SAFETY: the caller guarantees it.
        unsafe { input.cast::<T>().wrapping_add(self.0).cast::<[T; L]>().read_unaligned() }
    }
}

/// The last `left` bytes, from byte `done` on, which are less than a block: it is padded with zeros.
#[derive(Clone, Copy)]
struct Tail {
    done: usize,
    left: usize,
}

impl<T: Number, const L: usize> Source<T, L> for Tail {
    #[inline(always)]
    unsafe fn load(self, input: *const u8) -> [T; L] {
        let mut block = [T::zeroed(); L];
        // SAFETY: the caller guarantees it.
        unsafe { ptr::copy(input.wrapping_add(self.done), block.as_mut_ptr().cast(), self.left) };
        block
    }
}

#[inline(always)]
fn join<T: Number, R: Rule<T>, const L: usize>(mut sums: [R::Sum; L], x: [R::Sum; L]) -> [R::Sum; L] {
    for i in 0..L {
        sums[i] = R::join(sums[i], x[i]);
    }
    sums
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
