//! Inputs and expected results of benchmarks, which are cheap to make and to check at any size.

use disco_core::{DType, Reduction};

use crate::oracle::{Elements, Expected, Values};

/// Inputs repeat after this number of elements. It is a prime, so that blocks of usual sizes begin at different
/// elements.
const PERIOD: usize = 251;

/// The inputs and the expected result of a collective: small whole numbers that repeat.
#[derive(Debug)]
pub struct Pattern {
    dtype: DType,
    /// By rank, one period.
    inputs: Vec<Vec<u8>>,
    reduced: Expected,
}

impl Pattern {
    /// The inputs of `size` ranks. `reduction` is ignored by operations that don't reduce.
    pub fn new(dtype: DType, reduction: Reduction, size: usize) -> Self {
        let input = |rank| Values::Whole.bytes(dtype, reduction, (rank, size), PERIOD, 0);
        let inputs: Vec<Vec<u8>> = (0..size).map(input).collect();
        let elements: Vec<Elements> = inputs.iter().map(|input| Elements::decode(dtype, input)).collect();
        // For averages, vendors may multiply by the reciprocal of the number of ranks, which may not be exact.
        let exact = !dtype.is_float() || reduction != Reduction::Avg || size.is_power_of_two();
        Self { dtype, reduced: Expected::of(dtype, reduction, &elements, exact), inputs }
    }

    /// `count` elements of the input of `rank`, from element `first` on.
    pub fn input(&self, rank: usize, first: usize, count: usize) -> Vec<u8> {
        let width = self.dtype.size();
        let start = first % PERIOD * width;
        self.inputs[rank].iter().copied().cycle().skip(start).take(count * width).collect()
    }

    /// The number of elements in `bytes` that differ from the input of `rank` from element `first` on.
    pub fn wrong_inputs(&self, rank: usize, first: usize, bytes: &[u8]) -> usize {
        let width = self.dtype.size();
        let expected = |index: usize| &self.inputs[rank][(first + index) % PERIOD * width..][..width];
        bytes.chunks(width).enumerate().filter(|(index, element)| *element != expected(*index)).count()
    }

    /// The number of elements in `bytes` that differ from the reduction of all inputs from element `first` on.
    pub fn wrong_results(&self, first: usize, bytes: &[u8]) -> usize {
        let mut right: Vec<Option<&[u8]>> = vec![None; PERIOD];
        let mut is_wrong = |(index, element)| {
            let place: usize = (first + index) % PERIOD;
            if right[place] == Some(element) {
                return false;
            }
            let wrong = self.reduced.cut(place, 1).first_wrong(&Elements::decode(self.dtype, element)).is_some();
            if !wrong {
                right[place] = Some(element);
            }
            wrong
        };
        bytes.chunks(self.dtype.size()).enumerate().filter(|element| is_wrong(*element)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_elements_are_counted_from_any_offset() {
        let pattern = Pattern::new(DType::I32, Reduction::Sum, 2);
        let inputs: Vec<Vec<i32>> = (0..2)
            .map(|rank| {
                pattern.input(rank, 7, 600).chunks(4).map(|x| i32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
            })
            .collect();
        assert_eq!(pattern.wrong_inputs(1, 7, bytes_of(&inputs[1]).as_slice()), 0);
        let mut sums: Vec<i32> = inputs[0].iter().zip(&inputs[1]).map(|(a, b)| a + b).collect();
        assert_eq!(pattern.wrong_results(7, &bytes_of(&sums)), 0);
        sums[3] += 1;
        sums[599] += 1;
        assert_eq!(pattern.wrong_results(7, &bytes_of(&sums)), 2);
        assert!(pattern.wrong_results(8, &bytes_of(&sums)) > 2);
    }

    fn bytes_of(numbers: &[i32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }
}
