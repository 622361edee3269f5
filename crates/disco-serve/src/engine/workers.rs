//! The session: a model on workers that compute steps and are replaced after a loss.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use disco::error::{ErrorKind, LossCause, ProcessEnd};
use disco::{Builder, DRef, Deadlines, Error, Json, LaneSession, ReplacementPolicy, Value};
use disco_models::encoding::Encode;
use disco_models::serving::{Plan, Reply, Serve};
use futures_lite::future;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::schedule::Source;

/// How long a model can be loaded.
const LOADING: Duration = Duration::from_secs(3600);
/// The worker function of `disco-models` that computes a step.
pub const STEP: &str = "disco.models.step";
/// The one that tells whether a worker has the keys and values of the steps before.
const HAS_MEMORY: &str = "disco.models.has_memory";
/// The one that makes vectors of texts.
pub const ENCODE: &str = "disco.models.encode";
/// Attempts to make the workers usable again, and the pause after the first one, which doubles.
const REPAIRS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Where the model runs.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The session, whose workers share the model.
    pub builder: Builder,
    /// Backend of the data plane.
    pub backend: String,
    /// The device of each worker; empty for the session's choice.
    pub devices: Vec<i32>,
    /// The worker function that computes a step: [`STEP`], or one that calls it.
    pub step: &'static str,
    /// How long a step can take.
    pub step_deadline: Duration,
    /// What the workers read.
    pub read: Read,
}

/// What the workers of a model read.
#[derive(Clone, Debug)]
pub enum Read {
    /// A model of texts, and its memory.
    Texts(Serve),
    /// A model that makes vectors of texts.
    Encoder(Encode),
}

/// The workers of a session.
pub(super) struct Workers {
    session: Arc<LaneSession>,
    placement: Placement,
    /// What the workers have loaded.
    state: Option<DRef>,
    step: Option<DRef>,
    /// How long it can take to make the workers ready after a failure.
    repair_limit: Duration,
}

/// A call of the workers under way.
pub(super) type Computing<T> = Pin<Box<dyn Future<Output = Result<T, Error>>>>;

impl Workers {
    /// Starts a session, and loads the model.
    pub(super) async fn start(placement: Placement) -> Result<Self, Error> {
        let deadlines = Deadlines::default().with_call(placement.step_deadline).with_collective(LOADING);
        let builder = placement.builder.clone();
        let builder = builder
            .collective_deadline(placement.step_deadline)
            .deadlines(deadlines)
            .replacement(ReplacementPolicy::when_asked());
        let session = Arc::new(on_a_thread("start", move || builder.start()).await?);
        let (began, limit) = (Instant::now(), placement.step_deadline);
        let mut workers = Self { session, placement, state: None, step: None, repair_limit: limit };
        workers.load().await?;
        // A new worker reads the model, too.
        workers.repair_limit += 2 * began.elapsed();
        Ok(workers)
    }

    /// Connects the workers, and loads the model on those that lack it. Returns whether all of them have the keys and values of the steps
    /// before.
    async fn load(&mut self) -> Result<bool, Error> {
        let session = &self.session;
        session.init_ccl(&self.placement.backend, &self.placement.devices).await?;
        let kept = self.state.as_ref();
        let state = match &self.placement.read {
            Read::Texts(serve) => session.call("disco.models.serve", (Json(serve.clone()), kept)).await?,
            Read::Encoder(encode) => session.call("disco.models.load_encoder", (Json(encode.clone()), kept)).await?,
        };
        let goes_on = match &self.placement.read {
            Read::Texts(_) => session.get_all::<bool>(&session.call(HAS_MEMORY, (&state,)).await?).await?,
            Read::Encoder(_) => Vec::new(),
        };
        session.sync_all().await?;
        // A new worker has no state.
        let states = state.clone();
        session.on_replaced(move |_| vec![(states.clone(), Value::None)]);
        (self.state, self.step) = (Some(state), Some(session.function(self.placement.step).await?));
        Ok(goes_on.iter().all(|goes_on| *goes_on))
    }

    /// Sends a step, which the workers compute after those before.
    pub(super) async fn send(&self, plan: &Plan) -> Result<Computing<Reply>, Error> {
        let reply = self.call(plan.to_bytes().map_err(Error::State)?).await?;
        Ok(Box::pin(async move { Reply::from_bytes(&reply.await?).map_err(Error::State) }))
    }

    /// Calls the workers' function with some bytes. The next call is sent behind this one.
    pub(super) async fn call(&self, bytes: Vec<u8>) -> Result<Computing<Arc<[u8]>>, Error> {
        let (Some(state), Some(step)) = (&self.state, &self.step) else {
            return Err(Error::State("the model is not loaded".to_owned()));
        };
        let (session, state, step) = (self.session.clone(), state.clone(), step.clone());
        let (sent, is_sent) = oneshot::channel();
        let mut reply: Computing<Arc<[u8]>> = Box::pin(async move {
            let returned = session.call_returning(0, &step, (&state, bytes)).await?;
            _ = sent.send(());
            match returned.await? {
                Value::Bytes(bytes) => Ok(bytes),
                other => Err(Error::State(format!("the reply of the workers is {}", other.kind()))),
            }
        });
        // The next step is sent behind this one.
        let is_sent = async {
            _ = is_sent.await;
            None
        };
        match future::or(async { Some((&mut reply).await) }, is_sent).await {
            Some(reply) => Ok(Box::pin(std::future::ready(reply))),
            None => Ok(reply),
        }
    }

    /// Replaces lost workers, ends those that hang, and makes all of them ready for steps, without sequences. Each attempt has
    /// more time than the one before, so that a machine that has become slow has enough in the end.
    async fn repair(&mut self, after: &Error, attempt: u32) -> Result<bool, Error> {
        if matches!(after.kind(), ErrorKind::Deadline { .. } | ErrorKind::Stalled { .. }) {
            self.end_stuck().await;
        }
        self.session.replace_lost().await?;
        let limit = self.repair_limit * attempt;
        match timeout(limit, self.load()).await {
            Ok(loaded) => loaded,
            Err(_) => {
                self.end_stuck().await;
                Err(Error::State(format!("the workers were not ready after {:.1} s", limit.as_secs_f64())))
            }
        }
    }

    /// [Repairs](Self::repair) the workers until they are ready, or for the last time. Returns whether all of them have the keys and values of
    /// the steps before, and no worker can have damaged its own.
    pub(super) async fn repair_until_ready(&mut self, mut error: Error) -> Result<bool, Error> {
        let (mut pause, mut is_damaged) = (FIRST_PAUSE, false);
        for attempt in 1..=REPAIRS {
            is_damaged |= may_be_damaged(&error);
            match self.repair(&error, attempt).await {
                Ok(goes_on) => return Ok(goes_on && !is_damaged),
                Err(again) => error = again,
            }
            tracing::warn!(%error, attempt, "the workers can't be made ready yet");
            if attempt < REPAIRS {
                sleep(pause).await;
                pause *= 2;
            }
        }
        Err(error)
    }

    /// Why the workers can't compute a step, if the session knows it already.
    pub(super) async fn failure(&self) -> Option<Error> {
        self.session.status().failure?;
        self.session.sync_all().await.err()
    }

    /// Kills the processes of workers that do not finish their commands. In a collective they wait for another one.
    async fn end_stuck(&self) {
        let status = self.session.status();
        let late = status.workers.iter().filter(|worker| worker.lag > 0);
        let (waiting, computing): (Vec<_>, Vec<_>) = late.partition(|worker| worker.operation.is_some());
        let stuck = if computing.is_empty() { waiting } else { computing };
        // Threads of this process have its number.
        let own = std::process::id();
        let processes: BTreeSet<u32> = stuck.iter().filter_map(|worker| worker.process).collect();
        let mut has_killed = false;
        for process in processes.into_iter().filter(|process| *process != own) {
            tracing::warn!(process, "a worker that hangs is killed");
            has_killed |= kill(Pid::from_raw(process as i32), Signal::SIGKILL).is_ok();
        }
        if has_killed {
            // Until the session knows of it.
            _ = self.session.sync_all().await;
        }
    }

    /// Ends the workers.
    pub(super) async fn shutdown(self) {
        if let Err(error) = self.session.shutdown().await {
            tracing::warn!(%error, "the workers did not end as they should");
        }
    }
}

/// Where the failure of a step comes from. Workers don't send these signals to themselves: an operator does, a supervisor, or
/// the system for lack of memory.
pub(super) fn source(error: &Error) -> Source {
    const SENT: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGKILL, Signal::SIGTERM];
    let is_sent = |number: i32| SENT.iter().any(|signal| *signal as i32 == number);
    match error {
        Error::Lost(loss) => match loss.cause {
            LossCause::ProcessEnded { end: ProcessEnd::Signaled { signal, .. }, .. } if is_sent(signal) => {
                Source::Outside
            }
            _ => Source::Steps,
        },
        _ => Source::Steps,
    }
}

/// Whether the memory of the worker whose end has failed a step may be damaged: signals that a process gets for its own faults.
fn may_be_damaged(error: &Error) -> bool {
    const FAULTS: [Signal; 6] =
        [Signal::SIGABRT, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGSEGV, Signal::SIGTRAP];
    let Error::Lost(loss) = error else { return false };
    let LossCause::ProcessEnded { end: ProcessEnd::Signaled { signal, .. }, .. } = loss.cause else { return false };
    FAULTS.iter().any(|fault| *fault as i32 == signal)
}

/// Runs what blocks on another thread, so that the engine can end meanwhile.
async fn on_a_thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (sender, receiver) = oneshot::channel();
    // Without a receiver, what has started is dropped there.
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || drop(sender.send(run())));
    thread.map_err(|error| Error::State(format!("the thread {name} can't be started: {error}")))?;
    receiver.await.unwrap_or_else(|_| Err(Error::State(format!("the thread {name} has panicked"))))
}
