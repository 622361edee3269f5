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

#[test]
fn floats_are_added_in_rank_order() {
    assert_eq!(all_reduce(Reduction::Sum, &[1e8f32, 1.0, -1e8]), 0.0);
    assert_eq!(all_reduce(Reduction::Sum, &[1e8f32, -1e8, 1.0]), 1.0);
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
    fn float_sums_have_the_bits_of_a_sequential_loop(elements in prop::collection::vec(any::<f32>(), 1..6)) {
        let sum = elements[1..].iter().fold(elements[0], |sum, x| sum + x);
        let found = all_reduce(Reduction::Sum, &elements);
        prop_assert!(found.to_bits() == sum.to_bits() || (found.is_nan() && sum.is_nan()));
    }
}
