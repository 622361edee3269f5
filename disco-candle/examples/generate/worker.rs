//! The worker functions: each worker keeps its part of the model, and the batch that it computes.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use disco::{Json, Object, Opaque, WorkerContext};
use disco_candle::Comm;
use disco_candle::llama::{Cache, Config, Llama, LlamaError, Precision, Sampler, plan};
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
    /// Threads of each worker.
    pub(crate) threads: usize,
    /// Whether worker processes ignore Ctrl-C, which reaches all processes of a terminal, so that the controller ends
    /// the session.
    pub(crate) ignores_interrupts: bool,
    /// Whether waits for other workers are measured apart, which costs a barrier for each collective.
    pub(crate) measures_waits: bool,
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
    measures_waits: bool,
}

/// A batch under way.
struct Running {
    cache: Cache,
    sampler: Sampler,
    /// The last token of each sequence.
    last: Vec<u32>,
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
    let config = Config::open(&weights)?;
    let plan = plan(&config, &weights, comm.size())?;
    let precision: Precision = load.dtype.precision();
    let mut shards = Shards::new(weights.clone(), plan, comm.rank(), comm.size(), precision.dtype(), Device::Cpu);
    if let Some(bar) = PROGRESS.get().filter(|_| comm.rank() == 0) {
        shards = shards.with_progress(|done, all| {
            bar.set_length(all);
            bar.set_position(done);
        });
    }
    let model = Llama::load(config, &shards, precision, comm)?;
    // Those of loading wait for the slowest reader.
    model.comm().take_stats()?;
    let (batch, computing, measures_waits) = (None, Duration::ZERO, load.measures_waits);
    let worker = Worker { model, weights, batch, computing, measures_waits };
    Ok(Object::Opaque(Opaque::new(RefCell::new(worker))))
}

/// Worker function: processes the prompts. Returns the first token of each sequence, or none if the text has ended.
fn prompt(
    _: &mut WorkerContext,
    worker: Rc<RefCell<Worker>>,
    Json(batch): Json<Batch>,
) -> Result<Json<Vec<Option<u32>>>, LlamaError> {
    let worker = &mut *worker.borrow_mut();
    let start = Instant::now();
    let (cache, hidden) = worker.model.prompt(&batch.prompts)?;
    let (last, ended) = (vec![0; batch.prompts.len()], vec![false; batch.prompts.len()]);
    let sampler = Sampler::new(batch.temperature, batch.top_p, batch.seed);
    let running = worker.batch.insert(Running { cache, sampler, last, ended });
    let tokens = running.choose(&worker.model, &hidden);
    worker.computing += start.elapsed();
    tokens
}

/// Worker function: computes the next token of each sequence; none for sequences that have ended.
fn next(_: &mut WorkerContext, worker: Rc<RefCell<Worker>>) -> Result<Json<Vec<Option<u32>>>, LlamaError> {
    let worker = &mut *worker.borrow_mut();
    let start = Instant::now();
    let Some(running) = &mut worker.batch else { return Ok(Json(Vec::new())) };
    if running.ended.iter().all(|ended| *ended) {
        return Ok(Json(vec![None; running.ended.len()]));
    }
    let hidden = worker.model.step(&mut running.cache, &running.last)?;
    let tokens = running.choose(&worker.model, &hidden);
    worker.computing += start.elapsed();
    tokens
}

/// Worker function: the figures of this worker.
fn figures(_: &mut WorkerContext, worker: Rc<RefCell<Worker>>) -> disco::Result<Json<Figures>> {
    let worker = worker.borrow();
    let stats = worker.model.comm().take_stats()?;
    Ok(Json(Figures {
        weights: worker.model.bytes(),
        cache: worker.batch.as_ref().map_or(0, |running| running.cache.bytes()),
        bytes_read: worker.weights.bytes_read(),
        collectives: stats.collectives,
        in_collectives: stats.time,
        waiting: if worker.measures_waits { stats.waiting } else { Duration::ZERO },
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
}

impl Running {
    /// Chooses the next token of each sequence that has not ended.
    fn choose(&mut self, model: &Llama, hidden: &Tensor) -> Result<Json<Vec<Option<u32>>>, LlamaError> {
        self.last = model.choose(&self.cache, hidden, &self.sampler)?;
        let ends = |token: &u32| model.config().eos.contains(token);
        self.ended.iter_mut().zip(&self.last).for_each(|(ended, token)| *ended |= ends(token));
        let tokens = self.last.iter().zip(&self.ended);
        Ok(Json(tokens.map(|(token, ended)| Some(*token).filter(|_| !ended)).collect()))
    }
}
