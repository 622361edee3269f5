//! The worker functions of the data plane, `disco.…`. [`methods`](super::methods) documents and calls them.

use super::table::{PlaneFunction, data_plane_functions};
use crate::activity::TimeLimit;
use crate::backend::{self, Rendezvous};
use crate::communicator::CommunicatorExt;
use crate::context::WorkerContext;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::op::{Op, Reduction};
use crate::register_function;
use crate::scope::Scope;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Registers the functions below, with one row of the table for each.
macro_rules! register {
    ($($variant:ident $function:ident,)*) => {
        $(register_function!(PlaneFunction::$variant.name(), $function, limit: TimeLimit::Own);)*
    };
}

data_plane_functions!(register);

/// Makes the communicators. `ordinals` has one entry per worker. If it is empty, the i-th worker of a machine takes
/// device i, and a worker of a subset that of the worker it runs beside; with host backends, all workers take the host.
fn init_ccl(ctx: &mut WorkerContext, name: String, at: Vec<u8>, ordinals: Shape) -> Result<()> {
    let backend = backend::find(&name)?;
    let worker = ctx.worker().index();
    let kind = backend.device_kind();
    let device = match ordinals.get(worker) {
        _ if Device::new(kind, 0).is_host() => Device::CPU,
        None => Device::new(kind, ctx.link().default_ordinal(worker % ctx.world().per_node())),
        Some(ordinal) => {
            let refused = |_| Error::invalid(format!("{ordinal} is no device ordinal"));
            Device::new(kind, i32::try_from(*ordinal).map_err(refused)?)
        }
    };
    ctx.connect(backend, &Rendezvous::new(at)?, device)
}

fn is_whole(ctx: &mut WorkerContext) -> Result<bool> {
    ctx.has_whole_communicators()
}

fn empty(
    ctx: &mut WorkerContext,
    dtype: DType,
    shape: Shape,
    only_root: bool,
    in_group: bool,
) -> Result<Option<Tensor>> {
    if only_root && !is_root(ctx, in_group) { Ok(None) } else { ctx.empty(dtype, shape).map(Some) }
}

fn broadcast_from(ctx: &mut WorkerContext, src: Option<Tensor>, dst: Tensor, root: u32, scope: Scope) -> Result<()> {
    rooted(ctx, root, scope, |root, is_root| Op::Broadcast { src: src.filter(|_| is_root), dst, root })
}

fn scatter_from(
    ctx: &mut WorkerContext,
    src: Option<Tensor>,
    dst: Option<Tensor>,
    root: u32,
    scope: Scope,
) -> Result<()> {
    rooted(ctx, root, scope, |root, is_root| Op::Scatter { src: src.filter(|_| is_root), dst, root })
}

fn gather_to(ctx: &mut WorkerContext, src: Tensor, dst: Option<Tensor>, root: u32, scope: Scope) -> Result<()> {
    rooted(ctx, root, scope, |root, is_root| Op::Gather { src: Some(src), dst: dst.filter(|_| is_root), root })
}

fn reduce(
    ctx: &mut WorkerContext,
    src: Tensor,
    dst: Option<Tensor>,
    reduction: String,
    root: u32,
    scope: Scope,
) -> Result<()> {
    let reduction: Reduction = reduction.parse()?;
    let op = |root, is_root| Op::Reduce { src: Some(src), dst: dst.filter(|_| is_root), reduction, root };
    rooted(ctx, root, scope, op)
}

fn all_reduce(ctx: &mut WorkerContext, src: Tensor, dst: Tensor, reduction: String, scope: Scope) -> Result<()> {
    let reduction: Reduction = reduction.parse()?;
    ctx.comm_in(&scope)?.all_reduce(&src, &dst, reduction)
}

fn all_gather(ctx: &mut WorkerContext, src: Tensor, dst: Tensor, scope: Scope) -> Result<()> {
    ctx.comm_in(&scope)?.all_gather(&src, &dst)
}

/// `counts` has one count per rank.
fn all_gather_v(ctx: &mut WorkerContext, src: Tensor, dst: Tensor, counts: Shape, scope: Scope) -> Result<()> {
    let counts = elements(PlaneFunction::AllGatherV, counts.iter())?;
    ctx.comm_in(&scope)?.all_gather_v(&src, &dst, &counts)
}

fn reduce_scatter(ctx: &mut WorkerContext, src: Tensor, dst: Tensor, reduction: String, scope: Scope) -> Result<()> {
    let reduction: Reduction = reduction.parse()?;
    ctx.comm_in(&scope)?.reduce_scatter(&src, &dst, reduction)
}

fn all_to_all(ctx: &mut WorkerContext, src: Tensor, dst: Tensor, scope: Scope) -> Result<()> {
    ctx.comm_in(&scope)?.all_to_all(&src, &dst)
}

/// `counts` concatenates the rows of all sending ranks.
fn all_to_all_v(ctx: &mut WorkerContext, src: Tensor, dst: Tensor, counts: Shape, scope: Scope) -> Result<()> {
    let name = PlaneFunction::AllToAllV;
    let comm = ctx.comm_in(&scope)?;
    let (rank, size) = (comm.rank().index(), comm.size());
    if counts.len() != size * size {
        let (method, given) = (name.method(), counts.len());
        return Err(Error::invalid(format!("{method}: {given} counts, expected {size} x {size} for {size} ranks")));
    }
    let send = elements(name, counts.iter().skip(rank * size).take(size))?;
    let recv = elements(name, counts.iter().skip(rank).step_by(size))?;
    comm.all_to_all_v((&src, &send), (&dst, &recv))
}

fn barrier(ctx: &mut WorkerContext, scope: Scope) -> Result<()> {
    ctx.comm_in(&scope)?.barrier()
}

/// Does nothing on workers without a receiver: all workers run the same call.
fn send_to_next_group(ctx: &mut WorkerContext, src: Tensor) -> Result<()> {
    if ctx.group().index() + 1 < ctx.world().groups() { ctx.send_to_next_group(&src) } else { Ok(()) }
}

fn recv_from_prev_group(ctx: &mut WorkerContext, dst: Tensor) -> Result<()> {
    if ctx.group().index() > 0 { ctx.recv_from_prev_group(&dst) } else { Ok(()) }
}

fn send_to_worker(ctx: &mut WorkerContext, src: Option<Tensor>, from: u32, to: u32) -> Result<()> {
    match src {
        _ if ctx.worker() != from.into() => Ok(()),
        Some(src) => ctx.comm()?.send(&src, to.into()),
        None => Err(Error::invalid("the sender has no tensor to send")),
    }
}

fn recv_from_worker(ctx: &mut WorkerContext, dst: Option<Tensor>, from: u32, to: u32) -> Result<()> {
    match dst {
        _ if ctx.worker() != to.into() => Ok(()),
        Some(dst) => ctx.comm()?.recv(&dst, from.into()),
        None => Err(Error::invalid("the receiver has no tensor to receive into")),
    }
}

/// Runs an operation with a root. `make` gets the root and whether this worker is the root.
fn rooted(ctx: &mut WorkerContext, root: u32, scope: Scope, make: impl FnOnce(Rank, bool) -> Op) -> Result<()> {
    let comm = ctx.comm_in(&scope)?;
    let root = Rank::new(root);
    let op = make(root, comm.rank() == root);
    comm.enqueue(&[op])
}

/// Converts counts of elements.
fn elements<'a>(function: PlaneFunction, counts: impl Iterator<Item = &'a i64>) -> Result<Vec<usize>> {
    let refused = |count| Error::invalid(format!("{}: {count} is no number of elements", function.method()));
    counts.map(|count| usize::try_from(*count).map_err(|_| refused(count))).collect()
}

fn is_root(ctx: &WorkerContext, in_group: bool) -> bool {
    if in_group { ctx.world().is_group_root(ctx.worker()) } else { ctx.worker().index() == 0 }
}
