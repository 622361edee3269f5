//! Reductions that Disco registers for `f32` and `f64`. Programs add their own with
//! [`register_reduction!`](crate::register_reduction).
//!
//! Each combines rows: the last dimension of the tensors. Numbers are merged in `f64` and rounded once for each rank.

use std::cmp::Ordering;

use crate::dtype::Element;
use crate::op::Reduction;
use crate::register_reduction;

/// The largest value, and its index. A row is `[value, index]`, so the tensors have the shape `[.., 2]`.
///
/// NaN is larger than all other values, as in PyTorch. Of equal values, the one with the lower index wins. A row
/// with a negative index is empty, and loses against all others. `f32` represents indices up to 2^24 exactly, and
/// `f64` indices up to 2^53.
///
/// The function panics if a row has another length than 2.
pub const ARGMAX: Reduction = Reduction::Custom("disco.argmax");

/// Merges partial results of attention, each of them over a part of the keys. A row is the result of one query in one
/// head, followed by the logarithm of the sum of the exponentials of its scores (logsumexp): the shape is `[.., d + 1]`
/// for heads of `d` values.
///
/// The values of a merged row are the average of the values, weighted with the exponentials of the logsumexps, and its
/// logsumexp is that of both parts. A part without keys has a logsumexp of negative infinity; its values don't matter.
pub const LOGSUMEXP: Reduction = Reduction::Custom("disco.logsumexp");

/// The `k` largest values, and their indices. A row is `k` values in descending order, followed by their `k` indices:
/// the shape is `[.., 2 * k]`.
///
/// Values are ordered as in [`ARGMAX`]. An empty place has the index -1 and, by convention, the value negative
/// infinity; empty places come last. An index that several ranks have counts several times.
///
/// The function panics if a row has an odd length.
pub const TOP_K: Reduction = Reduction::Custom("disco.top_k");

register_reduction!(ARGMAX.name(), f32, argmax);
register_reduction!(ARGMAX.name(), f64, argmax);
register_reduction!(LOGSUMEXP.name(), f32, logsumexp);
register_reduction!(LOGSUMEXP.name(), f64, logsumexp);
register_reduction!(TOP_K.name(), f32, top_k);
register_reduction!(TOP_K.name(), f64, top_k);

trait Float: Element {
    fn wide(self) -> f64;

    fn narrow(wide: f64) -> Self;
}

impl Float for f32 {
    fn wide(self) -> f64 {
        self.into()
    }

    fn narrow(wide: f64) -> Self {
        wide as f32
    }
}

impl Float for f64 {
    fn wide(self) -> f64 {
        self
    }

    fn narrow(wide: f64) -> Self {
        wide
    }
}

/// Whether `(value, index)` comes before another one.
fn precedes<T: Float>((value, index): (T, T), (other, other_index): (T, T)) -> bool {
    let (value, index, other, other_index) = (value.wide(), index.wide(), other.wide(), other_index.wide());
    match (index < 0.0, other_index < 0.0) {
        (false, false) => {}
        (is_empty, is_other_empty) => return !is_empty && is_other_empty,
    }
    let order = value.partial_cmp(&other).unwrap_or_else(|| value.is_nan().cmp(&other.is_nan()));
    order.then_with(|| other_index.total_cmp(&index)) == Ordering::Greater
}

fn argmax<T: Float>(into: &mut [T], from: &[T], row: usize) {
    assert_eq!(row, 2, "a row of `{ARGMAX}` is a value and an index, and the last dimension is {row}");
    for (into, from) in into.as_chunks_mut::<2>().0.iter_mut().zip(from.as_chunks::<2>().0) {
        if precedes((from[0], from[1]), (into[0], into[1])) {
            *into = *from;
        }
    }
}

fn logsumexp<T: Float>(into: &mut [T], from: &[T], row: usize) {
    let last = row - 1;
    for (into, from) in into.chunks_exact_mut(row).zip(from.chunks_exact(row)) {
        let (a, b) = (into[last].wide(), from[last].wide());
        if b == f64::NEG_INFINITY {
            continue;
        }
        if a == f64::NEG_INFINITY {
            into.copy_from_slice(from);
            continue;
        }
        let most = a.max(b);
        let (a, b) = ((a - most).exp(), (b - most).exp());
        for (into, from) in into[..last].iter_mut().zip(from) {
            *into = T::narrow((into.wide() * a + from.wide() * b) / (a + b));
        }
        into[last] = T::narrow(most + (a + b).ln());
    }
}

fn top_k<T: Float>(into: &mut [T], from: &[T], row: usize) {
    assert!(row.is_multiple_of(2), "a row of `{TOP_K}` is k values and k indices, and the last dimension is {row}");
    let k = row / 2;
    let mut merged = vec![T::zeroed(); row];
    for (into, from) in into.chunks_exact_mut(row).zip(from.chunks_exact(row)) {
        let (mut a, mut b) = (0, 0);
        for place in 0..k {
            let (own, other) = ((into[a], into[k + a]), (from[b], from[k + b]));
            let first = if precedes(other, own) { (&mut b, other) } else { (&mut a, own) };
            *first.0 += 1;
            (merged[place], merged[k + place]) = first.1;
        }
        into.copy_from_slice(&merged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: f64 = f64::NAN;
    const NEGATIVE: f64 = f64::NEG_INFINITY;

    fn merged<T: Float>(function: fn(&mut [T], &[T], usize), row: usize, parts: &[&[f64]]) -> Vec<f64> {
        let parts: Vec<Vec<T>> = parts.iter().map(|part| part.iter().map(|x| T::narrow(*x)).collect()).collect();
        let mut all = parts[0].clone();
        parts[1..].iter().for_each(|part| function(&mut all, part, row));
        all.into_iter().map(T::wide).collect()
    }

    /// Pseudo-random numbers between -1 and 1, with many equal ones.
    fn numbers(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as i64 as f64 % 64.0 / 32.0 - 1.0
        }
    }

    /// Indices and values, in the order of a plain sort: descending, and equal values by their indices.
    fn sorted(values: &[f64]) -> Vec<(f64, f64)> {
        let mut all: Vec<_> = values.iter().enumerate().map(|(index, value)| (*value, index as f64)).collect();
        let key = |value: f64| if value.is_nan() { f64::INFINITY } else { value };
        all.sort_by(|a, b| key(b.0).total_cmp(&key(a.0)));
        all
    }

    #[test]
    fn argmax_takes_the_lower_index_of_equal_values_and_nan_wins() {
        let of = |parts: &[&[f64]]| merged::<f32>(argmax, 2, parts);
        assert_eq!(of(&[&[1.0, 7.0], &[3.0, 9.0], &[3.0, 2.0], &[-4.0, 0.0]]), [3.0, 2.0]);
        assert_eq!(of(&[&[-0.0, 1.0], &[0.0, 2.0]])[1], 1.0);
        assert_eq!(of(&[&[NEGATIVE, -1.0], &[NEGATIVE, 5.0], &[NEGATIVE, -1.0]]), [NEGATIVE, 5.0]);
        assert_eq!(of(&[&[NEGATIVE, -1.0], &[NEGATIVE, -1.0]]), [NEGATIVE, -1.0]);
        let nan = of(&[&[9.0, 1.0], &[NAN, 4.0], &[f64::INFINITY, 5.0], &[NAN, 3.0]]);
        assert!(nan[0].is_nan() && nan[1] == 3.0);
    }

    #[test]
    fn top_k_of_parts_is_that_of_the_whole() {
        for seed in 0..50 {
            let k = 1 + seed as usize % 7;
            let mut values: Vec<f64> = std::iter::repeat_with(numbers(seed)).take(20).collect();
            if seed % 5 == 0 {
                (values[3], values[17]) = (NAN, NAN);
            }
            // Parts of 0 to 8 values: those with fewer than k have empty places.
            let bounds = [0, 0, 5, 8, 10, 18, 20];
            let row = |first: usize, values: &[f64]| {
                let mut top =
                    sorted(values).into_iter().map(|(value, index)| (value, index + first as f64)).collect::<Vec<_>>();
                top.resize(k.max(values.len()), (NEGATIVE, -1.0));
                top.truncate(k);
                let (values, indices): (Vec<f64>, Vec<f64>) = top.into_iter().unzip();
                [values, indices].concat()
            };
            let parts: Vec<Vec<f64>> = bounds.windows(2).map(|at| row(at[0], &values[at[0]..at[1]])).collect();
            let parts: Vec<&[f64]> = parts.iter().map(Vec::as_slice).collect();
            let bits =
                |row: Vec<f64>| row.into_iter().map(|x| if x.is_nan() { 1 } else { x.to_bits() }).collect::<Vec<_>>();
            assert_eq!(bits(merged::<f64>(top_k, 2 * k, &parts)), bits(row(0, &values)), "seed {seed}");
            assert_eq!(bits(merged::<f32>(top_k, 2 * k, &parts)), bits(row(0, &values)), "seed {seed}");
        }
    }

    #[test]
    fn attention_of_empty_parts_is_empty_and_large_scores_do_not_overflow() {
        let empty = merged::<f32>(logsumexp, 2, &[&[0.0, NEGATIVE], &[0.0, NEGATIVE]]);
        assert_eq!(empty, [0.0, NEGATIVE]);
        // The exponentials alone would overflow.
        let large = merged::<f32>(logsumexp, 2, &[&[1.0, 1000.0], &[3.0, 1000.0]]);
        assert!(large[0] == 2.0 && (large[1] - 1000.693).abs() < 1e-3);
    }

    #[test]
    #[should_panic = "a row of `disco.argmax` is a value and an index, and the last dimension is 3"]
    fn argmax_refuses_other_rows() {
        argmax(&mut [0f32; 3], &[0.0; 3], 3);
    }
}
