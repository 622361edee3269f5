//! Collectives and transfers of compiled models.

use disco_core::function::{Args, BoxError};
use disco_core::{CommunicatorExt as _, Error, Object, Rank, Reduction, Result, Tensor, Value, WorkerContext};

use super::arguments::{number, scope, worker};

const ROOT: Rank = Rank::new(0);

/// TVM's reductions, by their numbers.
const REDUCTIONS: [Reduction; 5] = [Reduction::Sum, Reduction::Prod, Reduction::Min, Reduction::Max, Reduction::Avg];

fn reduction(number: i64) -> Result<Reduction> {
    let known = usize::try_from(number).ok().and_then(|number| REDUCTIONS.get(number));
    known.copied().ok_or_else(|| Error::invalid(format!("there is no reduction {number}: TVM has 0 to 4")))
}

/// The result of functions that return nothing.
fn none(done: Result<()>) -> Result<Object, BoxError> {
    Ok(done.map(|()| Value::None.into())?)
}

pub(super) fn all_reduce(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let (src, kind): (Tensor, _) = (args.take(0)?, reduction(number(args, 1)?)?);
    let (scope, dst): (_, Tensor) = (scope(args, 2)?, args.take(3)?);
    none(ctx.comm_in(&scope)?.all_reduce(&src, &dst, kind))
}

pub(super) fn all_gather(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let (src, scope, dst): (Tensor, _, Tensor) = (args.take(0)?, scope(args, 1)?, args.take(2)?);
    none(ctx.comm_in(&scope)?.all_gather(&src, &dst))
}

pub(super) fn broadcast_from_worker_0(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let (src, scope, dst): (Tensor, _, Tensor) = (args.take(0)?, scope(args, 1)?, args.take(2)?);
    let comm = ctx.comm_in(&scope)?;
    let src = (comm.rank() == ROOT).then_some(src);
    none(comm.enqueue(&[disco_core::Op::Broadcast { src, dst, root: ROOT }]))
}

pub(super) fn scatter_from_worker_0(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let (src, scope, dst): (Option<Tensor>, _, Tensor) = (args.take(0)?, scope(args, 1)?, args.take(2)?);
    let comm = ctx.comm_in(&scope)?;
    let src = src.filter(|_| comm.rank() == ROOT);
    none(comm.scatter(src.as_ref(), &dst, ROOT))
}

pub(super) fn gather_to_worker_0(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let (src, scope, dst): (Tensor, _, Option<Tensor>) = (args.take(0)?, scope(args, 1)?, args.take(2)?);
    let comm = ctx.comm_in(&scope)?;
    let dst = dst.filter(|_| comm.rank() == ROOT);
    none(comm.gather(&src, dst.as_ref(), ROOT))
}

pub(super) fn recv_from_worker_0(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    none(ctx.comm()?.recv(&args.take(0)?, ROOT))
}

pub(super) fn send_to_next_group(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    none(ctx.send_to_next_group(&args.take(0)?))
}

pub(super) fn recv_from_prev_group(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    none(ctx.recv_from_prev_group(&args.take(0)?))
}

pub(super) fn send_to_worker(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let (src, to): (Tensor, _) = (args.take(0)?, worker(args, 1)?);
    none(ctx.comm()?.send(&src, Rank::new(to.index() as u32)))
}

pub(super) fn recv_from_worker(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let (dst, from): (Tensor, _) = (args.take(0)?, worker(args, 1)?);
    none(ctx.comm()?.recv(&dst, Rank::new(from.index() as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_have_tvm_s_numbers() {
        let names = [0, 1, 2, 3, 4].map(|number| reduction(number).unwrap().name());
        assert_eq!(names, ["sum", "prod", "min", "max", "avg"]);
        for unknown in [-1, 5] {
            let text = reduction(unknown).unwrap_err().to_string();
            assert_eq!(text, format!("there is no reduction {unknown}: TVM has 0 to 4"));
        }
    }
}
