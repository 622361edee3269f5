//! Reductions of the program, directly and as steps of other collectives: results, mismatches, panics.

use std::iter;

use disco_core::op::{Steps, run_in_steps};
use disco_core::{Communicator as _, CommunicatorExt as _, DType, Error, Op, Rank, Reduction, Result, Tensor};
use disco_local::Communicator;
use proptest::prelude::*;

use super::{on_ranks, tensor};

const CHAIN: Reduction = Reduction::Custom("local.chain");

fn element(rank: usize, index: usize) -> i64 {
    ((rank * 1_000_003 + index) as i64).wrapping_mul(0x5851_f42d_4c95_7f2d)
}

fn input(rank: usize, count: usize) -> Vec<i64> {
    (0..count).map(|index| element(rank, index)).collect()
}

/// The inputs of all ranks, merged by plain loops.
fn expected(size: usize, count: usize, row: usize) -> Vec<i64> {
    let mut all = input(0, count);
    for rank in 1..size {
        let from = input(rank, count);
        all = (0..count)
            .map(|at| {
                let (start, index) = (at / row * row, at % row);
                let next = from[start + (index + 1) % row];
                all[at].wrapping_mul(31).wrapping_add(next).wrapping_add(index as i64)
            })
            .collect();
    }
    all
}

fn rows(elements: &[i64], row: usize) -> Tensor {
    tensor(DType::I64, bytemuck::cast_slice(elements)).window(0, [elements.len() / row, row]).unwrap()
}

/// One operation on all ranks of a communicator.
#[derive(Clone, Copy, Debug)]
struct Case {
    size: usize,
    /// 0: all-reduce, 1: reduce, 2: reduce-scatter.
    kind: u8,
    /// Rows of a block.
    rows: usize,
    row: usize,
    root: usize,
    /// A bit for each rank that is in place.
    in_place: u8,
    /// Whether the operation runs as steps.
    in_steps: bool,
}

/// A communicator that runs steps.
struct Stepped<'c>(&'c mut Communicator);

impl Steps for Stepped<'_> {
    fn run_step(&mut self, op: Op) -> Result<()> {
        self.0.enqueue(&[op])
    }
}

impl Case {
    fn run(self) {
        let count = self.rows * self.row;
        let expected = expected(self.size, if self.kind == 2 { self.size * count } else { count }, self.row);
        on_ranks(self.size, |mut comm| {
            let me = comm.rank().index();
            let (op, result, wanted) = self.op(me, &expected);
            // A group: the last operation must see the result of the one before.
            let group = [op, Op::Barrier];
            match self.in_steps {
                true => run_in_steps(&mut Stepped(&mut comm), Rank::new(me as u32), self.size, &group).unwrap(),
                false => comm.enqueue(&group).unwrap(),
            }
            if let Some(result) = result {
                assert!(result.to_vec::<i64>().unwrap().starts_with(wanted), "rank {me} of {self:?}");
            }
        });
    }

    /// The operation of a rank, its result, and what that must start with.
    fn op(self, me: usize, expected: &[i64]) -> (Op, Option<Tensor>, &[i64]) {
        let (count, row, reduction, root) = (self.rows * self.row, self.row, CHAIN, Rank::new(self.root as u32));
        let in_place = self.in_place >> me & 1 == 1;
        let out = || rows(&vec![0; count], row);
        match self.kind {
            2 => {
                let all = rows(&input(me, self.size * count), row);
                let (src, dst) = if in_place { (None, all) } else { (Some(all), out()) };
                let wanted = &expected[me * count..][..count];
                (Op::ReduceScatter { src, dst: dst.clone(), reduction }, Some(dst), wanted)
            }
            1 if me != self.root => {
                (Op::Reduce { src: Some(rows(&input(me, count), row)), dst: None, reduction, root }, None, &[])
            }
            kind => {
                let mine = rows(&input(me, count), row);
                let (src, dst) = if in_place { (None, mine) } else { (Some(mine), out()) };
                let op = match kind {
                    0 => Op::AllReduce { src, dst: dst.clone(), reduction },
                    _ => Op::Reduce { src, dst: Some(dst.clone()), reduction, root },
                };
                (op, Some(dst), expected)
            }
        }
    }
}

#[test]
fn each_operation_gives_what_plain_loops_give() {
    // Rows of a block and elements of a row: inside posts, beside them, in place or in several staged pieces, and rows
    // that have no room in a piece.
    let shapes = [(0, 3), (1, 1), (2, 3), (7, 5), (257, 4), (20_011, 3), (1, 9000), (3, 40_009)];
    for (index, (rows, row)) in shapes.into_iter().enumerate() {
        for (kind, in_place) in iter::zip([0, 1, 2, 0, 1, 2], [0, 0, 0, 7, 2, 5]) {
            for in_steps in [false, true] {
                Case { size: 3, kind, rows, row, root: index % 3, in_place, in_steps }.run();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn random_operations_give_what_plain_loops_give(
        (size, kind, in_place, in_steps) in (1..6_usize, 0..3_u8, any::<u8>(), any::<bool>()),
        (rows, row, root) in (prop_oneof![0..20_usize, 0..3000_usize], prop_oneof![1..5_usize, 1..200_usize], 0..5_usize),
    ) {
        Case { size, kind, rows, row, root: root % size, in_place, in_steps }.run();
    }
}

/// The error of each rank, all of whose communicators are broken.
fn errors(size: usize, call: impl Fn(&mut Communicator, usize) -> Result<()> + Sync) -> Vec<Error> {
    on_ranks(size, |mut comm| {
        let rank = comm.rank().index();
        let error = call(&mut comm, rank).unwrap_err();
        assert!(matches!(comm.barrier(), Err(Error::Broken { .. })));
        error
    })
}

#[test]
fn a_mismatch_names_reductions_and_rows() {
    let call = |name, shape: [usize; 2]| {
        move |comm: &mut Communicator| {
            let x = tensor(DType::I64, &[0; 96]).window(0, shape).unwrap();
            comm.all_reduce_in_place(&x, Reduction::Custom(name))
        }
    };
    let [first, second] =
        <[Error; 2]>::try_from(errors(2, |comm, rank| call("local.chain", [[3, 4], [6, 2]][rank])(comm))).unwrap();
    let sides = "rank 0 called all_reduce local.chain i64 x 12 in rows of 4, rank 1 called all_reduce local.chain i64 x 12 \
                 in rows of 2";
    assert_eq!(first.to_string(), format!("all_reduce: ranks disagree: {sides}"));
    assert_eq!(second.to_string(), first.to_string());
    let errors = errors(2, |comm, rank| call(["local.chain", "local.other"][rank], [3, 4])(comm));
    assert!(errors.iter().all(|error| error.to_string().contains("rank 1 called all_reduce local.other i64 x 12 in")));
}

#[test]
fn a_panic_ends_the_operation_on_all_ranks() {
    // Posted tensors, which all ranks merge; shares, of which one has the element; rows that have no room in a piece.
    for (count, row, in_steps) in [(4, 4, false), (30_000, 1, false), (40_000, 40_000, false), (30_000, 1, true)] {
        let found = errors(3, |comm, rank| {
            let mut elements = vec![0; count];
            if rank == 2 {
                elements[0] = -1;
            }
            let (dst, reduction) = (rows(&elements, row), Reduction::Custom("local.broken"));
            let group = [Op::AllReduce { src: None, dst, reduction }];
            match in_steps {
                true => run_in_steps(&mut Stepped(comm), Rank::new(rank as u32), 3, &group)
                    .inspect_err(|error| comm.aborter().abort(&format!("rank {rank}: {error}").into())),
                false => comm.enqueue(&group),
            }
        });
        let text = "all_reduce: the reduction `local.broken` panicked: no -1, please";
        for error in &found {
            match error {
                Error::Panicked { .. } => assert_eq!(error.to_string(), text),
                Error::Aborted { cause } => assert_eq!(cause.to_string(), format!("rank {}: {text}", culprit(&found))),
                other => panic!("{other:?}, {count} in rows of {row}"),
            }
        }
    }
}

/// The rank of the first panic: that of the only one, or of any.
fn culprit(errors: &[Error]) -> usize {
    errors.iter().position(|error| matches!(error, Error::Panicked { .. })).unwrap()
}
