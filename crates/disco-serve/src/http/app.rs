//! The parts and limits of a server.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use disco_models::SamplingDefaults;
use disco_models::encoding::Encoding;
use disco_models::text::Text;
use metrics_exporter_prometheus::PrometheusHandle;

use super::{BearerToken, Hosts, Origin};
use crate::engine::{Encoders, Requests};
use crate::health::Health;
use crate::trace::Queue;

/// A model that is served over HTTP.
pub struct App {
    /// The way to the engine.
    pub requests: Requests,
    /// The model.
    pub model: Model,
    /// For a model that makes vectors of texts, and no texts.
    pub encoder: Option<Encoder>,
    /// Bounds on the resources that clients can use.
    pub limits: Limits,
    /// The token of authorised clients; without one, all clients are authorised.
    pub token: Option<BearerToken>,
    /// The names by which clients may address the server; `None` permits all.
    pub hosts: Option<Hosts>,
    /// Web pages of other origins that may use the server.
    pub origins: Vec<Origin>,
    /// The state of the engine, which the engine writes.
    pub health: Arc<Health>,
    /// Writes `/metrics`; `None` answers that there are none.
    pub metrics: Option<PrometheusHandle>,
    /// Where spans of requests go; `None` records none.
    pub spans: Option<Queue>,
}

/// A model that makes vectors of texts, or scores of pairs.
#[derive(Clone, Debug)]
pub struct Encoder {
    /// The way to its engine.
    pub encoders: Encoders,
    /// How the model makes vectors or scores, and the most tokens of a text.
    pub encoding: Encoding,
}

/// The part of a model that the HTTP layer needs.
pub struct Model {
    /// The name that clients use.
    pub name: String,
    /// The [fingerprint](disco_models::fingerprint) that replies tell, once it is known.
    pub fingerprint: Arc<OnceLock<String>>,
    /// Whether its workers compute on the host, where the bits of logits don't depend on what else is in a step.
    pub is_on_the_host: bool,
    /// Tokenizer and chat template.
    pub text: Arc<Text>,
    /// Tokens that end a text, unless a client ignores them.
    pub ends: Vec<u32>,
    /// Number of tokens of the vocabulary.
    pub vocabulary: usize,
    /// How tokens are chosen for a client that does not say it.
    pub sampling: SamplingDefaults,
}

/// Bounds on the resources that clients can use.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most tokens of a prompt and its text, by the model.
    pub context: usize,
    /// The same by the cache.
    pub cache_tokens: usize,
    /// The most texts that wait for their first token.
    pub waiting_requests: usize,
    /// The most tokens of their prompts.
    pub waiting_tokens: usize,
    /// The most bytes of a body.
    pub body_bytes: usize,
    /// The most bytes of all bodies that have come and were not tokenised yet.
    pub bodies_bytes: usize,
    /// The most bytes of a head. hyper demands at least 8192.
    pub head_bytes: usize,
    /// The most connections. For another one, the client for which the server has waited longest loses its own.
    pub connections: usize,
    /// Time for the head of a request, which includes the idle time before it.
    pub head_time: Duration,
    /// Time for the body of a request.
    pub body_time: Duration,
    /// Time for a request from its arrival to the end of its texts.
    pub request_time: Duration,
    /// A connection ends after its client has read nothing for this time.
    pub write_time: Duration,
    /// A stream without other events has a comment after each such time.
    pub keep_alive: Duration,
    /// `/health` reports that the engine hangs once a step takes longer than this.
    pub step_time: Duration,
}

impl Limits {
    /// The usual limits for a model with this context and a cache with so many tokens.
    pub fn new(context: usize, cache_tokens: usize) -> Self {
        Self {
            context,
            cache_tokens,
            waiting_requests: 256,
            waiting_tokens: context.saturating_mul(64),
            body_bytes: 4 << 20,
            bodies_bytes: 64 << 20,
            head_bytes: 64 << 10,
            connections: 1024,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(30),
            request_time: Duration::from_secs(600),
            write_time: Duration::from_secs(60),
            keep_alive: Duration::from_secs(5),
            step_time: Duration::from_secs(60),
        }
    }

    /// The most tokens of a prompt and its text.
    pub(super) fn longest(&self) -> usize {
        self.context.min(self.cache_tokens)
    }
}
