//! The worker that runs a compiled model: its id, device and tensors.

use std::path::Path;

use disco_core::function::{Args, BoxError, IntoObject as _};
use disco_core::{DType, Device, Error, Object, Shape, Tensor, WorkerContext};

use super::arguments::{flag, shape};
use crate::{lookup, vm};

pub(super) fn id(ctx: &mut WorkerContext, _: &Args<'_>) -> Result<Object, BoxError> {
    Ok(Shape::from([ctx.worker().index() as i64]).into_object())
}

pub(super) fn rank(ctx: &mut WorkerContext, _: &Args<'_>) -> Result<Object, BoxError> {
    Ok((ctx.worker().index() as i64).into_object())
}

pub(super) fn world_size(ctx: &mut WorkerContext, _: &Args<'_>) -> Result<Object, BoxError> {
    Ok((ctx.world().size() as i64).into_object())
}

pub(super) fn device(ctx: &mut WorkerContext, _: &Args<'_>) -> Result<Object, BoxError> {
    Ok(ctx.device().into_object())
}

/// Disco's tensors are zeroed; TVM's are not.
pub(super) fn empty(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let (shape, dtype, device): (_, DType, Option<Device>) = (shape(args, 0)?, args.take(1)?, args.take(2)?);
    let (worker_0_only, in_group) = (flag(args, 3)?, flag(args, 4)?);
    if let Some(device) = device.filter(|device| *device != ctx.device()) {
        let own = ctx.device();
        return Err(Error::invalid(format!("a tensor on {device}, but this worker's device is {own}")).into());
    }
    let position = if in_group { ctx.worker().index() % ctx.world().group_size() } else { ctx.worker().index() };
    let tensor: Option<Tensor> = (!worker_0_only || position == 0).then(|| ctx.empty(dtype, shape)).transpose()?;
    Ok(tensor.into_object())
}

pub(super) fn bind_to_cpu(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    const BIND: &str = "tvm.runtime.threading.set_current_thread_affinity";
    let cpus = shape(args, 0)?;
    let own = cpus.get(ctx.worker().index()).copied();
    let own = own.ok_or_else(|| Error::invalid(format!("{} cpus for {} workers", cpus.len(), ctx.world().size())))?;
    let bind = lookup::global_function(BIND)?;
    bind.call(ctx, &Args::of_objects(&[Shape::from([own]).into_object()]))
}

pub(super) fn load_vm_module(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let (path, device): (String, Option<Device>) = (args.take(0)?, args.take(1)?);
    Ok(vm::load(ctx, Path::new(&path), device)?)
}
