//! The worker functions behind [`Module::load_vm`](crate::Module::load_vm) and [`Weights`](super::Weights).

use std::path::Path;
use std::rc::Rc;

use disco_core::{Device, Object, Opaque, Result, Tensor, Value, WorkerContext, register_function};

use crate::shards::{ShardLoader, Shards};
use crate::{runtime, vm};

/// Names of the worker functions.
pub(super) mod name {
    /// `(path, device or none)`: a virtual machine.
    pub(in crate::models) const LOAD_VM: &str = "ffi.load_vm_module";
    /// `(path, metadata, shard info or none, module or none)`: a loader of weights.
    pub(in crate::models) const SHARD_LOADER: &str = "ffi.shard_loader";
    /// `(loader, parameter)`: a tensor.
    pub(in crate::models) const LOAD_SHARD: &str = "ffi.load_shard";
    /// `(loader)`: an array of tensors.
    pub(in crate::models) const LOAD_SHARDS: &str = "ffi.load_shards";
    /// `(loader)`: an array of tensors.
    pub(in crate::models) const LOAD_PRESHARDED: &str = "ffi.load_presharded";
}

register_function!(name::LOAD_VM, load_vm);
register_function!(name::SHARD_LOADER, shard_loader);
register_function!(name::LOAD_SHARD, load_shard);
register_function!(name::LOAD_SHARDS, load_shards);
register_function!(name::LOAD_PRESHARDED, load_presharded);

fn load_vm(ctx: &mut WorkerContext, path: String, device: Option<Device>) -> Result<Object> {
    runtime::register_runtime()?;
    vm::load(ctx, Path::new(&path), device)
}

fn shard_loader(
    ctx: &mut WorkerContext,
    path: String,
    metadata: String,
    info: Option<String>,
    module: Object,
) -> Result<Opaque> {
    let mut shards = Shards::new(path, metadata);
    shards.info = info;
    shards.module = Some(module).filter(|module| !matches!(module, Object::Value(Value::None)));
    Ok(Opaque::new(ShardLoader::new(ctx, shards)?))
}

fn load_shard(ctx: &mut WorkerContext, loader: Rc<ShardLoader>, parameter: String) -> Result<Tensor> {
    loader.load(ctx, &parameter)
}

fn load_shards(ctx: &mut WorkerContext, loader: Rc<ShardLoader>) -> Result<Vec<Value>> {
    Ok(loader.load_all(ctx)?.iter().map(Value::from).collect())
}

fn load_presharded(ctx: &mut WorkerContext, loader: Rc<ShardLoader>) -> Result<Vec<Value>> {
    Ok(loader.load_all_presharded(ctx)?.iter().map(Value::from).collect())
}
