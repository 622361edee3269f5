//! The engine of models that make vectors of texts: one batch after the other.

use std::pin::pin;
use std::sync::Arc;

use disco::Error;
use disco_models::encoding::{self, Vectors, passes};
use tokio::sync::{mpsc, oneshot};

use super::request::{Failure, Refused};
use super::workers::{Placement, Workers};
use crate::health::{Health, State};

/// So often a batch is computed again after a loss.
const ATTEMPTS: u32 = 3;

/// Texts whose vectors are wanted.
#[derive(Debug)]
pub struct Batch {
    /// Their tokens.
    pub texts: Vec<Vec<u32>>,
    /// Where their vectors go.
    pub reply: oneshot::Sender<Result<Vectors, Failure>>,
}

/// The way to the engine.
#[derive(Clone, Debug)]
pub struct Encoders(mpsc::Sender<Batch>);

/// The way to an engine before which so many batches can wait, and its end.
pub fn encoders(waiting: usize) -> (Encoders, mpsc::Receiver<Batch>) {
    let (sender, receiver) = mpsc::channel(waiting);
    (Encoders(sender), receiver)
}

impl Encoders {
    /// The vectors of texts, or their scores, which have one number each.
    ///
    /// # Errors
    /// Too many batches wait; the engine has ended, or can't compute these texts.
    pub(crate) async fn encode(&self, texts: Vec<Vec<u32>>) -> Result<Result<Vectors, Failure>, Refused> {
        let (reply, result) = oneshot::channel();
        self.0.try_send(Batch { texts, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Refused::Full,
            mpsc::error::TrySendError::Closed(_) => Refused::Shutdown,
        })?;
        result.await.map_err(|_| Refused::Shutdown)
    }
}

/// Computes the batches of `inbox` until its senders are gone, or until `ended`. Blocks the thread.
///
/// # Errors
/// The workers can't be started, or can't be made usable again after a failure.
pub fn run_encoder(
    placement: Placement,
    mut inbox: mpsc::Receiver<Batch>,
    health: Arc<Health>,
    ended: impl Future<Output = ()>,
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| Error::State(format!("the engine can't be started: {error}")))?;
    let served = runtime.block_on(async {
        let mut ended = pin!(ended);
        let mut workers = tokio::select! {
            workers = Workers::start(placement) => workers?,
            () = &mut ended => return Ok(()),
        };
        health.set_state(State::Ready);
        let serve = async {
            while let Some(Batch { texts, reply }) = inbox.recv().await {
                if reply.is_closed() {
                    continue;
                }
                let (answer, lost) = match encode(&mut workers, &texts, &reply, &health).await {
                    Ok(vectors) => (Ok(vectors), None),
                    Err(Lost::Client) => continue,
                    Err(Lost::Texts(error)) => (Err(Failure::Failed(error.to_string())), None),
                    Err(Lost::Workers(error)) => (Err(Failure::Failed(error.to_string())), Some(error)),
                };
                // The client may have gone.
                _ = reply.send(answer);
                if let Some(error) = lost {
                    return Err(error);
                }
            }
            Ok(())
        };
        let served = tokio::select! {
            served = serve => served,
            () = &mut ended => Ok(()),
        };
        if served.is_err() {
            health.set_state(State::Failed);
        }
        workers.shutdown().await;
        served
    });
    if served.is_err() {
        health.set_state(State::Failed);
    }
    served
}

/// Why a batch has no vectors.
enum Lost {
    /// The workers can't be used any more.
    Workers(Error),
    /// They fail whenever they compute it.
    Texts(Error),
    /// The client has gone.
    Client,
}

/// One call of the workers for each pass, because the deadline of a step is that of a call.
async fn encode(
    workers: &mut Workers,
    texts: &[Vec<u32>],
    reply: &oneshot::Sender<Result<Vectors, Failure>>,
    health: &Health,
) -> Result<Vectors, Lost> {
    let mut all = Vec::with_capacity(texts.len());
    for pass in passes(texts) {
        all.extend(encode_pass(workers, pass, reply, health).await?);
    }
    Ok(all)
}

async fn encode_pass(
    workers: &mut Workers,
    texts: &[Vec<u32>],
    reply: &oneshot::Sender<Result<Vectors, Failure>>,
    health: &Health,
) -> Result<Vectors, Lost> {
    let bytes = encoding::to_bytes(texts).map_err(|why| Lost::Texts(Error::State(why)))?;
    let mut attempt = 0;
    loop {
        if reply.is_closed() {
            return Err(Lost::Client);
        }
        health.step_began();
        let computed = async { workers.call(bytes.clone()).await?.await };
        let computed = computed.await;
        // No step runs while the workers are repaired.
        health.step_ended(health.snapshot().load);
        let error = match computed {
            Ok(bytes) => return encoding::from_bytes(&bytes).map_err(|why| Lost::Texts(Error::State(why))),
            Err(error) => error,
        };
        attempt += 1;
        tracing::warn!(%error, "a batch has failed");
        health.set_state(State::Repairing);
        workers.repair_until_ready(error.clone()).await.map_err(Lost::Workers)?;
        health.set_state(State::Ready);
        if attempt == ATTEMPTS {
            return Err(Lost::Texts(error));
        }
    }
}
