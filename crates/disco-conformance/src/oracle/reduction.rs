//! Reductions as plain loops.

use disco_core::{DType, Reduction};

use super::elements::{Elements, wrap};
use super::rounding::Format;

/// The expected result of a reduction.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    /// Integers.
    Ints(Vec<i128>),
    /// Floats, each with its tolerance. NaN equals NaN.
    Floats(Vec<(f64, f64)>),
}

impl Expected {
    /// The reduction of the inputs of all ranks. An `exact` result has no tolerance.
    pub(crate) fn of(dtype: DType, reduction: Reduction, inputs: &[Elements], exact: bool) -> Self {
        let ints: Vec<&[i128]> = inputs.iter().filter_map(Elements::ints).collect();
        let floats: Vec<&[f64]> = inputs.iter().filter_map(Elements::floats).collect();
        match Format::of(dtype) {
            None => Self::Ints(columns(&ints, |column| wrap(dtype, reduce_ints(dtype, reduction, column)))),
            Some(format) => {
                let within = |column: &[f64], result: f64| {
                    if exact { 0.0 } else { tolerance(format, reduction, column, result) }
                };
                let reduce = |column: &[f64]| {
                    let result = reduce_floats(reduction, column);
                    (result, within(column, result))
                };
                Self::Floats(columns(&floats, reduce))
            }
        }
    }

    /// The inputs of all ranks, merged by the suite's own reduction of integers, in rows of `row` elements.
    pub(crate) fn of_chain(dtype: DType, row: usize, inputs: &[Elements]) -> Self {
        let ints: Vec<&[i128]> = inputs.iter().filter_map(Elements::ints).collect();
        let Some((first, others)) = ints.split_first() else { return Self::Ints(Vec::new()) };
        let mut merged = first.to_vec();
        for other in others {
            for (at, element) in merged.iter_mut().enumerate() {
                let index = at % row;
                let next = other[at - index + (index + 1) % row];
                *element = wrap(dtype, *element * 31 + next + index as i128);
            }
        }
        Self::Ints(merged)
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ints(ints) => ints.len(),
            Self::Floats(floats) => floats.len(),
        }
    }

    /// `count` elements from `first` on.
    pub(crate) fn cut(&self, first: usize, count: usize) -> Self {
        match self {
            Self::Ints(ints) => Self::Ints(ints[first..first + count].to_vec()),
            Self::Floats(floats) => Self::Floats(floats[first..first + count].to_vec()),
        }
    }

    /// The first element that is not as expected: its index and the expected value.
    pub(crate) fn first_wrong(&self, got: &Elements) -> Option<(usize, String)> {
        match (self, got) {
            (Self::Ints(expected), Elements::Ints(got)) => {
                let index = expected.iter().zip(got).position(|(expected, got)| expected != got)?;
                Some((index, expected[index].to_string()))
            }
            (Self::Floats(expected), Elements::Floats(got)) => {
                let index = expected.iter().zip(got).position(|(expected, got)| !is_within(*expected, *got))?;
                let (number, within) = expected[index];
                let within = if within > 0.0 { format!(" within {within:e}") } else { String::new() };
                Some((index, format!("{number}{within}")))
            }
            _ => Some((0, "elements of another kind".into())),
        }
    }
}

impl Elements {
    fn ints(&self) -> Option<&[i128]> {
        if let Self::Ints(ints) = self { Some(ints) } else { None }
    }

    fn floats(&self) -> Option<&[f64]> {
        if let Self::Floats(floats) = self { Some(floats) } else { None }
    }
}

fn is_within((number, distance): (f64, f64), got: f64) -> bool {
    // The difference of equal infinities is NaN.
    if number.is_nan() { got.is_nan() } else { got == number || (got - number).abs() <= distance }
}

/// `reduce` of the elements of all ranks at each index.
fn columns<T: Copy, R>(inputs: &[&[T]], reduce: impl Fn(&[T]) -> R) -> Vec<R> {
    let len = inputs.first().map_or(0, |first| first.len());
    let mut column = Vec::with_capacity(inputs.len());
    let reduced = |index: usize| {
        column.clear();
        column.extend(inputs.iter().map(|input| input[index]));
        reduce(&column)
    };
    (0..len).map(reduced).collect()
}

fn reduce_ints(dtype: DType, reduction: Reduction, column: &[i128]) -> i128 {
    let ranks = column.len() as i128;
    let column = column.iter().copied();
    match reduction {
        Reduction::Sum if dtype == DType::Bool => column.fold(0, |a, b| a | b),
        Reduction::Sum => column.sum(),
        Reduction::Prod => column.fold(1, i128::wrapping_mul),
        Reduction::Min => column.fold(i128::MAX, i128::min),
        Reduction::Max => column.fold(i128::MIN, i128::max),
        // Toward zero, as Rust divides.
        _ => column.sum::<i128>() / ranks,
    }
}

fn reduce_floats(reduction: Reduction, column: &[f64]) -> f64 {
    let floats = column.iter().copied();
    if matches!(reduction, Reduction::Min | Reduction::Max) && column.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    match reduction {
        Reduction::Sum => floats.sum(),
        Reduction::Prod => floats.product(),
        Reduction::Min => floats.fold(f64::INFINITY, f64::min),
        Reduction::Max => floats.fold(f64::NEG_INFINITY, f64::max),
        _ => floats.sum::<f64>() / column.len() as f64,
    }
}

/// The largest error of a reduction in any order whose steps are rounded to the type. Each of `n` steps adds at most
/// one roundoff of the largest partial result and half of the smallest number.
fn tolerance(format: Format, reduction: Reduction, column: &[f64], result: f64) -> f64 {
    let steps = column.len() as f64 + 1.0;
    let scale = match reduction {
        Reduction::Min | Reduction::Max => return 0.0,
        // An error by underflow is multiplied by the later factors.
        Reduction::Prod => return steps * (2.0 * result.abs() * format.roundoff() + 8.0 * format.smallest()),
        Reduction::Avg => 2.0 * column.iter().map(|x| x.abs()).sum::<f64>() / column.len() as f64,
        _ => 2.0 * column.iter().map(|x| x.abs()).sum::<f64>(),
    };
    steps * (scale * format.roundoff() + format.smallest())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced(dtype: DType, reduction: Reduction, ranks: &[f64]) -> Expected {
        let inputs: Vec<Elements> = ranks
            .iter()
            .map(|x| Elements::decode(dtype, &super::super::elements::encode(dtype, *x).to_le_bytes()[..dtype.size()]))
            .collect();
        Expected::of(dtype, reduction, &inputs, true)
    }

    #[test]
    fn integers_wrap_and_averages_go_toward_zero() {
        assert!(matches!(reduced(DType::I8, Reduction::Sum, &[127.0, 1.0]), Expected::Ints(x) if x == [-128]));
        assert!(matches!(reduced(DType::I32, Reduction::Avg, &[-3.0, -4.0]), Expected::Ints(x) if x == [-3]));
        assert!(matches!(reduced(DType::Bool, Reduction::Sum, &[1.0, 1.0]), Expected::Ints(x) if x == [1]));
        assert!(matches!(reduced(DType::Bool, Reduction::Prod, &[1.0, 0.0]), Expected::Ints(x) if x == [0]));
    }

    #[test]
    fn a_nan_is_expected_and_a_wrong_element_is_found() {
        let nan = reduced(DType::F32, Reduction::Max, &[f64::NAN, 1.0]);
        assert_eq!(nan.first_wrong(&Elements::Floats(vec![1.0])), Some((0, "NaN".into())));
        assert_eq!(nan.first_wrong(&Elements::Floats(vec![f64::NAN])), None);
        let sum = reduced(DType::F32, Reduction::Sum, &[1.0, 2.0]);
        assert_eq!(sum.first_wrong(&Elements::Floats(vec![3.5])), Some((0, "3".into())));
    }
}
