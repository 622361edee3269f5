//! Series of collectives of all kinds and sizes, on tensors of which peers can access some.

use disco_core::{Communicator as _, DType, Op, Rank, Reduction, Tensor};

use super::{on_ranks, zeroed};

const RANKS: usize = 3;

/// A pseudo-random generator: one with the same seed on all ranks, and one for each rank.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize % sides
    }
}

/// Element `index` of the input of `rank` in operation `number`.
fn element(number: usize, rank: usize, index: usize) -> i32 {
    ((number * 31 + rank) * 7919 + index) as i32
}

#[test]
fn results_are_right_in_a_series_of_operations_that_reuse_staging_areas() {
    let wrong = on_ranks(RANKS, |mut comm| {
        let me = comm.rank().index();
        let (mut common, mut own) = (Dice(4711), Dice(me as u64 + 1));
        (0..300).find_map(|number| {
            let kind = common.roll(7);
            // Eager sizes, one piece of a staging area, and several pieces.
            let block = [5, 3000, 40_000, 150_000][common.roll(4)] + common.roll(100);
            let root = common.roll(RANKS);
            let (from, to) = match kind {
                0..3 => (1, 1),
                3 | 4 => (1, RANKS),
                _ => (RANKS, RANKS),
            };
            let mut tensor = |blocks: usize| match own.roll(2) {
                0 => zeroed(DType::I32, blocks * block),
                _ => Tensor::zeros(DType::I32, [(blocks * block) as i64]).unwrap(),
            };
            let (src, dst) = (tensor(from), tensor(to));
            let fill = |(index, cell): (usize, &mut i32)| *cell = element(number, me, index);
            src.view_mut::<i32>().unwrap().iter_mut().enumerate().for_each(fill);
            let (rank, reduction) = (Rank::new(root as u32), Reduction::Sum);
            let gathers = |index: usize| element(number, index / block, index % block);
            let sums = |index: usize| (0..RANKS).map(|rank| element(number, rank, index)).sum();
            let (is_root, source) = (me == root, src.clone());
            let (op, expected): (Op, &dyn Fn(usize) -> i32) = match kind {
                0 => (Op::AllReduce { src: Some(src), dst: dst.clone(), reduction }, &sums),
                1 => (Op::Reduce { src: Some(src), dst: is_root.then(|| dst.clone()), reduction, root: rank }, &sums),
                2 => {
                    let op = Op::Broadcast { src: is_root.then_some(src), dst: dst.clone(), root: rank };
                    (op, &|index| element(number, root, index))
                }
                3 => (Op::AllGather { src: Some(src), dst: dst.clone() }, &gathers),
                4 => (Op::Gather { src: Some(src), dst: is_root.then(|| dst.clone()), root: rank }, &gathers),
                _ => {
                    let op = Op::AllToAll { src: Some(src), dst: dst.clone() };
                    (op, &|index| element(number, index / block, me * block + index % block))
                }
            };
            let has_result = op.dst().is_some();
            comm.enqueue(&[op]).unwrap();
            // Overwrites the source, so that a late read by a peer gives a wrong result.
            source.view_mut::<i32>().unwrap().fill(-1);
            let result = dst.to_vec::<i32>().unwrap();
            let wrong = (0..result.len()).find(|&index| has_result && result[index] != expected(index))?;
            Some(format!("rank {me}, operation {number} of kind {kind}, blocks of {block}: element {wrong}"))
        })
    });
    assert_eq!(wrong, [const { None }; RANKS]);
}
