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
    /// The destination and its expected content; `None` if this rank receives nothing.
    result: Option<(Tensor, Content)>,
}

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
    let kind = OpKind::ALL.into_iter().find(|kind| kind.name() == op);
    let reduction: Reduction = reduction.parse()?;
    let comm = ctx.comm()?;
    let (me, size) = (comm.rank().index(), comm.size());
    let pattern = Pattern::new(dtype, reduction, size);
    let at_root = me == root.index();
    let all = size * count;
    // A tensor of zeros; `input` = (first, at, len) copies `len` elements of this rank's input, from `first` on, to
    // index `at`.
    let mut tensor = |len: usize, input: Option<(usize, usize, usize)>| -> Result<Tensor> {
        let host = Tensor::zeros(dtype, [len as i64])?;
        if let Some((first, at, len)) = input {
            let width = dtype.size();
            host.bytes_mut()?[at * width..][..len * width].copy_from_slice(&pattern.input(me, first, len));
        }
        let tensor = ctx.empty(dtype, [len as i64])?;
        ctx.queue().copy_in(&tensor, &host)?;
        Ok(tensor)
    };
    let whole = |len: usize| Some((0, 0, len));
    // Source and destination: in place, there is only a destination, which holds the input.
    let mut mapped = |from: usize, to: usize| -> Result<(Option<Tensor>, Tensor)> {
        match in_place {
            true => Ok((None, tensor(from, whole(from))?)),
            false => Ok((Some(tensor(from, whole(from))?), tensor(to, None)?)),
        }
    };
    let (op, content) = match kind {
        Some(OpKind::AllReduce) => {
            let (src, dst) = mapped(count, count)?;
            (Op::AllReduce { src, dst, reduction }, Some(Content::Reduced { first: 0 }))
        }
        Some(OpKind::Reduce) if at_root => {
            let (src, dst) = mapped(count, count)?;
            (Op::Reduce { src, dst: Some(dst), reduction, root }, Some(Content::Reduced { first: 0 }))
        }
        Some(OpKind::Reduce) => {
            (Op::Reduce { src: Some(tensor(count, whole(count))?), dst: None, reduction, root }, None)
        }
        Some(OpKind::ReduceScatter) => {
            let (src, dst) = mapped(all, count)?;
            (Op::ReduceScatter { src, dst, reduction }, Some(Content::Reduced { first: me * count }))
        }
        Some(OpKind::AllToAll) => {
            let (src, dst) = mapped(all, all)?;
            (Op::AllToAll { src, dst }, Some(Content::Blocks { first: me * count, block: count }))
        }
        Some(kind @ (OpKind::AllGather | OpKind::Gather)) if kind == OpKind::AllGather || at_root => {
            let (src, dst) = match in_place {
                true => (None, tensor(all, Some((0, me * count, count)))?),
                false => (Some(tensor(count, whole(count))?), tensor(all, None)?),
            };
            let op = match kind {
                OpKind::AllGather => Op::AllGather { src, dst },
                _ => Op::Gather { src, dst: Some(dst), root },
            };
            (op, Some(Content::Blocks { first: 0, block: count }))
        }
        Some(OpKind::Gather) => (Op::Gather { src: Some(tensor(count, whole(count))?), dst: None, root }, None),
        Some(OpKind::Broadcast) => {
            let (src, dst) = if at_root { mapped(count, count)? } else { (None, tensor(count, None)?) };
            (Op::Broadcast { src, dst, root }, Some(Content::Of { rank: root.index(), first: 0 }))
        }
        Some(OpKind::Scatter) => {
            let src = if at_root { Some(tensor(all, whole(all))?) } else { None };
            let dst = if at_root && in_place { None } else { Some(tensor(count, None)?) };
            (Op::Scatter { src, dst, root }, Some(Content::Of { rank: root.index(), first: me * count }))
        }
        Some(other) => return Err(Error::invalid(format!("bench: {other} is not measured"))),
        None => {
            let [next, previous] = [(me + 1) % size, (me + size - 1) % size];
            let (src, dst) = (tensor(count, whole(count))?, tensor(count, None)?);
            let group = vec![
                Op::Send { src, to: Rank::new(next as u32) },
                Op::Recv { dst: dst.clone(), from: Rank::new(previous as u32) },
            ];
            let result = Some((dst, Content::Of { rank: previous, first: 0 }));
            return Ok(Opaque::new(Job { group, pattern, result }));
        }
    };
    let result = op.dst().cloned().zip(content);
    Ok(Opaque::new(Job { group: vec![op], pattern, result }))
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
