//! Worker functions of checkpoints.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::rc::Rc;

use disco_core::activity::TimeLimit;
use disco_core::error::Error as CoreError;
use disco_core::function::{Args, BoxError, FunctionEntry, IntoObject};
use disco_core::{DType, Object, Opaque, Tensor, WorkerContext, register_function};

use serde::Serialize;

use crate::index::{self, Index, Part};
use crate::layout::Layout;
use crate::message::{Answer, Fault, Order, Wanted};
use crate::plan;
use crate::region::{self, Region};
use crate::shard::Shard;
use crate::snapshot::Pending;

/// Names of the functions.
pub(crate) mod name {
    pub(crate) const SNAPSHOT: &str = "checkpoint.snapshot";
    pub(crate) const PROGRESS: &str = "checkpoint.progress";
    pub(crate) const REPORT: &str = "checkpoint.report";
    pub(crate) const READ: &str = "checkpoint.read";
    pub(crate) const OUTCOME: &str = "checkpoint.outcome";
    pub(crate) const TENSOR: &str = "checkpoint.tensor";
}

disco_core::inventory::submit! {
    FunctionEntry { name: name::SNAPSHOT, call: snapshot, limit: TimeLimit::Call, place: concat!(module_path!(), " at ", file!()) }
}
disco_core::inventory::submit! {
    FunctionEntry { name: name::PROGRESS, call: progress, limit: TimeLimit::Call, place: concat!(module_path!(), " at ", file!()) }
}
disco_core::inventory::submit! {
    FunctionEntry { name: name::REPORT, call: report, limit: TimeLimit::Call, place: concat!(module_path!(), " at ", file!()) }
}
register_function!(name::READ, read);
register_function!(name::OUTCOME, outcome);
register_function!(name::TENSOR, tensor);

/// Copies tensors and starts to write them. The arguments are an [`Order`] and its tensors, of which there may be many.
/// A fault of this save becomes the result of [`progress`], so that the session goes on.
fn snapshot(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let order: Order = serde_json::from_str(&args.take::<String>(0)?)?;
    let tensor = |(index, (name, _)): (usize, &(String, Layout))| {
        args.take::<Option<Tensor>>(index + 1).map_err(|error| match error {
            CoreError::Argument { found, .. } => {
                Fault::tensor(name, format!("the handle is of {found}, not of a tensor"))
            }
            // The register is empty or poisoned.
            other => Fault::tensor(name, other),
        })
    };
    let tensors: Result<Vec<_>, _> = order.tensors.iter().enumerate().map(tensor).collect();
    let pending = match tensors {
        Ok(tensors) => Pending::start(ctx, order, tensors),
        Err(fault) => Pending::failed(fault),
    };
    Ok(Opaque::new(pending).into_object())
}

/// The [`Progress`](crate::message::Progress) of a save.
fn progress(_: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    answer(args, |pending| Ok(pending.progress()))
}

/// The [`Report`](crate::message::Report) of a save that is done on all workers.
fn report(_: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    answer(args, |pending| Ok(pending.report().ok_or("the shard is not complete")?))
}

/// The [`Answer`] to a question about the save that is the argument. A new worker has no such save; that is no failure of
/// the worker, so that the session goes on.
fn answer<T: Serialize>(
    args: &Args<'_>,
    know: impl FnOnce(&Pending) -> Result<T, BoxError>,
) -> Result<Object, BoxError> {
    let answer = match args.take::<Rc<Pending>>(0) {
        Ok(pending) => Answer::Known(know(&pending)?),
        Err(CoreError::NotRestored { epoch, .. }) => Answer::New { epoch },
        Err(other) => return Err(other.into()),
    };
    Ok(serde_json::to_string(&answer)?.into_object())
}

/// The result of [`read`].
struct Loaded(RefCell<Result<Vec<Option<Tensor>>, Fault>>);

/// Reads this worker's tensors. `index` is the text of an index without a fault.
fn read(ctx: &mut WorkerContext, index: String, wanted: String) -> Result<Opaque, BoxError> {
    let wanted: Wanted = serde_json::from_str(&wanted)?;
    let index = Index::decode(&wanted.checkpoint.join(index::FILE), &index)?;
    Ok(Opaque::new(Loaded(RefCell::new(read_all(ctx, &index, &wanted)))))
}

/// The [`Fault`] of a load, if there is one.
fn outcome(_: &mut WorkerContext, loaded: Rc<Loaded>) -> Result<Option<String>, BoxError> {
    let fault = loaded.0.borrow().as_ref().err().map(serde_json::to_string);
    Ok(fault.transpose()?)
}

/// Moves a tensor out of the result of a load without a fault.
fn tensor(_: &mut WorkerContext, loaded: Rc<Loaded>, index: usize) -> Result<Option<Tensor>, BoxError> {
    let mut loaded = loaded.0.borrow_mut();
    Ok(loaded.as_mut().ok().and_then(|tensors| tensors.get_mut(index)).and_then(Option::take))
}

fn read_all(ctx: &mut WorkerContext, index: &Index, wanted: &Wanted) -> Result<Vec<Option<Tensor>>, Fault> {
    let mut files = Files { folder: &wanted.checkpoint, index, open: HashMap::new() };
    let mut load = |(name, layout): &(String, Layout)| {
        let missing = || Fault::tensor(name, "the index does not have it");
        let entry = index.tensors.get(name).ok_or_else(missing)?;
        if *layout == Layout::PerWorker {
            let Some(part) = entry.parts.iter().find(|part| part.worker as usize == ctx.worker().index()) else {
                return Ok(None);
            };
            let whole = Region::whole(&part.shape);
            return files.load(ctx, name, &[(whole.clone(), part)], &whole).map(Some);
        }
        let tensor = (wanted.checkpoint.as_path(), name.as_str(), entry);
        let region = plan::region_of(tensor, layout, ctx.worker(), &ctx.world());
        let region = region.map_err(|error| Fault::tensor(name, error))?;
        let shape = entry.shape();
        let parts: Vec<_> = entry.parts.iter().map(|part| (entry.region(&shape, part), part)).collect();
        files.load(ctx, name, &parts, &region).map(Some)
    };
    wanted.tensors.iter().map(&mut load).collect()
}

/// The shards that a worker has opened.
struct Files<'a> {
    folder: &'a Path,
    index: &'a Index,
    open: HashMap<u32, Shard>,
}

impl Files<'_> {
    /// Makes the tensor of `region` out of the parts that overlap it, on the worker's device.
    fn load(
        &mut self,
        ctx: &mut WorkerContext,
        name: &str,
        parts: &[(Region, &Part)],
        region: &Region,
    ) -> Result<Tensor, Fault> {
        let fault = |error| Fault::tensor(name, error);
        let dtype = parts.first().map_or(DType::U8, |(_, part)| part.dtype());
        let tensor = ctx.empty(dtype, region.shape()).map_err(fault)?;
        let host = if tensor.device().is_host() {
            tensor.clone()
        } else {
            Tensor::zeros(dtype, region.shape()).map_err(fault)?
        };
        {
            let mut target = host.bytes_mut().map_err(fault)?;
            let what = format!("tensor `{name}`");
            for (held, part) in parts {
                if held == region {
                    self.shard(part)?.read(&what, part, &mut target)?;
                } else if held.overlaps(region) {
                    let held_bytes = self.piece(name, part)?;
                    region::copy((held, &held_bytes), (region, &mut target), dtype.size());
                }
            }
        }
        if !tensor.device().is_host() {
            ctx.queue().copy_in(&tensor, &host).map_err(fault)?;
            // The copy reads the host tensor until here.
            let deadline = ctx.deadline();
            ctx.queue().synchronize(deadline).map_err(fault)?;
        }
        Ok(tensor)
    }

    /// Reads a whole part that the region overlaps only partly: the checksum covers the whole part.
    fn piece(&mut self, name: &str, part: &Part) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        let size = part.bytes() as usize;
        bytes
            .try_reserve_exact(size)
            .map_err(|error| Fault::tensor(name, format!("no room for {size} bytes: {error}")))?;
        bytes.resize(size, 0);
        self.shard(part)?.read(&format!("tensor `{name}`"), part, &mut bytes)?;
        Ok(bytes)
    }

    fn shard(&mut self, part: &Part) -> Result<&mut Shard, Fault> {
        match self.open.entry(part.worker) {
            Entry::Occupied(shard) => Ok(shard.into_mut()),
            Entry::Vacant(empty) => {
                let missing = || Fault::damaged(self.folder, format!("it has no shard of worker {}", part.worker));
                let shard = self.index.shard(part.worker).ok_or_else(missing)?;
                Ok(empty.insert(Shard::open(self.folder, shard)?))
            }
        }
    }
}
