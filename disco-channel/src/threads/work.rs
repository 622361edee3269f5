//! The life of one worker's thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use disco_core::error::{LossCause, LostPeer};
use disco_core::{Error, Result, WorkerId, WorkerRange};

use super::endpoint::ThreadEndpoint;
use super::exits::Exits;

/// The function that each worker runs.
pub(super) type Run = dyn Fn(WorkerId, ThreadEndpoint) -> Result<()> + Send + Sync;

/// Starts the thread of the worker with this index in the lane.
pub(super) fn spawn(
    run: &Arc<Run>,
    endpoint: ThreadEndpoint,
    exits: &Arc<Exits>,
    index: usize,
) -> Result<JoinHandle<()>> {
    let (worker, run, exits) = (endpoint.worker, run.clone(), exits.clone());
    let thread = thread::Builder::new().name(format!("disco-worker-{}", worker.index()));
    let started = thread.spawn(move || {
        let _left = exits.guard(index);
        work(&*run, endpoint, || exits.is_expected(index));
    });
    started.map_err(|error| Error::system(format!("the thread of {worker} can't be started"), error))
}

fn work(run: &Run, endpoint: ThreadEndpoint, is_expected: impl Fn() -> bool) {
    let (worker, inbox, replies) = (endpoint.worker, endpoint.inbox.clone(), endpoint.replies.clone());
    let here = WorkerRange::one(worker);
    let ended = catch_unwind(AssertUnwindSafe(|| run(worker, endpoint)));
    // Replies that came before the end.
    replies.deliver(&*inbox);
    let why = match ended {
        Ok(Ok(())) if is_expected() => return inbox.left(here),
        Ok(Ok(())) => LossCause::ThreadEnded(None),
        Ok(Err(error)) => LossCause::ThreadEnded(Some(error.to_string())),
        Err(panic) => LossCause::Panicked(message(&*panic).to_owned()),
    };
    inbox.lost(here, Error::peer_lost(LostPeer::Workers { workers: here, node: None }, why));
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
