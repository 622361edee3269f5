//! The reductions of this backend for others, which get the same bits.
//!
//! Inputs are reduced in a binary tree over the ranks: of `n` ranks, the left branch has the largest power of two below `n`. So
//! the result of a [`partial`] reduction, of the ranks of a branch, can be made where these are. It is not rounded, and
//! [`finish`] joins the branches.

#![allow(unsafe_code)]

use std::borrow::Cow;

use disco_core::{Capabilities, DType, Error, OpKind, Reduction, Result};

use crate::NAME;
use crate::kernel::{self, Fold};

/// Overwrites `output` with the reduction of `inputs`, of which `None` stands for the bytes of `output`. All have the same
/// number of whole elements of `dtype`. The result has the bits that the communicators of this crate give: that of the tree over
/// the inputs, rounded once.
///
/// # Errors
/// [`Error::Unsupported`] if the dtype does not support the reduction, or the program brings it;
/// [`Error::Invalid`] if an input has another size, or there is none.
pub fn reduce(dtype: DType, reduction: Reduction, inputs: &[Option<&[u8]>], output: &mut [u8]) -> Result<()> {
    let bytes = output.len();
    let is_alike = |input: &Option<&[u8]>| input.is_none_or(|input| input.len() == bytes);
    if inputs.is_empty() || !inputs.iter().all(is_alike) || !bytes.is_multiple_of(dtype.size()) {
        return Err(misfit(bytes));
    }
    if !Capabilities::all().supports(OpKind::AllReduce, dtype, Some(reduction)) {
        return Err(unsupported(dtype, reduction));
    }
    let to = output.as_mut_ptr();
    let from: Vec<_> = inputs.iter().map(|input| input.map_or(to.cast_const(), <[u8]>::as_ptr)).collect();
    let (count, stream) = (bytes / dtype.size(), false);
    let fold = Fold { dtype, reduction, inputs: &from, outputs: &[to], first: 0, count, stream };
    // SAFETY: the slices are valid for `count` elements. The output is borrowed mutably, so nothing else accesses it: an
    // input overlaps it only as `None`, with the same address.
    if unsafe { kernel::reduce(fold) } { Ok(()) } else { Err(unsupported(dtype, reduction)) }
}

/// The dtype of the results of [`partial`]: that of the accumulator if a result is rounded. `None` if no dtype holds them, as in
/// averages of integers, so that all inputs have to be reduced at once.
pub fn partial_dtype(dtype: DType, reduction: Reduction) -> Option<DType> {
    match (dtype, reduction) {
        (_, Reduction::Min | Reduction::Max) | (DType::F32 | DType::F64, _) => Some(dtype),
        (DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2, _) => Some(DType::F32),
        (_, Reduction::Sum | Reduction::Prod) => Some(dtype),
        _ => None,
    }
}

/// Overwrites `output`, whose elements are of the [partial dtype](partial_dtype), with the reduction of `inputs`, which have one
/// element of `dtype` for each.
///
/// # Errors
/// As [`reduce`]; [`Error::Unsupported`] without a partial dtype.
pub fn partial(dtype: DType, reduction: Reduction, inputs: &[&[u8]], output: &mut [u8]) -> Result<()> {
    let wide = partial_dtype(dtype, reduction).ok_or_else(|| unsupported(dtype, reduction))?;
    let inputs: Vec<_> = inputs.iter().map(|input| widen(dtype, wide, input)).collect();
    let inputs: Vec<_> = inputs.iter().map(|input| Some(&**input)).collect();
    reduce(wide, step(reduction), &inputs, output)
}

/// A branch of the tree over the ranks.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub enum Branch<'a> {
    /// One rank, with its input.
    Rank(&'a [u8]),
    /// The rank whose input is in the output.
    Output,
    /// This number of ranks, with the result of [`partial`].
    Ranks(usize, &'a [u8]),
}

/// Overwrites `output` with the reduction of all ranks, from branches of the tree that follow each other and have all ranks.
///
/// # Errors
/// As [`partial`].
pub fn finish(dtype: DType, reduction: Reduction, branches: &[Branch<'_>], output: &mut [u8]) -> Result<()> {
    let inputs: Option<Vec<_>> = branches
        .iter()
        .map(|branch| match branch {
            Branch::Rank(input) => Some(Some(*input)),
            Branch::Output => Some(None),
            Branch::Ranks(..) => None,
        })
        .collect();
    if let Some(inputs) = inputs {
        return reduce(dtype, reduction, &inputs, output);
    }
    let wide = partial_dtype(dtype, reduction).ok_or_else(|| unsupported(dtype, reduction))?;
    let (mut waiting, mut ranks) = (Vec::<(usize, Cow<'_, [u8]>)>::new(), 0);
    let join = |waiting: &mut Vec<(usize, Cow<'_, [u8]>)>| {
        let (Some((right, b)), Some((left, a))) = (waiting.pop(), waiting.pop()) else { return Ok(()) };
        let mut joined = a.into_owned();
        reduce(wide, step(reduction), &[None, Some(&b)], &mut joined)?;
        waiting.push((left + right, joined.into()));
        Ok::<_, Error>(())
    };
    for branch in branches {
        let (size, content) = match *branch {
            Branch::Rank(input) => (1, widen(dtype, wide, input)),
            Branch::Output => (1, widen(dtype, wide, output).into_owned().into()),
            Branch::Ranks(size, partial) => (size, Cow::Borrowed(partial)),
        };
        ranks += size;
        waiting.push((size, content));
        // Two complete branches of `2^k` ranks make one of `2^(k + 1)`.
        while let [.., (left, _), (right, _)] = &*waiting
            && left == right
            && left.is_power_of_two()
        {
            join(&mut waiting)?;
        }
    }
    while waiting.len() > 1 {
        join(&mut waiting)?;
    }
    let (_, sums) = waiting.pop().ok_or_else(|| misfit(output.len()))?;
    if sums.len() * dtype.size() != output.len() * wide.size() {
        return Err(misfit(output.len()));
    }
    kernel::narrow(dtype, wide, &sums, if reduction == Reduction::Avg { ranks } else { 1 }, output);
    Ok(())
}

/// The reduction of the branches.
fn step(reduction: Reduction) -> Reduction {
    if reduction == Reduction::Avg { Reduction::Sum } else { reduction }
}

fn widen<'a>(dtype: DType, wide: DType, input: &'a [u8]) -> Cow<'a, [u8]> {
    if dtype == wide {
        return input.into();
    }
    let mut output = vec![0; input.len() / dtype.size() * wide.size()];
    kernel::widen(dtype, input, &mut output);
    output.into()
}

fn unsupported(dtype: DType, reduction: Reduction) -> Error {
    Error::Unsupported { backend: NAME, operation: format!("reduction {reduction}"), dtype: Some(dtype) }
}

fn misfit(bytes: usize) -> Error {
    Error::invalid(format!("the inputs of a reduction do not fit its output of {bytes} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_may_be_one_of_the_inputs() {
        let bytes = |values: [f32; 2]| values.map(f32::to_ne_bytes).concat();
        let (first, last, mut output) = (bytes([1e8, 1.0]), bytes([-1e8, 3.0]), bytes([1.0, 2.0]));
        reduce(DType::F32, Reduction::Sum, &[Some(&first), None, Some(&last)], &mut output).unwrap();
        assert_eq!(output, bytes([(1e8 + 1.0) - 1e8, 6.0]));
    }

    #[test]
    fn inputs_of_another_size_are_refused() {
        for inputs in [&[Some(&[0; 3][..])][..], &[]] {
            assert!(reduce(DType::U8, Reduction::Max, inputs, &mut [0; 4]).is_err());
        }
        assert!(reduce(DType::Bool, Reduction::Avg, &[None], &mut [1; 4]).is_err());
    }

    /// The sum of the tree, from its definition.
    fn tree(inputs: &[f32]) -> f32 {
        match inputs.len() {
            1 => inputs[0],
            len => {
                let (left, right) = inputs.split_at(len.next_power_of_two() / 2);
                tree(left) + tree(right)
            }
        }
    }

    fn random(seed: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(seed), |x| Some(x.wrapping_mul(747_796_405).wrapping_add(2_891_336_453)))
    }

    #[test]
    fn sums_are_those_of_a_binary_tree_over_the_ranks() {
        for ranks in 1..=20 {
            for count in [1, 16, 37] {
                let inputs: Vec<Vec<f32>> = (0..ranks)
                    .map(|rank| random(rank + 1).skip(9).take(count).map(|x| x as f32 - 2e9).collect())
                    .collect();
                let bytes: Vec<_> =
                    inputs.iter().map(|input| bytemuck::cast_slice::<f32, u8>(input).to_vec()).collect();
                let mut output = vec![0; count * 4];
                let all: Vec<_> = bytes.iter().map(|input| Some(&**input)).collect();
                reduce(DType::F32, Reduction::Sum, &all, &mut output).unwrap();
                for (at, sum) in output.chunks_exact(4).enumerate() {
                    let column: Vec<_> = inputs.iter().map(|input| input[at]).collect();
                    assert_eq!(sum, tree(&column).to_ne_bytes(), "{ranks} ranks, element {at}");
                }
            }
        }
    }

    /// The tree's branches of at most `most` ranks.
    fn branches(ranks: std::ops::Range<usize>, most: usize) -> Vec<std::ops::Range<usize>> {
        if ranks.len() <= most {
            return vec![ranks];
        }
        let middle = ranks.start + ranks.len().next_power_of_two() / 2;
        [branches(ranks.start..middle, most), branches(middle..ranks.end, most)].concat()
    }

    #[test]
    fn branches_that_are_reduced_apart_give_the_same_bits() {
        let kinds = DType::all().flat_map(|dtype| Reduction::ALL.map(|reduction| (dtype, reduction)));
        for (dtype, reduction) in kinds.filter(|kind| *kind != (DType::Bool, Reduction::Avg)) {
            let Some(wide) = partial_dtype(dtype, reduction) else { continue };
            for (ranks, most) in [(2, 1), (4, 2), (7, 3), (9, 2), (12, 5)] {
                const COUNT: usize = 37;
                let input = |rank: usize| {
                    let bytes = random(rank as u32).skip(9).map(|x| (x >> 24) as u8 & 0xb7);
                    bytes.take(COUNT * dtype.size()).collect::<Vec<_>>()
                };
                let inputs: Vec<_> = (0..ranks).map(input).collect();
                let mut expected = vec![0; COUNT * dtype.size()];
                let all: Vec<_> = inputs.iter().map(|input| Some(&**input)).collect();
                reduce(dtype, reduction, &all, &mut expected).unwrap();

                let ranges = branches(0..ranks, most);
                let partials: Vec<_> = ranges
                    .iter()
                    .map(|range| {
                        let (mut sums, all) = (vec![0; COUNT * wide.size()], &inputs[range.clone()]);
                        let all: Vec<_> = all.iter().map(|input| &**input).collect();
                        partial(dtype, reduction, &all, &mut sums).unwrap();
                        sums
                    })
                    .collect();
                let mut output = inputs[0].clone();
                let branch = |range: &std::ops::Range<usize>, sums| match range.len() {
                    1 if range.start == 0 => Branch::Output,
                    1 => Branch::Rank(&inputs[range.start]),
                    ranks => Branch::Ranks(ranks, sums),
                };
                let all: Vec<_> = ranges.iter().zip(&partials).map(|(range, sums)| branch(range, sums)).collect();
                finish(dtype, reduction, &all, &mut output).unwrap();
                assert_eq!(output, expected, "{dtype} {reduction} of {ranks} ranks");
            }
        }
    }
}
