//! Every collective, dtype, reduction and root, in place and not, against the oracle.

use disco_core::{Communicator as _, CommunicatorExt, DType, Op, OpKind, Rank, Reduction, Tensor};
use disco_local::Communicator;

use crate::oracle;
use crate::{on_ranks, tensor};

const RANKS: [usize; 5] = [1, 2, 3, 4, 7];
const COUNTS: [usize; 5] = [0, 1, 3, 17, 1000];

/// One collective; `count` elements a block.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: OpKind,
    dtype: DType,
    count: usize,
    reduction: Reduction,
    root: usize,
    in_place: bool,
    size: usize,
}

/// What one rank calls, and the bytes that `result` begins with afterwards.
struct Part {
    op: Op,
    result: Option<Tensor>,
    expected: Vec<u8>,
}

impl Case {
    fn input(&self, rank: usize, count: usize) -> Vec<u8> {
        oracle::input(self.dtype, rank, count)
    }

    fn inputs(&self, count: usize) -> Vec<Vec<u8>> {
        (0..self.size).map(|rank| self.input(rank, count)).collect()
    }

    fn zeros(&self, count: usize) -> Tensor {
        Tensor::zeros(self.dtype, [count as i64]).unwrap()
    }

    fn tensor(&self, bytes: &[u8]) -> Tensor {
        tensor(self.dtype, bytes)
    }

    /// `count` elements from the `first`.
    fn cut(&self, bytes: &[u8], first: usize, count: usize) -> Vec<u8> {
        bytes[first * self.dtype.size()..][..count * self.dtype.size()].to_vec()
    }

    /// Zeros with `block` at element `first`, in place; zeros otherwise, with `block` as a source.
    fn gathered(&self, total: usize, first: usize, block: &[u8], in_place: bool) -> (Option<Tensor>, Tensor) {
        let dst = self.zeros(total);
        if !in_place {
            return (Some(self.tensor(block)), dst);
        }
        let at = first * self.dtype.size();
        dst.bytes_mut().unwrap()[at..at + block.len()].copy_from_slice(block);
        (None, dst)
    }

    /// `bytes` as a source with a destination of `count` elements; in place as the destination alone.
    fn mapped(&self, bytes: &[u8], count: usize) -> (Option<Tensor>, Tensor) {
        match self.in_place {
            true => (None, self.tensor(bytes)),
            false => (Some(self.tensor(bytes)), self.zeros(count)),
        }
    }

    /// Elements from rank to rank in an all-to-all V; symmetric in place.
    fn sent(&self, from: usize, to: usize) -> usize {
        let mixed = if self.in_place { from * to + from + to } else { 3 * from + 5 * to };
        (mixed + self.count) % (self.count + 1)
    }

    fn part(&self, me: usize) -> Part {
        let &Case { kind, dtype, count, reduction, root: root_index, size, in_place } = self;
        let root = Rank::new(root_index as u32);
        let at_root = me == root_index;
        let reduced = |count: usize| oracle::reduce(dtype, reduction, &self.inputs(count));
        match kind {
            OpKind::AllReduce => {
                let (src, dst) = self.mapped(&self.input(me, count), count);
                let result = Some(dst.clone());
                Part { op: Op::AllReduce { src, dst, reduction }, result, expected: reduced(count) }
            }
            OpKind::Reduce if at_root => {
                let (src, dst) = self.mapped(&self.input(me, count), count);
                let result = Some(dst.clone());
                Part { op: Op::Reduce { src, dst: Some(dst), reduction, root }, result, expected: reduced(count) }
            }
            OpKind::Reduce => {
                let src = self.tensor(&self.input(me, count));
                Part {
                    op: Op::Reduce { src: Some(src.clone()), dst: None, reduction, root },
                    result: Some(src),
                    expected: self.input(me, count),
                }
            }
            OpKind::ReduceScatter => {
                let (src, dst) = self.mapped(&self.input(me, size * count), count);
                let result = Some(dst.clone());
                let expected = self.cut(&reduced(size * count), me * count, count);
                Part { op: Op::ReduceScatter { src, dst, reduction }, result, expected }
            }
            OpKind::AllGather => {
                let (src, dst) = self.gathered(size * count, me * count, &self.input(me, count), in_place);
                let result = Some(dst.clone());
                Part { op: Op::AllGather { src, dst }, result, expected: self.inputs(count).concat() }
            }
            OpKind::Gather if at_root => {
                let (src, dst) = self.gathered(size * count, me * count, &self.input(me, count), in_place);
                let result = Some(dst.clone());
                Part { op: Op::Gather { src, dst: Some(dst), root }, result, expected: self.inputs(count).concat() }
            }
            OpKind::Gather => {
                let src = Some(self.tensor(&self.input(me, count)));
                Part { op: Op::Gather { src, dst: None, root }, result: None, expected: Vec::new() }
            }
            OpKind::Broadcast => {
                let (src, dst) = match at_root {
                    true => self.mapped(&self.input(me, count), count),
                    false => (None, self.zeros(count)),
                };
                let result = Some(dst.clone());
                Part { op: Op::Broadcast { src, dst, root }, result, expected: self.input(root_index, count) }
            }
            OpKind::Scatter => {
                let all = self.input(root_index, size * count);
                let expected = self.cut(&all, me * count, count);
                let src = at_root.then(|| self.tensor(&all));
                match at_root && in_place {
                    true => Part { op: Op::Scatter { src: src.clone(), dst: None, root }, result: src, expected: all },
                    false => {
                        let dst = self.zeros(count);
                        Part { op: Op::Scatter { src, dst: Some(dst.clone()), root }, result: Some(dst), expected }
                    }
                }
            }
            OpKind::AllToAll => {
                let (src, dst) = self.mapped(&self.input(me, size * count), size * count);
                let inputs = self.inputs(size * count);
                let expected = inputs.iter().flat_map(|input| self.cut(input, me * count, count)).collect();
                Part { op: Op::AllToAll { src, dst: dst.clone() }, result: Some(dst), expected }
            }
            OpKind::AllGatherV => {
                let counts: Vec<usize> = (0..size).map(|rank| (7 * rank + count) % (count + 1)).collect();
                let (first, total) = (counts[..me].iter().sum(), counts.iter().sum());
                let (src, dst) = self.gathered(total, first, &self.input(me, counts[me]), in_place);
                let result = Some(dst.clone());
                let expected = (0..size).flat_map(|rank| self.input(rank, counts[rank])).collect();
                Part { op: Op::AllGatherV { src, dst, counts: counts.into() }, result, expected }
            }
            OpKind::AllToAllV => {
                let sent = |from: usize| (0..size).map(|to| self.sent(from, to)).collect::<Vec<_>>();
                let received: Vec<usize> = (0..size).map(|from| self.sent(from, me)).collect();
                let input = |from: usize| self.input(from, sent(from).iter().sum());
                let (src, dst) = self.mapped(&input(me), received.iter().sum());
                let theirs = |from: usize| self.cut(&input(from), sent(from)[..me].iter().sum(), self.sent(from, me));
                let (send_counts, recv_counts) = (sent(me).into(), received.into());
                let op = Op::AllToAllV { src, send_counts, dst: dst.clone(), recv_counts };
                Part { op, result: Some(dst), expected: (0..size).flat_map(theirs).collect() }
            }
            other => panic!("{other} is no collective of elements"),
        }
    }

    fn run(&self, comm: &mut Communicator) {
        let part = self.part(comm.rank().index());
        comm.enqueue(&[part.op]).unwrap();
        if let Some(result) = part.result {
            let bytes = result.bytes().unwrap();
            assert!(bytes[..part.expected.len()] == part.expected, "{self:?} on {}", comm.rank());
        }
    }
}

fn run_all(kinds: &[OpKind], reductions: &[Reduction]) {
    for size in RANKS {
        on_ranks(size, |mut comm| {
            for (index, (dtype, count)) in DType::all().flat_map(|dtype| COUNTS.map(|count| (dtype, count))).enumerate()
            {
                for (&kind, &reduction) in kinds.iter().flat_map(|kind| reductions.iter().map(move |r| (kind, r))) {
                    if (dtype, reduction) == (DType::Bool, Reduction::Avg) {
                        continue;
                    }
                    for in_place in [false, true] {
                        let root = index % size;
                        Case { kind, dtype, count, reduction, root, in_place, size }.run(&mut comm);
                    }
                }
            }
        });
    }
}

#[test]
fn reductions_give_what_plain_loops_give() {
    run_all(&[OpKind::AllReduce, OpKind::Reduce, OpKind::ReduceScatter], &Reduction::ALL);
}

#[test]
fn movements_bring_every_byte_to_its_place() {
    let kinds = [
        OpKind::AllGather,
        OpKind::Broadcast,
        OpKind::Gather,
        OpKind::Scatter,
        OpKind::AllToAll,
        OpKind::AllGatherV,
        OpKind::AllToAllV,
    ];
    run_all(&kinds, &[Reduction::Sum]);
}

#[test]
fn tensors_of_several_blocks_are_whole() {
    let kinds = OpKind::ALL.into_iter().filter(|kind| !kind.is_point_to_point() && *kind != OpKind::Barrier);
    let kinds: Vec<OpKind> = kinds.collect();
    on_ranks(3, |mut comm| {
        for &kind in &kinds {
            let case = Case {
                kind,
                dtype: DType::F32,
                count: (1 << 18) + 5,
                reduction: Reduction::Sum,
                root: 1,
                in_place: kind == OpKind::AllToAll,
                size: 3,
            };
            case.run(&mut comm);
        }
    });
}

#[test]
fn collectives_of_a_group_run_in_order() {
    on_ranks(3, |mut comm| {
        let (x, all) = (tensor(DType::U8, &[1 + comm.rank().index() as u8]), tensor(DType::U8, &[0; 3]));
        let group = [
            Op::AllReduce { src: None, dst: x.clone(), reduction: Reduction::Sum },
            Op::Barrier,
            Op::AllGather { src: Some(x), dst: all.clone() },
        ];
        comm.enqueue(&group).unwrap();
        assert_eq!(all.to_vec::<u8>().unwrap(), [6, 6, 6]);
        comm.enqueue(&[]).unwrap();
        comm.synchronize().unwrap();
    });
}

#[test]
fn source_and_destination_may_be_the_same_elements() {
    on_ranks(3, |mut comm| {
        let x = tensor(DType::I8, &[1, 2, 3]);
        comm.all_reduce(&x, &x, Reduction::Sum).unwrap();
        assert_eq!(x.to_vec::<i8>().unwrap(), [3, 6, 9]);
        comm.reduce(&x, Some(&x), Reduction::Max, Rank::new(2)).unwrap();
        assert_eq!(x.to_vec::<i8>().unwrap(), [3, 6, 9]);
    });
}

#[test]
fn windows_of_one_storage_are_tensors_of_their_own() {
    on_ranks(2, |mut comm| {
        let all = tensor(DType::I32, bytemuck::cast_slice(&[1, 2, 0, 0]));
        let (src, dst) = (all.window(0, [2]).unwrap(), all.window(2, [2]).unwrap());
        comm.all_reduce(&src, &dst, Reduction::Prod).unwrap();
        assert_eq!(all.to_vec::<i32>().unwrap(), [1, 2, 1, 4]);
    });
}

#[test]
fn everything_is_supported_but_the_average_of_truths() {
    on_ranks(1, |comm| {
        let capabilities = comm.capabilities();
        for dtype in DType::all() {
            assert!(OpKind::ALL.into_iter().all(|op| capabilities.supports(op, dtype, None)));
            let avg = capabilities.supports(OpKind::Reduce, dtype, Some(Reduction::Avg));
            assert_eq!(avg, dtype != DType::Bool);
        }
    });
}
