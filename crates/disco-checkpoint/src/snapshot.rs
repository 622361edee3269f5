//! Copies of a worker's tensors, which a thread writes while the worker goes on.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use disco_core::tensor::Storage;
use disco_core::{DType, Tensor, WorkerContext, sync};
use safetensors::Dtype;
use serde_json::Value;

use crate::checksum::Checksum;
use crate::dtype;
use crate::index;
use crate::memory::Kept;
use crate::message::{Fault, Order, Progress, Report, Seen};
use crate::plan;
use crate::shard::{self, Places, Source};

/// Blocks of a sample, and bytes of a block. Tensors of up to their product are compared whole.
const SAMPLE_BLOCKS: usize = 16;
const SAMPLE_BLOCK_BYTES: usize = 4096;

/// The shard of one save on its worker. Dropping it ends the writing.
#[derive(Debug)]
pub(crate) struct Pending(Arc<State>);

#[derive(Debug, Default)]
struct State {
    bytes: AtomicU64,
    is_cancelled: AtomicBool,
    result: Mutex<Option<Result<Report, Fault>>>,
}

impl Pending {
    /// Copies the tensors of `order` that this worker writes, and starts the writer.
    pub(crate) fn start(ctx: &mut WorkerContext, order: Order, tensors: Vec<Option<Tensor>>) -> Self {
        let state = Arc::new(State::default());
        let started = Writer::new(ctx, order, &tensors).and_then(|writer| writer.start(state.clone()));
        started.map_or_else(Self::failed, |()| Self(state))
    }

    /// A save that has failed before it began.
    pub(crate) fn failed(fault: Fault) -> Self {
        let result = Mutex::new(Some(Err(fault)));
        Self(Arc::new(State { result, ..State::default() }))
    }

    pub(crate) fn progress(&self) -> Progress {
        match &*sync::lock(&self.0.result) {
            None => Progress::Writing { bytes: self.0.bytes.load(Ordering::Relaxed) },
            Some(Ok(_)) => Progress::Done,
            Some(Err(fault)) => Progress::Failed(fault.clone()),
        }
    }

    /// The report of a save that is done.
    pub(crate) fn report(&self) -> Option<Report> {
        sync::lock(&self.0.result).as_ref()?.as_ref().ok().cloned()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }
}

/// The copies of a worker's tensors, their places in the shard, and the report about them.
struct Writer {
    path: PathBuf,
    report: Report,
    places: Places,
    /// The position in the order of each tensor of the shard.
    written: Vec<usize>,
    /// The copies, at their places in the shard.
    memory: Arc<Storage>,
}

impl Writer {
    fn new(ctx: &mut WorkerContext, order: Order, tensors: &[Option<Tensor>]) -> Result<Self, Fault> {
        let (worker, world) = (ctx.worker(), ctx.world());
        let path = order.folder.join(index::Shard::file_of(worker, &world));
        // A failure of the device, which does not belong to one tensor.
        let failed = |error: disco_core::Error| Fault::io(&path, "copying the tensors", &io::Error::other(error));
        let mut report = Report { shard: None, tensors: Vec::with_capacity(tensors.len()) };
        let mut samples = Vec::with_capacity(tensors.len());
        for ((name, layout), tensor) in order.tensors.iter().zip(tensors) {
            layout.check(&world).map_err(|error| Fault::tensor(name, error))?;
            report.tensors.push(tensor.as_ref().map(|tensor| seen(name, tensor)).transpose()?);
            // Only parts that several workers have are compared.
            let compared = tensor.as_ref().filter(|_| layout.ranks(&world) < world.size());
            let sample = compared.map(|tensor| sample(ctx, tensor));
            samples.push(sample.transpose().map_err(|error| Fault::tensor(name, error))?);
        }
        let sizes = order.tensors.iter().zip(tensors);
        let sizes: Vec<_> =
            sizes.map(|((_, layout), tensor)| (layout.clone(), tensor.as_ref().map_or(0, size))).collect();
        let writes = plan::written_by(worker, &world, &sizes);
        let (mut sources, mut written) = (Vec::new(), Vec::new());
        for (index, tensor) in tensors.iter().enumerate().filter(|(index, _)| writes[*index]) {
            if let (Some(tensor), Some(seen)) = (tensor, &report.tensors[index]) {
                let (name, shape) = (order.tensors[index].0.clone(), seen.shape.clone());
                sources.push(Source { name, dtype: seen.dtype, shape, bytes: tensor.byte_len() });
                written.push((index, tensor));
            }
        }
        let facts = [
            ("disco.checkpoint.step", order.step.to_string()),
            ("disco.checkpoint.worker", worker.index().to_string()),
            ("disco.checkpoint.workers", world.size().to_string()),
        ];
        let metadata = facts.into_iter().map(|(key, text)| (key.to_owned(), Value::String(text))).collect();
        let places = Places::new(metadata, &sources);
        let memory = ctx.state::<Kept>().take(places.bytes, order.reuses_memory).map_err(failed)?;
        for ((index, tensor), range) in written.iter().zip(&places.ranges) {
            let fault = |error| Fault::tensor(&order.tensors[*index].0, error);
            let copy = place(&memory, range.start, tensor).map_err(fault)?;
            ctx.queue().copy_out(&copy, tensor).map_err(fault)?;
        }
        let deadline = ctx.deadline();
        ctx.queue().synchronize(deadline).map_err(failed)?;
        for (seen, sample) in report.tensors.iter_mut().zip(&samples) {
            if let (Some(seen), Some(sample)) = (seen, sample) {
                seen.sample = Checksum::of(&sample.bytes().map_err(failed)?);
            }
        }
        let written = written.into_iter().map(|(index, _)| index).collect();
        Ok(Self { path, report, places, written, memory })
    }

    fn start(self, state: Arc<State>) -> Result<(), Fault> {
        let path = self.path.clone();
        let run = {
            let path = path.clone();
            move || {
                let written = panic::catch_unwind(AssertUnwindSafe(|| self.write(&state)));
                let panicked = |_| Err(Fault::io(path, shard::WRITING, &io::Error::other("the writer panicked")));
                *sync::lock(&state.result) = Some(written.unwrap_or_else(panicked));
            }
        };
        let spawned = thread::Builder::new().name("checkpoint".into()).spawn(run);
        spawned.map(drop).map_err(|error| Fault::io(path, "starting the writer's thread", &error))
    }

    fn write(mut self, state: &State) -> Result<Report, Fault> {
        if self.written.is_empty() {
            return Ok(self.report);
        }
        lower_priority();
        let failed = |error: disco_core::Error| Fault::io(&self.path, shard::WRITING, &io::Error::other(error));
        let memory = Tensor::from_storage(self.memory.clone(), DType::U8, self.memory.byte_len()).map_err(failed)?;
        let mut memory = memory.bytes_mut().map_err(failed)?;
        let advance = |bytes: usize| {
            state.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            if state.is_cancelled.load(Ordering::Relaxed) {
                Err(io::Error::other("the save was dropped"))
            } else {
                Ok(())
            }
        };
        let (shard, checksums) = shard::write(&self.path, &self.places, &mut memory, advance)?;
        self.report.shard = Some(shard);
        for ((index, range), checksum) in self.written.iter().zip(&self.places.ranges).zip(checksums) {
            if let Some(seen) = &mut self.report.tensors[*index] {
                seen.written = Some((range.start as u64, checksum));
            }
        }
        Ok(self.report)
    }
}

fn size(tensor: &Tensor) -> u64 {
    tensor.byte_len() as u64
}

/// The report about a tensor that can be saved.
fn seen(name: &str, tensor: &Tensor) -> Result<Seen, Fault> {
    if !tensor.is_contiguous() {
        return Err(Fault::tensor(name, format!("{tensor} is not contiguous")));
    }
    let dtype: Option<Dtype> = dtype::stored(tensor.dtype());
    let dtype = dtype.ok_or_else(|| Fault::tensor(name, format!("safetensors has no {}", tensor.dtype())))?;
    Ok(Seen { dtype, shape: tensor.dims(), sample: Checksum::of(&[]), written: None })
}

/// A host tensor for the copy of `tensor`, from byte `start` of `memory` on.
fn place(memory: &Arc<Storage>, start: usize, tensor: &Tensor) -> disco_core::Result<Tensor> {
    // Places of tensors are multiples of the sizes of their elements.
    let (dtype, size) = (tensor.dtype(), tensor.dtype().size());
    let whole = Tensor::from_storage(memory.clone(), dtype, memory.byte_len() / size)?;
    whole.window(start / size, tensor.shape().clone())
}

/// Copies a sample of the bytes to the host: the whole tensor, or blocks at equal distances.
fn sample(ctx: &mut WorkerContext, tensor: &Tensor) -> disco_core::Result<Tensor> {
    let elements = tensor.elements();
    let block = SAMPLE_BLOCK_BYTES / tensor.dtype().size();
    if elements <= SAMPLE_BLOCKS * block {
        let sample = Tensor::zeros(tensor.dtype(), tensor.shape().clone())?;
        ctx.queue().copy_out(&sample, tensor)?;
        return Ok(sample);
    }
    let sample = Tensor::zeros(tensor.dtype(), SAMPLE_BLOCKS * block)?;
    for index in 0..SAMPLE_BLOCKS {
        // The last block is the end of the tensor.
        let start = (elements - block) / (SAMPLE_BLOCKS - 1) * index;
        let start = if index + 1 == SAMPLE_BLOCKS { elements - block } else { start };
        ctx.queue().copy_out(&sample.window(index * block, block)?, &tensor.window(start, block)?)?;
    }
    Ok(sample)
}

/// Lowers the priority of the calling thread, so that the training's threads run first.
fn lower_priority() {
    // The increment of the writer's `nice` value: beside a training that uses all CPUs, a writer gets a small share. On
    // Linux, the call concerns the calling thread only.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(15) {
        tracing::debug!(%error, "the writer of a checkpoint has the priority of the worker");
    }
}
