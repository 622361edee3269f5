//! The controller: one session that generates text.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use disco::function::Json;
use disco::{DRef, DataPlane as _, Result, Session, SessionExt as _, WorkerId};

use super::worker::{Batch, Figures, Load};

/// Calls that the controller sends ahead, so that workers do not wait for it between two tokens.
const AHEAD: usize = 3;

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

/// Loads the model and generates at most `limits[i]` tokens for each prompt. Calls `token` with the sequence and each
/// token, and with none when a sequence has ended. Ends early when `stop` is set.
///
/// # Errors
/// A worker fails or is lost.
pub(crate) async fn generate(
    session: &impl Session,
    (backend, load): (&str, &Load),
    (batch, limits): (&Batch, &[usize]),
    stop: &AtomicBool,
    mut token: impl FnMut(usize, Option<u32>),
) -> Result<Outcome> {
    let mut outcome = Outcome { prompt_tokens: batch.prompts.iter().map(Vec::len).sum(), ..Outcome::default() };
    let start = Instant::now();
    session.init_ccl(backend, &[]).await?;
    let worker = session.call_named("generate.load", (Json(load.clone()),)).await?;
    session.sync_all().await?;
    outcome.loading = start.elapsed();

    let start = Instant::now();
    let next = session.function("generate.next").await?;
    let mut calls = VecDeque::from([session.call_named("generate.prompt", (&worker, Json(batch.clone()))).await?]);
    let mut first = None;
    let mut left = limits.to_vec();
    while left.iter().any(|left| *left > 0) && !stop.load(Ordering::Relaxed) {
        let most = left.iter().max().copied().unwrap_or(0);
        while calls.len() < AHEAD.min(most) {
            calls.push_back(session.call(&next, (&worker,)).await?);
        }
        let Some(call) = calls.pop_front() else { break };
        let Json(tokens): Json<Vec<Option<u32>>> = session.get_as(&call, WorkerId::new(0)).await?;
        first.get_or_insert_with(Instant::now);
        let running = tokens.into_iter().zip(&mut left).enumerate().filter(|(_, (_, left))| **left > 0);
        for (sequence, (new, left)) in running {
            *left = new.map_or(0, |_| *left - 1);
            if new.is_some() {
                outcome.tokens += 1;
                token(sequence, new);
            }
            if *left == 0 {
                token(sequence, None);
            }
        }
    }
    let first = first.unwrap_or_else(Instant::now);
    (outcome.prompting, outcome.generating) = (first - start, first.elapsed());
    outcome.workers = figures(session, &worker).await?;
    Ok(outcome)
}

async fn figures(session: &impl Session, worker: &DRef) -> Result<Vec<Figures>> {
    let figures = session.call_named("generate.figures", (worker,)).await?;
    let figures: Vec<Json<Figures>> = session.get_all_as(&figures).await?;
    Ok(figures.into_iter().map(|Json(figures)| figures).collect())
}
