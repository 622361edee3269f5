//! The thread that sends spans to a collector.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, StatusCode};
use metrics::{Counter, counter};
use serde_json::Value;
use ureq::Agent;

use super::Endpoint;
use super::encode::body;
use crate::trace::{Queue, Trace};

/// Requests whose spans are sent together at most.
const BATCH: usize = 256;
/// The most bytes of a collector's answer that are read.
const MAX_ANSWER: u64 = 64 << 10;
/// How often the end looks whether the thread has ended.
const END_POLL: Duration = Duration::from_millis(5);

/// Times of the exchange with a collector.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Requests whose spans wait for the collector at most; those of others are lost.
    pub queue: usize,
    /// Spans wait so long for others.
    pub gather: Duration,
    /// The most time that a collector has to answer.
    pub timeout: Duration,
    /// Time before the second attempt to send the same spans; it doubles with each one.
    pub pause: Duration,
    /// How often the same spans are sent, before they are lost.
    pub attempts: u32,
}

impl Default for Options {
    fn default() -> Self {
        let (gather, pause) = (Duration::from_secs(1), Duration::from_secs(1));
        Self { queue: 2048, gather, timeout: Duration::from_secs(10), pause, attempts: 4 }
    }
}

/// Sends the spans of a queue to a collector.
#[derive(Debug)]
pub struct Exporter {
    queue: Queue,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// What the thread has.
struct Sending {
    traces: Receiver<Trace>,
    endpoint: Endpoint,
    options: Options,
    agent: Agent,
    ends: Arc<AtomicBool>,
    exported: Counter,
    dropped: Counter,
    /// Whether the last batch was lost, which the log has once.
    fails: bool,
}

/// Why spans were not taken.
struct Refused {
    why: String,
    /// Whether the same spans may be taken later.
    is_passing: bool,
}

impl Exporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn start(endpoint: Endpoint, options: Options) -> io::Result<Self> {
        let (sender, traces) = sync_channel(options.queue);
        let ends = Arc::new(AtomicBool::new(false));
        let config = Agent::config_builder().timeout_global(Some(options.timeout)).http_status_as_error(false);
        let config = if endpoint.is_local { config.proxy(None) } else { config };
        let config = config.max_redirects(0).user_agent(concat!("disco-serve/", env!("CARGO_PKG_VERSION"))).build();
        let mut sending = Sending {
            traces,
            endpoint,
            options,
            agent: config.into(),
            ends: ends.clone(),
            exported: counter!("disco_serve_spans_exported_total"),
            dropped: counter!("disco_serve_spans_dropped_total", "reason" => "collector"),
            fails: false,
        };
        let thread = thread::Builder::new().name("otlp".into()).spawn(move || sending.run())?;
        Ok(Self { queue: Queue::new(sender), ends, thread })
    }

    /// The way to the thread.
    pub fn queue(&self) -> Queue {
        self.queue.clone()
    }

    /// Sends the spans that wait, once, for at most this time. All other clones of the queue must be gone, or it takes that long.
    /// Returns whether no spans are left.
    pub fn end(self, within: Duration) -> bool {
        let Self { queue, ends, thread } = self;
        ends.store(true, Ordering::Release);
        thread.thread().unpark();
        drop(queue);
        let until = Instant::now() + within;
        while !thread.is_finished() && Instant::now() < until {
            thread::sleep(END_POLL);
        }
        thread.is_finished()
    }
}

impl Sending {
    fn run(&mut self) {
        while let Some(batch) = self.batch() {
            let count = batch.iter().map(|trace| trace.spans.len() as u64).sum::<u64>();
            match self.delivered(&batch) {
                Ok(rejected) => {
                    let rejected = rejected.min(count);
                    self.exported.increment(count - rejected);
                    self.dropped.increment(rejected);
                    if std::mem::replace(&mut self.fails, false) {
                        tracing::info!("the collector takes spans again");
                    }
                }
                Err(Refused { why, .. }) => {
                    self.dropped.increment(count);
                    if !std::mem::replace(&mut self.fails, true) {
                        tracing::warn!(
                            url = self.endpoint.url,
                            why,
                            "spans are lost: the collector does not take them"
                        );
                    }
                }
            }
        }
    }

    /// The next traces; `None` once no more can come.
    fn batch(&self) -> Option<Vec<Trace>> {
        let mut batch = vec![self.traces.recv().ok()?];
        let until = Instant::now() + self.options.gather;
        while batch.len() < BATCH {
            match self.traces.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(trace) => batch.push(trace),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        Some(batch)
    }

    /// Sends traces until the collector has them, or it takes too long. Returns how many spans it has rejected.
    fn delivered(&self, batch: &[Trace]) -> Result<u64, Refused> {
        let body = body(batch, &self.endpoint.resource).to_string();
        let mut pause = self.options.pause;
        for _ in 1..self.options.attempts {
            match self.post(&body) {
                Err(Refused { is_passing: true, .. }) if !self.ends.load(Ordering::Acquire) => {
                    // The end wakes this thread.
                    thread::park_timeout(pause);
                    pause *= 2;
                }
                result => return result,
            }
        }
        self.post(&body)
    }

    fn post(&self, body: &str) -> Result<u64, Refused> {
        let passing = |error: ureq::Error| Refused { why: error.to_string(), is_passing: true };
        let mut request = Request::post(&self.endpoint.url).header(CONTENT_TYPE, "application/json");
        for (name, value) in &self.endpoint.headers {
            request = request.header(name, value);
        }
        let request = request.body(body).map_err(|error| Refused { why: error.to_string(), is_passing: false })?;
        let mut answer = self.agent.run(request).map_err(passing)?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_string().unwrap_or_default();
        if !status.is_success() {
            let is_passing = matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            );
            return Err(Refused { why: format!("it answers {status}"), is_passing });
        }
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        // Integers of 64 bits are texts in the JSON of protobuf, and some collectors write numbers.
        let rejected = &answer["partialSuccess"]["rejectedSpans"];
        Ok(rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or(0))
    }
}
