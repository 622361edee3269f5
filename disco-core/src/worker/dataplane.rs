//! The data plane as worker functions, under `disco.*`. [`DataPlane`](crate::DataPlane) documents and calls them.

use super::WorkerContext;
use crate::backend::{self, Rendezvous};
use crate::communicator::CommunicatorExt;
use crate::data_plane::{PlaneFunction, data_plane_functions};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::op::Reduction;
use crate::register_function;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Worker 0 of the world, or the first of the group.
const ROOT: Rank = Rank::new(0);

/// Registers the functions below, of which the table has one row each.
macro_rules! register {
    ($($variant:ident $function:ident,)*) => {
        $(register_function!(PlaneFunction::$variant.name(), $function);)*
    };
}

data_plane_functions!(register);

/// `ordinals` has one entry a worker, or none: then the i-th worker of a machine takes device i, and every worker the host.
fn init_ccl(ctx: &mut WorkerContext, name: String, at: Vec<u8>, ordinals: Shape) -> Result<()> {
    let backend = backend::find(&name)?;
    let worker = ctx.worker().index();
    let kind = backend.device_kind();
    let device = match ordinals.get(worker) {
        _ if Device::new(kind, 0).is_host() => Device::CPU,
        None => Device::new(kind, (worker % ctx.world().per_node()) as i32),
        Some(ordinal) => {
            let refused = |_| Error::invalid(format!("{ordinal} is no device ordinal"));
            Device::new(kind, i32::try_from(*ordinal).map_err(refused)?)
        }
    };
    ctx.connect(backend, &Rendezvous::new(at)?, device)
}

fn empty(
    ctx: &mut WorkerContext,
    dtype: DType,
    shape: Shape,
    only_root: bool,
    in_group: bool,
) -> Result<Option<Tensor>> {
    match only_root && !is_root(ctx, in_group) {
        true => Ok(None),
        false => ctx.empty(dtype, shape).map(Some),
    }
}

fn broadcast_from_worker0(ctx: &mut WorkerContext, src: Option<Tensor>, dst: Tensor, in_group: bool) -> Result<()> {
    let src = src.filter(|_| is_root(ctx, in_group));
    ctx.comm_in(in_group)?.enqueue(&[crate::Op::Broadcast { src, dst, root: ROOT }])
}

fn scatter_from_worker0(ctx: &mut WorkerContext, src: Option<Tensor>, dst: Tensor, in_group: bool) -> Result<()> {
    let src = src.filter(|_| is_root(ctx, in_group));
    ctx.comm_in(in_group)?.scatter(src.as_ref(), &dst, ROOT)
}

fn gather_to_worker0(ctx: &mut WorkerContext, src: Tensor, dst: Option<Tensor>, in_group: bool) -> Result<()> {
    let dst = dst.filter(|_| is_root(ctx, in_group));
    ctx.comm_in(in_group)?.gather(&src, dst.as_ref(), ROOT)
}

fn all_reduce(ctx: &mut WorkerContext, src: Tensor, dst: Tensor, reduction: String, in_group: bool) -> Result<()> {
    let reduction: Reduction = reduction.parse()?;
    ctx.comm_in(in_group)?.all_reduce(&src, &dst, reduction)
}

fn all_gather(ctx: &mut WorkerContext, src: Tensor, dst: Tensor, in_group: bool) -> Result<()> {
    ctx.comm_in(in_group)?.all_gather(&src, &dst)
}

fn reduce_scatter(ctx: &mut WorkerContext, src: Tensor, dst: Tensor, reduction: String, in_group: bool) -> Result<()> {
    let reduction: Reduction = reduction.parse()?;
    ctx.comm_in(in_group)?.reduce_scatter(&src, &dst, reduction)
}

fn all_to_all(ctx: &mut WorkerContext, src: Tensor, dst: Tensor, in_group: bool) -> Result<()> {
    ctx.comm_in(in_group)?.all_to_all(&src, &dst)
}

/// Every worker runs the same call, so those that have nobody to send to pass.
fn send_to_next_group(ctx: &mut WorkerContext, src: Tensor) -> Result<()> {
    match ctx.group().index() + 1 < ctx.world().groups() {
        true => ctx.send_to_next_group(&src),
        false => Ok(()),
    }
}

fn recv_from_prev_group(ctx: &mut WorkerContext, dst: Tensor) -> Result<()> {
    match ctx.group().index() > 0 {
        true => ctx.recv_from_prev_group(&dst),
        false => Ok(()),
    }
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

fn is_root(ctx: &WorkerContext, in_group: bool) -> bool {
    if in_group { ctx.world().is_group_root(ctx.worker()) } else { ctx.worker().index() == 0 }
}
