//! The worker functions of `disco bench`: prepare an operation, verify its result, and time iterations of it.

use std::rc::Rc;
use std::time::Instant;

use disco::{
    CommunicatorExt as _, DType, Error, Op, OpKind, Opaque, Rank, Reduction, Result, Tensor, Value, WorkerContext,
};
use disco_conformance::Pattern;

pub(super) const PREPARE: &str = "disco-cli.bench.prepare";
pub(super) const VERIFY: &str = "disco-cli.bench.verify";
pub(super) const RUN: &str = "disco-cli.bench.run";

disco::register_function!(PREPARE, prepare);
disco::register_function!(VERIFY, verify);
disco::register_function!(RUN, run);

/// One rank's part in the measured operation.
struct Job {
    group: Vec<Op>,
    pattern: Pattern,
    result: Received,
}

/// A destination and its expected content; `None` if the rank receives nothing.
type Received = Option<(Tensor, Content)>;

/// Expected content of a destination. `first` is the index of the first element in the source.
#[derive(Clone, Copy)]
enum Content {
    /// The reduction over all ranks, from element `first` on.
    Reduced { first: usize },
    /// The input of `rank`, from element `first` on.
    Of { rank: usize, first: usize },
    /// One block of `block` elements from each rank, each from element `first` of that rank's input on.
    Blocks { first: usize, block: usize },
}

/// Makes a rank's [`Job`]. `count` is the number of elements per block if the operation has blocks, else in total. An
/// `op` that names no collective is a ring of transfers: each rank sends to the next.
fn prepare(ctx: &mut WorkerContext, op: String, plan: disco::Shape, reduction: String, dtype: DType) -> Result<Opaque> {
    let [count, root, in_place] = plan[..] else { return Err(Error::invalid("bench: a plan has 3 numbers")) };
    let (count, root, in_place) = (count as usize, Rank::new(root as u32), in_place != 0);
    let reduction: Reduction = reduction.parse()?;
    let comm = ctx.comm()?;
    let (me, size) = (comm.rank().index(), comm.size());
    let pattern = Pattern::new(dtype, reduction, size);
    let mut maker = Maker { ctx, pattern, dtype, me, size, count, root, in_place };
    let (group, result) = match OpKind::ALL.into_iter().find(|kind| kind.name() == op) {
        Some(kind) => {
            let (op, content) = maker.collective(kind, reduction)?;
            let result = op.dst().cloned().zip(content);
            (vec![op], result)
        }
        None => maker.ring()?,
    };
    Ok(Opaque::new(Job { group, pattern: maker.pattern, result }))
}

/// Makes the tensors of a rank.
struct Maker<'a> {
    ctx: &'a mut WorkerContext,
    pattern: Pattern,
    dtype: DType,
    me: usize,
    size: usize,
    count: usize,
    root: Rank,
    in_place: bool,
}

impl Maker<'_> {
    fn collective(&mut self, kind: OpKind, reduction: Reduction) -> Result<(Op, Option<Content>)> {
        let &mut Self { me, size, count, root, in_place, .. } = self;
        let (all, at_root) = (size * count, me == root.index());
        Ok(match kind {
            OpKind::AllReduce => {
                let (src, dst) = self.mapped(count, count)?;
                (Op::AllReduce { src, dst, reduction }, Some(Content::Reduced { first: 0 }))
            }
            OpKind::Reduce if at_root => {
                let (src, dst) = self.mapped(count, count)?;
                (Op::Reduce { src, dst: Some(dst), reduction, root }, Some(Content::Reduced { first: 0 }))
            }
            OpKind::Reduce => (Op::Reduce { src: Some(self.input(count)?), dst: None, reduction, root }, None),
            OpKind::ReduceScatter => {
                let (src, dst) = self.mapped(all, count)?;
                (Op::ReduceScatter { src, dst, reduction }, Some(Content::Reduced { first: me * count }))
            }
            OpKind::AllToAll => {
                let (src, dst) = self.mapped(all, all)?;
                (Op::AllToAll { src, dst }, Some(Content::Blocks { first: me * count, block: count }))
            }
            OpKind::AllGather => {
                let (src, dst) = self.gathered()?;
                (Op::AllGather { src, dst }, Some(Content::Blocks { first: 0, block: count }))
            }
            OpKind::Gather if at_root => {
                let (src, dst) = self.gathered()?;
                (Op::Gather { src, dst: Some(dst), root }, Some(Content::Blocks { first: 0, block: count }))
            }
            OpKind::Gather => (Op::Gather { src: Some(self.input(count)?), dst: None, root }, None),
            OpKind::Broadcast => {
                let (src, dst) = if at_root { self.mapped(count, count)? } else { (None, self.zeros(count)?) };
                (Op::Broadcast { src, dst, root }, Some(Content::Of { rank: root.index(), first: 0 }))
            }
            OpKind::Scatter => {
                let src = if at_root { Some(self.input(all)?) } else { None };
                let dst = if at_root && in_place { None } else { Some(self.zeros(count)?) };
                (Op::Scatter { src, dst, root }, Some(Content::Of { rank: root.index(), first: me * count }))
            }
            other => return Err(Error::invalid(format!("bench: {other} is not measured"))),
        })
    }

    /// A transfer to the next rank, and one from the previous rank.
    fn ring(&mut self) -> Result<(Vec<Op>, Received)> {
        let &mut Self { me, size, count, .. } = self;
        let [next, previous] = [(me + 1) % size, (me + size - 1) % size];
        let (src, dst) = (self.input(count)?, self.zeros(count)?);
        let send = Op::Send { src, to: Rank::new(next as u32) };
        let receive = Op::Recv { dst: dst.clone(), from: Rank::new(previous as u32) };
        Ok((vec![send, receive], Some((dst, Content::Of { rank: previous, first: 0 }))))
    }

    /// Source and destination: in place, there is only a destination, which holds the input.
    fn mapped(&mut self, from: usize, to: usize) -> Result<(Option<Tensor>, Tensor)> {
        let input = self.input(from)?;
        if self.in_place { Ok((None, input)) } else { Ok((Some(input), self.zeros(to)?)) }
    }

    /// The source of one block, and the destination of all: in place, the input is a block of the destination.
    fn gathered(&mut self) -> Result<(Option<Tensor>, Tensor)> {
        let (count, all) = (self.count, self.size * self.count);
        if self.in_place {
            let (bytes, first) = (self.pattern.input(self.me, 0, count), self.me * count);
            return Ok((None, self.tensor(all, first, &bytes)?));
        }
        Ok((Some(self.input(count)?), self.zeros(all)?))
    }

    /// This rank's input.
    fn input(&mut self, len: usize) -> Result<Tensor> {
        let bytes = self.pattern.input(self.me, 0, len);
        self.tensor(len, 0, &bytes)
    }

    fn zeros(&mut self, len: usize) -> Result<Tensor> {
        self.tensor(len, 0, &[])
    }

    /// A tensor of zeros, with `bytes` from element `at` on.
    fn tensor(&mut self, len: usize, at: usize, bytes: &[u8]) -> Result<Tensor> {
        let host = Tensor::zeros(self.dtype, [len as i64])?;
        host.bytes_mut()?[at * self.dtype.size()..][..bytes.len()].copy_from_slice(bytes);
        let tensor = self.ctx.empty(self.dtype, [len as i64])?;
        self.ctx.queue().copy_in(&tensor, &host)?;
        Ok(tensor)
    }
}

/// Runs the operation once and returns the number of wrong elements.
fn verify(ctx: &mut WorkerContext, job: Rc<Job>) -> Result<i64> {
    let comm = ctx.comm()?;
    comm.enqueue(&job.group)?;
    comm.synchronize()?;
    let Some((tensor, content)) = &job.result else { return Ok(0) };
    let host = Tensor::zeros(tensor.dtype(), tensor.shape().clone())?;
    ctx.queue().copy_out(&host, tensor)?;
    let deadline = ctx.deadline();
    ctx.queue().synchronize(deadline)?;
    let bytes = host.bytes()?;
    let (pattern, width) = (&job.pattern, tensor.dtype().size());
    let wrong = match *content {
        // The destination of an in-place reduce-scatter is longer than its result.
        Content::Reduced { first } => {
            let size = ctx.comm()?.size();
            let len = match &job.group[0] {
                Op::ReduceScatter { src: None, .. } => bytes.len() / size,
                _ => bytes.len(),
            };
            pattern.wrong_results(first, &bytes[..len])
        }
        Content::Of { rank, first } => pattern.wrong_inputs(rank, first, &bytes),
        Content::Blocks { first, block } => {
            let blocks = bytes.chunks((block * width).max(1)).enumerate();
            blocks.map(|(rank, bytes)| pattern.wrong_inputs(rank, first, bytes)).sum()
        }
    };
    Ok(wrong as i64)
}

/// Runs `warm_up` iterations, then `iters` timed ones; returns the seconds of the timed ones on this rank.
fn run(ctx: &mut WorkerContext, job: Rc<Job>, warm_up: u64, iters: u64) -> Result<Value> {
    let comm = ctx.comm()?;
    for _ in 0..warm_up {
        comm.enqueue(&job.group)?;
    }
    comm.synchronize()?;
    comm.barrier()?;
    comm.synchronize()?;
    let start = Instant::now();
    for _ in 0..iters {
        comm.enqueue(&job.group)?;
    }
    comm.synchronize()?;
    Ok(Value::Float(start.elapsed().as_secs_f64()))
}
