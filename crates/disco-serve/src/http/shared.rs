//! The state that all requests of a server share.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::Request;
use disco_models::SamplingDefaults;
use disco_models::text::Text;
use metrics_exporter_prometheus::PrometheusHandle;
use rustix::process::setpriority_process;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::timeout;

use super::app::Encoder;
use super::body::{self, Bodies, Room};
use super::drain::{Drain, Phase};
use super::{App, BearerToken, Hosts, Limits, Origin};
use crate::admission::Admission;
use crate::api::{ApiError, Asked, Known, Object};
use crate::engine::{Refused, Requests};
use crate::grammar::{Constraint, Grammar, Grammars, Turns, Unusable};
use crate::health::{Health, State};
use crate::metrics::Meters;
use crate::trace::Queue;

/// The most bytes of a small body: one that is parsed on a thread of connections, which takes less than a millisecond, and
/// whose text is tokenised in less than a second.
const MAX_SMALL_BODY: usize = 64 << 10;
/// How long a grammar may be compiled, and how long a request waits for the grammars of others.
const COMPILING: Duration = Duration::from_secs(10);
/// Grammars that are compiled at the same time.
const COMPILERS: usize = 2;
/// The compiler follows rules and references by calls. A stack takes the memory that it needs.
const COMPILER_STACK: usize = 256 << 20;

/// A server's state.
pub(super) struct Shared {
    pub(super) requests: Requests,
    pub(super) encoder: Option<Encoder>,
    pub(super) name: Arc<str>,
    /// When the server began, in seconds since 1970.
    pub(super) created: u64,
    /// What logits depend on, once the files are read.
    pub(super) fingerprint: Arc<OnceLock<String>>,
    is_on_the_host: bool,
    pub(super) text: Arc<Text>,
    ends: Vec<u32>,
    vocabulary: usize,
    sampling: SamplingDefaults,
    pub(super) limits: Limits,
    pub(super) token: Option<BearerToken>,
    pub(super) hosts: Option<Hosts>,
    pub(super) origins: Vec<Origin>,
    pub(super) health: Arc<Health>,
    pub(super) metrics: Option<PrometheusHandle>,
    pub(super) meters: Meters,
    pub(super) spans: Option<Queue>,
    pub(super) admission: Arc<Admission>,
    pub(super) drain: Drain,
    bodies: Bodies,
    /// Number of requests for texts that were not answered yet.
    active: watch::Sender<usize>,
    /// Permits for work that blocks on small bodies, one for each core.
    small: Arc<Semaphore>,
    /// The same on large ones, which can take seconds: one for two cores, so that small ones need not wait for them.
    large: Arc<Semaphore>,
    grammars: Grammars,
    /// Permits to compile grammars.
    compiling: Arc<Semaphore>,
    random: RandomState,
    drawn: AtomicU64,
}

/// A request for texts that was not answered yet.
pub(super) struct Active(Arc<Shared>);

impl Shared {
    pub(super) fn new(app: App, drain: Drain) -> Arc<Self> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let limits = app.limits;
        Arc::new(Self {
            requests: app.requests,
            encoder: app.encoder,
            meters: Meters::new(&app.model.name),
            name: app.model.name.into(),
            created: now(),
            fingerprint: app.model.fingerprint,
            is_on_the_host: app.model.is_on_the_host,
            text: app.model.text,
            ends: app.model.ends,
            vocabulary: app.model.vocabulary,
            sampling: app.model.sampling,
            admission: Admission::new(limits.waiting_requests, limits.waiting_tokens),
            bodies: Bodies::new(&limits),
            limits,
            token: app.token,
            hosts: app.hosts,
            origins: app.origins,
            health: app.health,
            metrics: app.metrics,
            spans: app.spans,
            drain,
            active: watch::Sender::new(0),
            small: Arc::new(Semaphore::new(cores)),
            large: Arc::new(Semaphore::new(cores.div_ceil(2))),
            grammars: Grammars::default(),
            compiling: Arc::new(Semaphore::new(COMPILERS)),
            random: RandomState::new(),
            drawn: AtomicU64::new(0),
        })
    }

    pub(super) fn known(&self) -> Known<'_> {
        let Self { name, vocabulary, ends, sampling, is_on_the_host, .. } = self;
        let (vocabulary, sampling, is_on_the_host) = (*vocabulary, *sampling, *is_on_the_host);
        Known { name, vocabulary, ends, sampling, is_on_the_host }
    }

    /// What the model makes, for a request for something else.
    pub(super) fn purpose(&self) -> &'static str {
        match &self.encoder {
            None => "texts, and neither vectors of them nor scores: use /v1/chat/completions",
            Some(Encoder { encoding, .. }) if encoding.scores_pairs => {
                "scores of pairs of texts: use /rerank or /score"
            }
            Some(_) => "vectors of texts: use /v1/embeddings",
        }
    }

    /// The state that clients see.
    pub(super) fn state(&self) -> State {
        match (self.health.snapshot().state, self.drain.phase()) {
            (State::Failed, _) => State::Failed,
            (_, Phase::Draining(_) | Phase::Ending) => State::Draining,
            (state, Phase::Serving) => state,
        }
    }

    /// Counts a request, and refuses it if the engine takes none.
    ///
    /// # Errors
    /// The server starts, repairs, or ends.
    pub(super) fn begin(self: &Arc<Self>) -> Result<Active, ApiError> {
        // Counted before the state is read: a drain that begins in between waits for it.
        self.active.send_modify(|active| *active += 1);
        let active = Active(self.clone());
        match self.state() {
            State::Ready => Ok(active),
            state => Err(ApiError::NotReady(state)),
        }
    }

    /// Waits until the server is to end: at once, or once a drain is complete or takes too long.
    pub(super) async fn ended(&self) {
        let mut phase = self.drain.subscribe();
        let Ok(first) = phase.wait_for(|phase| *phase != Phase::Serving).await.map(|phase| *phase) else { return };
        self.health.drain();
        let Phase::Draining(until) = first else { return };
        tracing::info!(active = *self.active.borrow(), "the server takes no more requests");
        let mut active = self.active.subscribe();
        tokio::select! {
            _ = active.wait_for(|active| *active == 0) => {}
            _ = phase.wait_for(|phase| *phase == Phase::Ending) => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }

    /// Reads the object of a request's body. Parsed JSON takes many times the bytes of its text, so large bodies are parsed
    /// on the threads of the tokenizer, few at once. The caller keeps the body's room as long as the parsed value.
    ///
    /// # Errors
    /// The body can't be read, or is no JSON object; and those of `read`.
    pub(super) async fn parse<T: Send + 'static>(
        &self,
        request: Request,
        read: impl FnOnce(Object) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Room<'_>), ApiError> {
        let (body, room) = body::read(request, &self.bodies, &self.limits).await?;
        let parsed = if body.len() <= MAX_SMALL_BODY {
            read(Object::parse(&body)?)?
        } else {
            self.tokenise(room.bytes(), move |_| read(Object::parse(&body)?)).await?
        };
        Ok((parsed, room))
    }

    /// Runs work that blocks, such as that of the tokenizer, on another thread. It is about a body of so many bytes.
    ///
    /// # Errors
    /// Those of the work; or the work panicked.
    pub(super) async fn tokenise<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Text) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permits = if bytes <= MAX_SMALL_BODY { &self.small } else { &self.large };
        let permit = permits.clone().acquire_owned().await.map_err(|_| ApiError::Shutdown)?;
        let text = self.text.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&text)
        });
        done.await.map_err(|_| ApiError::Panicked)?
    }

    /// Compiles a grammar on a thread that leaves the processors to others. If that fails, `reason` can find the error of a part with the
    /// compiler that it gets.
    ///
    /// # Errors
    /// It can't be compiled, or not in time; others take too long; or the compiler panicked.
    pub(super) async fn compile(
        self: &Arc<Self>,
        asked: Asked,
        reason: impl FnOnce(&dyn Fn(&Grammar) -> Result<(), Unusable>) -> Option<ApiError> + Send + 'static,
    ) -> Result<Constraint, ApiError> {
        let Asked { param, grammar } = asked;
        if let Some(known) = self.grammars.known(&grammar) {
            return Ok(known);
        }
        let permit = timeout(COMPILING, self.compiling.clone().acquire_owned()).await;
        let permit = permit.map_err(|_| Refused::Full)?.map_err(|_| ApiError::Shutdown)?;
        let shared = self.clone();
        let (sender, done) = oneshot::channel();
        let named = param.clone();
        let thread = thread::Builder::new().name("grammar".into()).stack_size(COMPILER_STACK).spawn(move || {
            let _permit = permit;
            // A system that refuses it has its reasons.
            _ = setpriority_process(None, 19);
            // No client makes this dearer, and in turns it would take seconds.
            shared.grammars.prepare(&shared.text, &shared.ends, shared.vocabulary);
            let _turns = Turns::begin();
            let compile =
                |grammar: &Grammar| shared.grammars.compile(grammar, &shared.text, &shared.ends, shared.vocabulary);
            let compiled = compile(&grammar).map_err(|why| {
                // Nobody waits for the name of a tool that is found later.
                let first = |grammar: &Grammar| if sender.is_closed() { Ok(()) } else { compile(grammar).map(drop) };
                reason(&first).unwrap_or_else(|| ApiError::param(named, why.to_string()))
            });
            // The receiver is gone if the time is over.
            _ = sender.send(compiled);
        });
        thread.map_err(|error| ApiError::Failed(format!("a thread can't be started: {error}")))?;
        match timeout(COMPILING, done).await {
            Ok(compiled) => compiled.map_err(|_| ApiError::Panicked)?,
            Err(_) => Err(ApiError::param(param, format!("was not compiled within {} s", COMPILING.as_secs()))),
        }
    }

    /// A number that differs from those before, and from those of other servers.
    pub(super) fn random(&self) -> u64 {
        self.random.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed))
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.send_modify(|active| *active -= 1);
    }
}
