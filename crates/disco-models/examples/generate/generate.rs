//! The controller: sessions that generate text.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use disco::error::ErrorKind;
use disco::{DRef, Error, Json, LaneSession, Result, Value, WorkerId, block_on};
use disco_models::worker::{Batch, Figures, Load};

/// Calls that the controller sends ahead, so that workers do not wait for it between two tokens.
const AHEAD: usize = 3;

/// The texts to generate.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) backend: String,
    /// The device of each worker; empty for the session's choice.
    pub(crate) devices: Vec<i32>,
    pub(crate) load: Load,
    pub(crate) batch: Batch,
    /// The most tokens of each sequence.
    pub(crate) most: Vec<usize>,
    /// How often the texts continue after the loss of a worker.
    pub(crate) restarts: usize,
}

/// An event of a job.
#[derive(Debug)]
pub(crate) enum Event {
    /// The workers have read the model.
    Loaded,
    /// A sequence has a new token.
    Token { sequence: usize, token: u32 },
    /// A sequence has ended.
    End { sequence: usize },
    /// The session has lost workers. New workers, or a new session, continue the texts.
    Restart(Error),
}

/// The figures of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Number of tokens of the prompts.
    pub(crate) prompt_tokens: usize,
    /// Number of generated tokens of all sequences.
    pub(crate) tokens: usize,
    /// Time of loading the model.
    pub(crate) loading: Duration,
    /// Time until the first tokens.
    pub(crate) prompting: Duration,
    /// Time of all further tokens.
    pub(crate) generating: Duration,
    /// The figures of each worker.
    pub(crate) workers: Vec<Figures>,
}

/// The tokens of one sequence so far.
#[derive(Clone, Debug, Default)]
struct Sequence {
    tokens: Vec<u32>,
    has_ended: bool,
}

/// The most tokens of the text of each prompt: what `context` has room for, and at most `most`.
pub(crate) fn rooms(prompts: &[Vec<u32>], most: usize, context: usize) -> Vec<usize> {
    prompts.iter().map(|prompt| context.saturating_sub(prompt.len()).min(most)).collect()
}

/// Runs a job in a session that `start` starts. If the session loses a worker, a new worker takes its place, and all
/// workers compute the caches of the texts again; a session that can't replace workers is replaced as a whole. Ends early
/// when `stop` is set. Returns the figures since the last loss.
///
/// # Errors
/// A session can't be started, a worker function fails, or workers are lost more often than the job permits.
pub(crate) fn run(
    job: &Job,
    start: impl Fn() -> Result<LaneSession>,
    stop: &AtomicBool,
    mut on: impl FnMut(Event),
) -> Result<Outcome> {
    let mut sequences = vec![Sequence::default(); job.batch.prompts.len()];
    let mut restarts = job.restarts;
    let connect = |session: LaneSession| block_on(session.init_ccl(&job.backend, &job.devices)).map(|()| session);
    let mut session = connect(start()?)?;
    let mut worker = None;
    loop {
        match block_on(generate(&session, job, &mut worker, &mut sequences, stop, &mut on)) {
            Ok(outcome) => return block_on(session.shutdown()).map(|()| outcome),
            Err(error) if restarts > 0 && is_loss(&error) && !stop.load(Ordering::Relaxed) => {
                restarts -= 1;
                on(Event::Restart(error));
                if block_on(replace(&session, job)).is_err() {
                    // Fails, since the session is lost.
                    _ = block_on(session.shutdown());
                    (session, worker) = (connect(start()?)?, None);
                }
            }
            Err(error) => {
                _ = block_on(session.shutdown());
                return Err(error);
            }
        }
    }
}

/// Replaces lost workers by new ones, and connects all workers again.
async fn replace(session: &LaneSession, job: &Job) -> Result<()> {
    session.replace_lost().await?;
    session.init_ccl(&job.backend, &job.devices).await
}

/// Whether the texts can continue with other workers.
fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost { .. } | ErrorKind::Aborted)
}

/// Loads the model on workers that lack it, and continues the sequences. `worker` is the handle of the workers' states,
/// which is set when all workers have read the model.
async fn generate(
    session: &LaneSession,
    job: &Job,
    worker: &mut Option<DRef>,
    sequences: &mut [Sequence],
    stop: &AtomicBool,
    on: &mut impl FnMut(Event),
) -> Result<Outcome> {
    let mut batch = job.batch.clone();
    batch.prompts.iter_mut().zip(&*sequences).for_each(|(prompt, sequence)| prompt.extend(&sequence.tokens));
    let mut outcome = Outcome { prompt_tokens: batch.prompts.iter().map(Vec::len).sum(), ..Outcome::default() };
    let start = Instant::now();
    let loaded = session.call("generate.load", (Json(job.load.clone()), worker.as_ref())).await?;
    session.sync_all().await?;
    // A new worker has no state.
    let states = loaded.clone();
    session.on_replaced(move |_| vec![(states.clone(), Value::None)]);
    let worker = &*worker.insert(loaded);
    outcome.loading = start.elapsed();
    on(Event::Loaded);

    let start = Instant::now();
    let next = session.function("disco.models.next").await?;
    let mut calls = VecDeque::from([session.call("disco.models.prompt", (worker, Json(batch))).await?]);
    let mut first = None;
    let left = |sequences: &[Sequence]| {
        let open = sequences.iter().zip(&job.most).filter(|(sequence, _)| !sequence.has_ended);
        open.map(|(sequence, most)| most - sequence.tokens.len()).max().unwrap_or(0)
    };
    while left(sequences) > 0 && !stop.load(Ordering::Relaxed) {
        // More tokens than the job asks for may not fit in the context.
        while calls.len() < AHEAD.min(left(sequences)) {
            calls.push_back(session.call(&next, (worker,)).await?);
        }
        let Some(call) = calls.pop_front() else { break };
        let Json(tokens): Json<Vec<Option<u32>>> = session.get(&call, WorkerId::new(0)).await?;
        first.get_or_insert_with(Instant::now);
        for (number, (token, sequence)) in tokens.into_iter().zip(&mut *sequences).enumerate() {
            if sequence.has_ended {
                continue;
            }
            if let Some(token) = token {
                sequence.tokens.push(token);
                outcome.tokens += 1;
                on(Event::Token { sequence: number, token });
            }
            if token.is_none() || sequence.tokens.len() == job.most[number] {
                sequence.has_ended = true;
                on(Event::End { sequence: number });
            }
        }
    }
    let first = first.unwrap_or_else(Instant::now);
    (outcome.prompting, outcome.generating) = (first - start, first.elapsed());
    outcome.workers = figures(session, worker).await?;
    Ok(outcome)
}

async fn figures(session: &LaneSession, worker: &DRef) -> Result<Vec<Figures>> {
    let figures = session.call("disco.models.figures", (worker,)).await?;
    let figures: Vec<Json<Figures>> = session.get_all(&figures).await?;
    Ok(figures.into_iter().map(|Json(figures)| figures).collect())
}
