//! Operations that some ranks run in place and other ranks out of place.

use disco_core::{Communicator as _, CommunicatorExt as _, DType, Op, Tensor};

use super::{on_ranks, tensor, zeroed};

/// Elements of a block: one size for eager collectives, one for zero-copy collectives.
const BLOCKS: [usize; 2] = [3, 5000];
const RANKS: usize = 3;

/// Element `index` of the input of `rank`.
fn element(rank: usize, index: usize) -> i32 {
    (rank * 1_000_000 + index) as i32
}

fn input(rank: usize, count: usize) -> Tensor {
    let elements: Vec<i32> = (0..count).map(|index| element(rank, index)).collect();
    tensor(DType::I32, bytemuck::cast_slice(&elements))
}

/// Runs an operation once for each subset of ranks that are in place. `op` makes the operation of a rank from its
/// source (none in place) and its destination. Afterwards, element `index` of the destination of `rank` must be
/// `expected(rank, index)`.
fn run(
    block: usize,
    sizes: (usize, usize),
    op: impl Fn(Option<Tensor>, Tensor) -> Op + Sync,
    expected: impl Fn(usize, usize) -> i32 + Sync,
) {
    for in_place in 0..1 << RANKS {
        on_ranks(RANKS, |mut comm| {
            let me = comm.rank().index();
            let (from, to) = (sizes.0 * block, sizes.1 * block);
            let (src, dst) = match in_place >> me & 1 {
                1 => (None, input(me, from)),
                _ => (Some(input(me, from)), zeroed(DType::I32, to)),
            };
            comm.enqueue(&[op(src, dst.clone())]).unwrap();
            let result = dst.to_vec::<i32>().unwrap();
            let wrong = (0..to).find(|&index| result[index] != expected(me, index));
            assert_eq!(wrong, None, "rank {me} of in place {in_place:03b}, blocks of {block}");
        });
    }
}

#[test]
fn exchanges_reach_every_block() {
    for block in BLOCKS {
        let expected = |me: usize, index: usize| element(index / block, me * block + index % block);
        run(block, (RANKS, RANKS), |src, dst| Op::AllToAll { src, dst }, expected);
        let counts = [block; RANKS];
        let uneven = |src, dst| Op::AllToAllV { src, dst, send_counts: counts.into(), recv_counts: counts.into() };
        run(block, (RANKS, RANKS), uneven, expected);
    }
}

/// An empty window has the address of its tensor, but the exchange is not in place.
#[test]
fn a_pure_sender_and_a_pure_receiver_have_one_buffer_each() {
    for count in [3, 5000] {
        let results = on_ranks(2, |mut comm| {
            let me = comm.rank().index();
            let all = input(me, count);
            let none = all.window(0, [0]).unwrap();
            let (src, dst) = if me == 0 { (none, all.clone()) } else { (all.clone(), none) };
            let (sent, received) = if me == 0 { ([0, 0], [0, count]) } else { ([count, 0], [0, 0]) };
            comm.all_to_all_v((&src, &sent), (&dst, &received)).unwrap();
            all.to_vec::<i32>().unwrap()
        });
        assert!(results.iter().all(|result| result.iter().enumerate().all(|(i, x)| *x == element(1, i))));
    }
}
