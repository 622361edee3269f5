//! TVM's names of the shard loader. Compiled code holds the loader as an object that it only passes back: here it is a
//! function object with the loader behind it.

use std::path::PathBuf;
use std::rc::Rc;

use disco_core::function::{Args, BoxError, Function, IntoObject as _};
use disco_core::{Error, Object, Result, Value, WorkerContext};

use super::arguments::position;
use crate::shards::{ShardLoader, Shards};

pub(super) fn create(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let (path, metadata, info): (String, String, String) = (args.take(0)?, args.take(1)?, args.take(2)?);
    let module: Object = args.take(3)?;
    let module = Some(module).filter(|module| !matches!(module, Object::Value(Value::None)));
    let mut shards = Shards::new(PathBuf::from(path), metadata);
    shards.info = Some(info).filter(|info| !info.is_empty());
    shards.module = module;
    let loader = Rc::new(ShardLoader::new(ctx, shards)?);
    let called = |_: &Rc<ShardLoader>, _: &mut WorkerContext, _: &Args<'_>| {
        Err(Error::invalid("a shard loader is no function: pass it to `runtime.disco.ShardLoaderLoad`").into())
    };
    Ok(Function::with_inner("<a shard loader>", loader, called).into_object())
}

fn loader(args: &Args<'_>) -> Result<Rc<ShardLoader>> {
    let arg: Object = args.take(0)?;
    let found = match &arg {
        Object::Function(function) => function.downcast::<ShardLoader>(),
        _ => None,
    };
    found.ok_or_else(|| Error::Argument { index: 0, expected: "a shard loader", found: arg.kind().to_owned() })
}

pub(super) fn load(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let loader = loader(args)?;
    let name = loader.name_at(position(args, 1)?)?;
    Ok(loader.load(ctx, name)?.into_object())
}

pub(super) fn load_presharded(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    Ok(loader(args)?.load_presharded(ctx, position(args, 1)?)?.into_object())
}

pub(super) fn load_all(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    array(loader(args)?.load_all(ctx))
}

pub(super) fn load_all_presharded(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    array(loader(args)?.load_all_presharded(ctx))
}

pub(super) fn load_on_worker_0(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    Ok(loader(args)?.load_on_worker_0(ctx, position(args, 1)?)?.into_object())
}

fn array(tensors: Result<Vec<disco_core::Tensor>>) -> Result<Object, BoxError> {
    Ok(tensors?.iter().map(Value::from).collect::<Vec<_>>().into_object())
}
