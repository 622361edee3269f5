//! Results do not depend on which ranks are on which machine: they have the bits of `local`.

use disco_core::{Communicator as _, CommunicatorExt as _, DType, Op, Rank, Reduction, Tensor};
use disco_tcp::Communicator;

use crate::ranks::{over_tcp, tensor};

/// The machine of each rank.
const PLACEMENTS: [&[usize]; 7] = [
    &[0, 1, 2],
    &[0, 0, 1, 1],
    &[0, 1, 0, 1],
    &[0, 0, 0, 1, 1],
    &[1, 0, 0, 0, 0, 0],
    &[0, 0, 0, 1, 1, 1, 2, 2, 2],
    &[0, 0, 0, 0],
];

/// Elements of a rank's block: a few, and as many as go in several pieces.
const COUNTS: [usize; 2] = [3, 70_001];

/// A rank's part of a tensor, whose elements have many sizes.
fn part(rank: usize, count: usize, dtype: DType) -> Vec<u8> {
    let mut state = rank as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 1e5 - 80.0
    };
    let element = |x: f32| match dtype {
        // The upper half of an f32.
        DType::BF16 => x.to_le_bytes()[2..].to_vec(),
        DType::I32 => (x as i32).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    };
    (0..count).flat_map(|_| element(next())).collect()
}

/// The reductions of all ranks' parts.
fn reduced(ranks: usize, count: usize, dtype: DType, reduction: Reduction) -> Vec<u8> {
    let parts: Vec<_> = (0..ranks).map(|rank| part(rank, count, dtype)).collect();
    let mut result = vec![0; count * dtype.size()];
    let inputs: Vec<_> = parts.iter().map(|part| Some(&**part)).collect();
    disco_local::reduce(dtype, reduction, &inputs, &mut result).unwrap();
    result
}

/// Checks each operation that has a schedule of its own for large tensors on one rank.
fn check(comm: &mut Communicator, count: usize, dtype: DType, reduction: Reduction) {
    let (me, ranks) = (comm.rank().index(), comm.size());
    let own = part(me, count, dtype);
    let is = |tensor: &Tensor, expected: &[u8], what: &str| {
        assert!(*tensor.bytes().unwrap() == *expected, "{what} of {count} x {dtype} by {reduction} on rank {me}");
    };
    let (src, dst) = (tensor(&own, dtype), Tensor::zeros(dtype, [count]).unwrap());
    let expected = reduced(ranks, count, dtype, reduction);

    comm.all_reduce(&src, &dst, reduction).unwrap();
    is(&dst, &expected, "all_reduce");
    is(&src, &own, "the input of all_reduce");
    comm.all_reduce_in_place(&src, reduction).unwrap();
    is(&src, &expected, "all_reduce in place");

    for root in [0, ranks - 1] {
        let (src, is_root, dst) = (tensor(&own, dtype), me == root, Tensor::zeros(dtype, [count]).unwrap());
        comm.reduce(&src, is_root.then_some(&dst), reduction, Rank::new(root as u32)).unwrap();
        is(&src, &own, "the input of reduce");
        let src = (!is_root).then(|| src.clone());
        let buffer = tensor(&own, dtype);
        let op = Op::Reduce { src, dst: is_root.then(|| buffer.clone()), reduction, root: Rank::new(root as u32) };
        comm.enqueue(&[op]).unwrap();
        if is_root {
            is(&dst, &expected, "reduce");
            is(&buffer, &expected, "reduce in place");
        }
        let buffer = tensor(&own, dtype);
        comm.broadcast(&buffer, Rank::new(root as u32)).unwrap();
        is(&buffer, &part(root, count, dtype), "broadcast");
    }

    let all = Tensor::zeros(dtype, [ranks * count]).unwrap();
    comm.all_gather(&tensor(&own, dtype), &all).unwrap();
    is(&all, &(0..ranks).flat_map(|rank| part(rank, count, dtype)).collect::<Vec<_>>(), "all_gather");

    let blocks = reduced(ranks, ranks * count, dtype, reduction);
    let mine = &blocks[me * own.len()..][..own.len()];
    let src = tensor(&part(me, ranks * count, dtype), dtype);
    comm.reduce_scatter(&src, &dst, reduction).unwrap();
    is(&dst, mine, "reduce_scatter");
    comm.enqueue(&[Op::ReduceScatter { src: None, dst: src.clone(), reduction }]).unwrap();
    assert!(src.bytes().unwrap()[..own.len()] == *mine, "reduce_scatter in place on rank {me}");
}

#[test]
fn bits_do_not_depend_on_the_machines_of_the_ranks() {
    for machines in PLACEMENTS {
        over_tcp(machines, |_, comm| {
            for count in COUNTS {
                for (dtype, reduction) in [
                    (DType::F32, Reduction::Sum),
                    (DType::BF16, Reduction::Sum),
                    (DType::BF16, Reduction::Avg),
                    (DType::I32, Reduction::Avg),
                    (DType::BF16, Reduction::Max),
                ] {
                    check(comm, count, dtype, reduction);
                }
            }
        });
    }
}
