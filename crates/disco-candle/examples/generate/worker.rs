//! The worker functions: each worker keeps its part of the model, and the batch that it computes.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use disco::{Json, Object, Opaque, WorkerContext};
use disco_candle::Comm;
use disco_candle::llama::{Config, Generation, Llama, LlamaError, Precision, Sampler, Steps, plan};
use disco_candle::weights::{Shards, Weights};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use super::args::Dtype;

/// The progress of worker 0, which is a thread of the controller's process.
pub(crate) static PROGRESS: OnceLock<ProgressBar> = OnceLock::new();

/// The argument of `generate.load`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Load {
    pub(crate) model: PathBuf,
    pub(crate) dtype: Dtype,
    /// Keys of `config.json` that may be unknown.
    pub(crate) ignored_keys: Vec<String>,
    /// Threads of each worker.
    pub(crate) threads: usize,
    /// Whether worker processes ignore Ctrl-C, which reaches all processes of a terminal, so that the controller ends
    /// the session.
    pub(crate) ignores_interrupts: bool,
    /// Whether waits for other workers are measured apart, which costs a barrier for each collective.
    pub(crate) measures_waits: bool,
    /// Number of the largest logits of each prompt that worker 0 prints.
    pub(crate) print_logits: usize,
    /// Whether steps on a GPU are replayed as a graph.
    pub(crate) uses_graphs: bool,
}

impl Load {
    /// Loads a model for workers of one thread.
    pub(crate) fn new(model: PathBuf, dtype: Dtype) -> Self {
        Self {
            model,
            dtype,
            ignored_keys: Vec::new(),
            threads: 1,
            ignores_interrupts: false,
            measures_waits: false,
            print_logits: 0,
            uses_graphs: true,
        }
    }
}

/// The argument of `generate.prompt`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Batch {
    /// The tokens of each prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) temperature: f64,
    pub(crate) top_p: f64,
    pub(crate) seed: u64,
}

/// Figures of one worker since the last `generate.load`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Figures {
    pub(crate) weights: usize,
    pub(crate) cache: usize,
    pub(crate) bytes_read: u64,
    pub(crate) collectives: u64,
    /// Whether collectives run on a device, behind the calls of the host. Then the times below are those of the calls.
    pub(crate) is_on_device: bool,
    /// Time in collectives, without `waiting`.
    pub(crate) in_collectives: Duration,
    /// Time until the last worker arrived, if it is measured apart.
    pub(crate) waiting: Duration,
    /// Time in worker functions that compute.
    pub(crate) computing: Duration,
}

/// The state of one worker.
struct Worker {
    model: Llama,
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

/// Worker function: reads this worker's part of the model, unless `kept` is the state of a worker that has it. Returns the
/// worker's state.
fn load(ctx: &mut WorkerContext, Json(load): Json<Load>, kept: Object) -> anyhow::Result<Object> {
    if let Object::Opaque(state) = &kept
        && let Some(worker) = state.downcast::<RefCell<Worker>>()
    {
        worker.borrow_mut().rejoin(ctx)?;
        return Ok(kept);
    }
    if load.ignores_interrupts && ctx.worker().index() > 0 {
        ctrlc::set_handler(|| ())?;
    }
    disco_candle::compute_threads(load.threads)?;
    let comm = Comm::world(ctx)?;
    comm.measure_waits(load.measures_waits)?;
    let weights = Arc::new(Weights::open(&load.model)?);
    let config = Config::open_ignoring(&weights, &load.ignored_keys)?;
    let plan = plan(&config, &weights, comm.size())?;
    let precision: Precision = load.dtype.precision();
    let device = disco_candle::device(ctx, precision.dtype())?;
    let mut shards = Shards::new(weights.clone(), plan, comm.rank(), comm.size(), precision.dtype(), device);
    if let Some(bar) = PROGRESS.get().filter(|_| comm.rank() == 0) {
        shards = shards.with_progress(|done, all| {
            bar.set_length(all);
            bar.set_position(done);
        });
    }
    let model = Llama::load(config, &shards, precision, comm)?;
    // Those of loading wait for the slowest reader.
    model.comm().take_stats()?;
    let worker = Worker { model, weights, batch: None, computing: Duration::ZERO, load };
    Ok(Object::Opaque(Opaque::new(RefCell::new(worker))))
}

/// Worker function: processes the prompts. Returns the first token of each sequence, or none if the text has ended.
fn prompt(
    ctx: &mut WorkerContext,
    worker: Rc<RefCell<Worker>>,
    Json(batch): Json<Batch>,
) -> Result<Json<Vec<Option<u32>>>, LlamaError> {
    let worker = &mut *worker.borrow_mut();
    let start = Instant::now();
    if worker.load.print_logits > 0 {
        worker.print_logits(&batch.prompts)?;
    }
    let sampler = Sampler::new(batch.temperature, batch.top_p, batch.seed);
    let replays = worker.load.uses_graphs && sampler.is_greedy() && !worker.model.device().is_cpu();
    let steps = if replays { Steps::Fixed } else { Steps::Growing };
    let generation = worker.model.generate(&batch.prompts, sampler, steps)?;
    let running = worker.batch.insert(Running { generation, ended: vec![false; batch.prompts.len()] });
    let tokens = running.next(&worker.model, ctx);
    worker.computing += start.elapsed();
    tokens
}

/// Worker function: computes the next token of each sequence; none for sequences that have ended.
fn next(ctx: &mut WorkerContext, worker: Rc<RefCell<Worker>>) -> Result<Json<Vec<Option<u32>>>, LlamaError> {
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
fn figures(_: &mut WorkerContext, worker: Rc<RefCell<Worker>>) -> disco::Result<Json<Figures>> {
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

disco::register_function!("generate.load", load);
disco::register_function!("generate.prompt", prompt);
disco::register_function!("generate.next", next);
disco::register_function!("generate.figures", figures);

impl Worker {
    /// Goes on with the model and other workers.
    fn rejoin(&mut self, ctx: &mut WorkerContext) -> anyhow::Result<()> {
        self.model.rejoin(ctx)?;
        self.model.comm().take_stats()?;
        (self.batch, self.computing) = (None, Duration::ZERO);
        Ok(())
    }

    /// Prints the largest logits after each prompt on worker 0.
    #[expect(clippy::disallowed_methods, reason = "all of them are sorted on the host")]
    fn print_logits(&self, prompts: &[Vec<u32>]) -> Result<(), LlamaError> {
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
    fn next(&mut self, model: &Llama, ctx: &mut WorkerContext) -> Result<Json<Vec<Option<u32>>>, LlamaError> {
        let tokens = self.generation.next(model, ctx.queue())?;
        let ends = |token: &u32| model.config().eos.contains(token);
        self.ended.iter_mut().zip(&tokens).for_each(|(ended, token)| *ended |= ends(token));
        let tokens = tokens.into_iter().zip(&self.ended);
        Ok(Json(tokens.map(|(token, ended)| Some(token).filter(|_| !ended)).collect()))
    }
}
