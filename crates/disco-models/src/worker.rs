//! The worker functions: each worker keeps its part of the model, and the batch that it computes.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_candle::weights::{Shards, Weights};
use disco_candle::{Comm, KERNELS, Shelf};
use disco_core::activity::TimeLimit;
use disco_core::function::Json;
use disco_core::link::Keeper;
use disco_core::{Error, Object, Opaque, Scope, WorkerContext};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::adapter;
use crate::{Adapter, Config, ExpertSplit, Generation, ModelError, Precision, Sampler, Sums, Transformer, plan};

/// The argument of `disco.models.load`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Load {
    /// GGUF file, safetensors file, or folder with safetensors files.
    pub model: PathBuf,
    /// Folder of an adapter (LoRA), which is merged into the weights.
    pub adapter: Option<PathBuf>,
    /// The type of the weights in memory.
    pub precision: Precision,
    /// Keys of `config.json` that may be unknown.
    pub ignored_keys: Vec<String>,
    /// How the experts of a mixture are split over the workers.
    pub expert_split: ExpertSplit,
    /// The workers that share one copy of the model. With axes of a [mesh](disco_core::Mesh::along), there is a copy along
    /// each line, and each may get its own batch: a handle with another [`Batch`] on each worker.
    pub over: Scope,
    /// Tokens that end a text beside those of the model's configuration.
    pub ends: Vec<u32>,
    /// Threads of each worker.
    pub threads: usize,
    /// Whether waits for other workers are measured apart, which costs a barrier for each collective.
    pub measures_waits: bool,
    /// Number of the largest logits of each prompt that the first rank of each copy prints on standard error, a line
    /// `logits [[token, logit], ..]` each.
    pub print_logits: usize,
    /// Whether greedy steps on a GPU are replayed as a graph.
    pub uses_graphs: bool,
}

impl Load {
    /// Loads a model over all workers, each of one thread.
    pub fn new(model: PathBuf, precision: Precision) -> Self {
        Self {
            model,
            adapter: None,
            precision,
            ignored_keys: Vec::new(),
            expert_split: ExpertSplit::default(),
            over: Scope::World,
            ends: Vec::new(),
            threads: 1,
            measures_waits: false,
            print_logits: 0,
            uses_graphs: true,
        }
    }
}

/// The argument of `disco.models.prompt`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Batch {
    /// The tokens of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// How the next tokens are chosen.
    pub sampler: Sampler,
}

impl Batch {
    /// A batch of prompts, which are numbers of tokens.
    pub fn new(prompts: Vec<Vec<u32>>, sampler: Sampler) -> Self {
        Self { prompts, sampler }
    }
}

/// What a lack of memory that outlives a worker means.
const NOT_KEPT: &str = "a worker that replaces this one reads its matrices again";

/// Figures of one worker since the last `disco.models.load`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// Bytes of memory of this worker's weights.
    pub weights: usize,
    /// Bytes of memory of keys and values.
    pub cache: usize,
    /// Bytes that were read from files.
    pub bytes_read: u64,
    /// Number of collectives.
    pub collectives: u64,
    /// Whether collectives run on a device, behind the calls of the host. Then the times below are those of the calls.
    pub is_on_device: bool,
    /// Time in collectives, without `waiting`.
    pub in_collectives: Duration,
    /// Time until the last worker arrived, if it is measured apart.
    pub waiting: Duration,
    /// Time in worker functions that compute.
    pub computing: Duration,
}

/// The state of one worker.
struct Worker {
    model: Transformer,
    weights: Arc<Weights>,
    batch: Option<Running>,
    computing: Duration,
    load: Load,
}

/// A batch under way.
struct Running {
    generation: Generation,
    ended: Vec<bool>,
}

/// Reads this worker's part of a model, and returns the worker's state: the argument of the other functions. Collective.
///
/// `kept` is the state that an earlier load has returned: a worker that has one goes on with the model, beside workers that
/// replaced lost ones, which have none. `progress` is called with the bytes that are read and those to read.
///
/// # Errors
/// The model can't be read, or workers have different ones.
pub fn load(
    ctx: &mut WorkerContext,
    load: Load,
    kept: Object,
    progress: Option<impl Fn(u64, u64) + Send + Sync + 'static>,
) -> Result<Object, ModelError> {
    if let Object::Opaque(state) = &kept
        && let Some(worker) = state.downcast::<RefCell<Worker>>()
    {
        worker.borrow_mut().rejoin(ctx)?;
        return Ok(kept);
    }
    let (model, weights) = open(ctx, &load, progress, false)?;
    model.config().check_generates()?;
    let worker = Worker { model, weights, batch: None, computing: Duration::ZERO, load };
    Ok(Object::Opaque(Opaque::new(RefCell::new(worker))))
}

/// Reads this worker's part of a model. Collective. With `keeps`, the matrices of hosts outlive the worker, if somebody keeps them.
pub(crate) fn open(
    ctx: &mut WorkerContext,
    load: &Load,
    progress: Option<impl Fn(u64, u64) + Send + Sync + 'static>,
    keeps: bool,
) -> Result<(Transformer, Arc<Weights>), ModelError> {
    disco_candle::compute_threads(load.threads).map_err(disco_candle::to_candle)?;
    let comm = Comm::over(ctx, &load.over).map_err(disco_candle::to_candle)?;
    comm.measure_waits(load.measures_waits).map_err(disco_candle::to_candle)?;
    let weights = Arc::new(Weights::open(&load.model)?);
    let mut config = Config::open_ignoring(&weights, &load.ignored_keys)?;
    config.expert_split = load.expert_split;
    config.eos.extend(&load.ends);
    config.sums = Sums::on(ctx.device().kind, ctx.world().nodes());
    let plan = plan(&config, &weights, comm.size())?;
    let dtype = load.precision.dtype();
    let device = disco_candle::device(ctx, dtype).map_err(disco_candle::to_candle)?;
    let mut shards = Shards::new(weights.clone(), plan, comm.rank(), comm.size(), dtype, device);
    if let Some(progress) = progress {
        shards = shards.with_progress(progress);
    }
    let adapter = load.adapter.as_deref().map(Adapter::open).transpose()?;
    let keeper = ctx.link().keeper().ok().filter(|_| keeps && shards.device().is_cpu()).cloned();
    let open = |keeper: &Arc<dyn Keeper>| {
        let opened = Shelf::open(&**keeper, &shelf_name(&config, &shards, load));
        opened.inspect_err(|error| tracing::warn!(%error, "{NOT_KEPT}")).ok()
    };
    let shelf = keeper.as_ref().and_then(open);
    let model = Transformer::read(config, &shards, (adapter.as_ref(), shelf.as_ref()), load.precision, comm)?;
    if let (Some(shelf), Some(keeper)) = (shelf, keeper)
        && let Err(error) = shelf.keep(&*keeper)
    {
        tracing::warn!(%error, "{NOT_KEPT}");
    }
    // Those of loading wait for the slowest reader.
    model.comm().take_stats().map_err(disco_candle::to_candle)?;
    Ok((model, weights))
}

/// What the matrices of a rank depend on. Files that have changed since are read again.
fn shelf_name(config: &Config, shards: &Shards, load: &Load) -> String {
    let adapter = load.adapter.iter().flat_map(|folder| adapter::FILES.map(|file| folder.join(file)));
    let files = shards.weights().files().map(Path::to_path_buf).chain(adapter);
    let changed = |file: PathBuf| (fs::metadata(&file).and_then(|it| it.modified()).ok(), file);
    let files = (shards.fingerprint(), files.map(changed).collect::<Vec<_>>());
    let all = (files, load.precision, load.expert_split, config.sums, KERNELS, shards.rank(), shards.size());
    let digest = Sha256::digest(format!("{all:?}"));
    digest[..16].iter().fold("matrices ".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// Worker function: [`load`] without a progress.
fn load_silently(ctx: &mut WorkerContext, Json(argument): Json<Load>, kept: Object) -> Result<Object, ModelError> {
    load(ctx, argument, kept, None::<fn(u64, u64)>)
}

/// Worker function: processes the prompts. Returns the first token of each sequence, or none if the text has ended.
fn prompt(
    ctx: &mut WorkerContext,
    worker: Rc<RefCell<Worker>>,
    Json(Batch { prompts, sampler }): Json<Batch>,
) -> Result<Json<Vec<Option<u32>>>, ModelError> {
    let worker = &mut *worker.borrow_mut();
    let start = Instant::now();
    // The memory of the last batch is free for this one, and does not go on if this one fails.
    worker.batch = None;
    if worker.load.print_logits > 0 {
        worker.print_logits(&prompts)?;
    }
    let generation = worker.model.generate(&prompts, sampler)?;
    let generation = if worker.load.uses_graphs { generation } else { generation.without_graphs() };
    let running = worker.batch.insert(Running { generation, ended: vec![false; prompts.len()] });
    let tokens = running.next(&worker.model, ctx);
    worker.computing += start.elapsed();
    tokens
}

/// Worker function: computes the next token of each sequence; none for sequences that have ended or that fill the context.
fn next(ctx: &mut WorkerContext, worker: Rc<RefCell<Worker>>) -> Result<Json<Vec<Option<u32>>>, ModelError> {
    let worker = &mut *worker.borrow_mut();
    let start = Instant::now();
    let Some(running) = &mut worker.batch else { return Ok(Json(Vec::new())) };
    if running.ended.iter().all(|ended| *ended) {
        return Ok(Json(vec![None; running.ended.len()]));
    }
    let tokens = running.next(&worker.model, ctx);
    worker.computing += start.elapsed();
    tokens
}

/// Worker function: the figures of this worker.
fn figures(_: &mut WorkerContext, worker: Rc<RefCell<Worker>>) -> Result<Json<Figures>, Error> {
    let worker = worker.borrow();
    let stats = worker.model.comm().take_stats()?;
    Ok(Json(Figures {
        weights: worker.model.bytes(),
        cache: worker.batch.as_ref().map_or(0, |running| running.generation.cache().bytes()),
        bytes_read: worker.weights.bytes_read(),
        collectives: stats.collectives,
        is_on_device: !worker.model.device().is_cpu(),
        in_collectives: stats.time,
        waiting: if worker.load.measures_waits { stats.waiting } else { Duration::ZERO },
        computing: worker.computing,
    }))
}

disco_core::register_function!("disco.models.load", load_silently, limit: TimeLimit::Own);
disco_core::register_function!("disco.models.prompt", prompt, limit: TimeLimit::Own);
disco_core::register_function!("disco.models.next", next, limit: TimeLimit::Own);
disco_core::register_function!("disco.models.figures", figures, limit: TimeLimit::Own);

impl Worker {
    /// Goes on with the model and other workers.
    fn rejoin(&mut self, ctx: &mut WorkerContext) -> Result<(), ModelError> {
        self.model.rejoin(ctx)?;
        self.model.comm().take_stats().map_err(disco_candle::to_candle)?;
        (self.batch, self.computing) = (None, Duration::ZERO);
        Ok(())
    }

    /// Prints the largest logits after each prompt on rank 0.
    #[expect(clippy::disallowed_methods, reason = "all of them are sorted on the host")]
    fn print_logits(&self, prompts: &[Vec<u32>]) -> Result<(), ModelError> {
        let (_, hidden) = self.model.prompt(prompts)?;
        let logits = self.model.logits(&hidden)?;
        self.model.comm().synchronize().map_err(disco_candle::to_candle)?;
        let logits = logits.to_vec2::<f32>()?;
        for logits in logits.iter().filter(|_| self.model.comm().rank() == 0) {
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            let largest: Vec<_> =
                order.iter().take(self.load.print_logits).map(|token| (token, logits[*token])).collect();
            eprintln!("logits {}", serde_json::json!(largest));
        }
        Ok(())
    }
}

impl Running {
    /// The next token of each sequence that has not ended.
    fn next(&mut self, model: &Transformer, ctx: &mut WorkerContext) -> Result<Json<Vec<Option<u32>>>, ModelError> {
        let tokens = self.generation.next(model, ctx.queue())?;
        let ends = |token: Option<u32>| token.is_none_or(|token| model.config().eos.contains(&token));
        self.ended.iter_mut().zip(&tokens).for_each(|(ended, token)| *ended |= ends(*token));
        let tokens = tokens.into_iter().zip(&self.ended);
        Ok(Json(tokens.map(|(token, ended)| token.filter(|_| !ended)).collect()))
    }
}
