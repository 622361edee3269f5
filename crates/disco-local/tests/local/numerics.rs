//! Rounding, wrapping and NaN in reductions.

use disco_core::Communicator as _;
use disco_core::{CommunicatorExt, Element, Reduction};
use proptest::prelude::*;

use super::{on_ranks, tensor, zeroed};

/// The all-reduce of one element for each rank. Checks that all ranks get the same bits.
fn all_reduce<T: Element + PartialEq + std::fmt::Debug>(reduction: Reduction, elements: &[T]) -> T {
    let results = on_ranks(elements.len(), |mut comm| {
        let x = tensor(T::DTYPE, bytemuck::bytes_of(&elements[comm.rank().index()]));
        comm.all_reduce_in_place(&x, reduction).unwrap();
        x.to_vec::<T>().unwrap()[0]
    });
    let bits = |x: &T| bytemuck::bytes_of(x).to_vec();
    assert!(results.iter().all(|x| bits(x) == bits(&results[0])), "{results:?}");
    results[0]
}

/// The sum of a binary tree, whose left branch has the largest power of two below the number of elements.
fn tree(elements: &[f32]) -> f32 {
    match *elements {
        [element] => element,
        _ => {
            let (left, right) = elements.split_at(elements.len().next_power_of_two() / 2);
            tree(left) + tree(right)
        }
    }
}

#[test]
fn floats_are_added_in_a_tree_over_the_ranks() {
    assert_eq!(all_reduce(Reduction::Sum, &[1e8f32, 1.0, -1e8]), 0.0);
    assert_eq!(all_reduce(Reduction::Sum, &[1e8f32, -1e8, 1.0]), 1.0);
    assert_eq!(all_reduce(Reduction::Sum, &[1e8f32, 1.0, -1e8, 1.0]), 0.0);
    assert_eq!(all_reduce(Reduction::Sum, &[1e16f64, 1.0, -1e16]), 0.0);
}

#[test]
fn any_byte_but_zero_is_true() {
    let results = on_ranks(2, |mut comm| {
        let x = tensor(disco_core::DType::Bool, &[[2, 0, 255, 0], [0, 0, 3, 1]][comm.rank().index()]);
        let [or, and] = [Reduction::Sum, Reduction::Prod].map(|reduction| {
            let dst = zeroed(disco_core::DType::Bool, 4);
            comm.all_reduce(&x, &dst, reduction).unwrap();
            dst.to_vec::<u8>().unwrap()
        });
        (or, and)
    });
    assert_eq!(results, vec![(vec![1, 0, 1, 1], vec![0, 0, 1, 0]); 2]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn float_sums_have_the_bits_of_the_tree(elements in prop::collection::vec(any::<f32>(), 1..9)) {
        let sum = tree(&elements);
        let found = all_reduce(Reduction::Sum, &elements);
        prop_assert!(found.to_bits() == sum.to_bits() || (found.is_nan() && sum.is_nan()));
    }
}
