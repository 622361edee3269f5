//! Elements for measurements: cheap to make and to check, at any size.

use disco_core::{DType, Reduction};

use crate::oracle::{Elements, Expected, Values};

/// After so many elements inputs repeat. A prime, so that no block of a usual size begins where another one does.
const PERIOD: usize = 251;

/// What the ranks of a collective put in, and what must come out: small whole numbers that repeat.
#[derive(Debug)]
pub struct Pattern {
    dtype: DType,
    /// By rank, one period.
    inputs: Vec<Vec<u8>>,
    reduced: Expected,
}

impl Pattern {
    /// The inputs of `size` ranks. What is not reduced may have any reduction.
    pub fn new(dtype: DType, reduction: Reduction, size: usize) -> Self {
        let input = |rank| Values::Whole.bytes(dtype, reduction, (rank, size), PERIOD, 0);
        let inputs: Vec<Vec<u8>> = (0..size).map(input).collect();
        let elements: Vec<Elements> = inputs.iter().map(|input| Elements::decode(dtype, input)).collect();
        // Vendors may multiply with the reciprocal of a number of ranks that has none.
        let exact = !dtype.is_float() || reduction != Reduction::Avg || size.is_power_of_two();
        Self { dtype, reduced: Expected::of(dtype, reduction, &elements, exact), inputs }
    }

    /// `count` elements of what `rank` puts in, from element `first` on.
    pub fn input(&self, rank: usize, first: usize, count: usize) -> Vec<u8> {
        let width = self.dtype.size();
        let start = first % PERIOD * width;
        self.inputs[rank].iter().copied().cycle().skip(start).take(count * width).collect()
    }

    /// How many elements of `bytes` are not those that `rank` puts in from element `first` on.
    pub fn wrong_inputs(&self, rank: usize, first: usize, bytes: &[u8]) -> usize {
        let width = self.dtype.size();
        let expected = |index: usize| &self.inputs[rank][(first + index) % PERIOD * width..][..width];
        bytes.chunks(width).enumerate().filter(|(index, element)| *element != expected(*index)).count()
    }

    /// How many elements of `bytes` are not the reduction of all inputs from element `first` on.
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
    fn wrong_elements_are_counted_from_any_place_on() {
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
