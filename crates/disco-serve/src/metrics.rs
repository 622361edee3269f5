//! Metrics for Prometheus. Their names are vLLM's, so that its dashboards work; a few are our own.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use crate::health::Snapshot;

/// Upper ends of histograms' buckets, in seconds. vLLM has similar ones.
const SECONDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// The same of tokens.
const TOKENS: [f64; 15] =
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

/// Records the metrics of this process from now on. The handle writes them for `/metrics`.
///
/// # Errors
/// The process has a recorder already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?;
    builder.set_buckets_for_metric(Matcher::Full("vllm:iteration_tokens_total".into()), &TOKENS)?.install_recorder()
}

/// The metrics that the engine records.
pub(crate) struct StepMeters {
    pub(crate) tokens: Histogram,
    pub(crate) seconds: Histogram,
    pub(crate) preemptions: Counter,
    pub(crate) prefix_queries: Counter,
    pub(crate) prefix_hits: Counter,
    pub(crate) drafted: Counter,
    pub(crate) accepted: Counter,
    pub(crate) recomputed: Counter,
    pub(crate) resumed: Counter,
    pub(crate) repairs: Counter,
    pub(crate) last_repair: Gauge,
}

impl StepMeters {
    /// The meters of an engine that computes this model.
    pub(crate) fn new(model: &str) -> Self {
        let counter = |name: &'static str| counter!(name, "model_name" => model.to_owned());
        let histogram = |name: &'static str| histogram!(name, "model_name" => model.to_owned());
        Self {
            tokens: histogram("vllm:iteration_tokens_total"),
            seconds: histogram("disco_serve_step_seconds"),
            preemptions: counter("vllm:num_preemptions_total"),
            prefix_queries: counter("vllm:prefix_cache_queries_total"),
            prefix_hits: counter("vllm:prefix_cache_hits_total"),
            drafted: counter("vllm:spec_decode_num_draft_tokens_total"),
            accepted: counter("vllm:spec_decode_num_accepted_tokens_total"),
            recomputed: counter("disco_serve_tokens_computed_again_total"),
            resumed: counter("disco_serve_resumed_total"),
            repairs: counter("disco_serve_repairs_total"),
            last_repair: gauge!("disco_serve_last_repair_seconds", "model_name" => model.to_owned()),
        }
    }
}

/// The metrics that the HTTP layer records.
pub(crate) struct Meters {
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
    prompt_tokens: Counter,
    generated_tokens: Counter,
    stopped: Counter,
    full: Counter,
    aborted: Counter,
    model: String,
}

impl Meters {
    /// The meters of a server that has this model.
    pub(crate) fn new(model: &str) -> Self {
        let model = model.to_owned();
        let seconds = |name: &'static str| histogram!(name, "model_name" => model.clone());
        let tokens = |name: &'static str| counter!(name, "model_name" => model.clone());
        let finished = |reason: &'static str| counter!("vllm:request_success_total", "model_name" => model.clone(), "finished_reason" => reason);
        Self {
            first_token: seconds("vllm:time_to_first_token_seconds"),
            between_tokens: seconds("vllm:inter_token_latency_seconds"),
            whole: seconds("vllm:e2e_request_latency_seconds"),
            prompt_tokens: tokens("vllm:prompt_tokens_total"),
            generated_tokens: tokens("vllm:generation_tokens_total"),
            stopped: finished("stop"),
            full: finished("length"),
            aborted: finished("abort"),
            model,
        }
    }

    /// A request's prompts have so many tokens.
    pub(crate) fn prompted(&self, tokens: usize) {
        self.prompt_tokens.increment(tokens as u64);
    }

    /// A token came so long after the request, if it is the first one, or after the token before.
    pub(crate) fn token(&self, is_first: bool, after: Duration) {
        self.generated_tokens.increment(1);
        if is_first { &self.first_token } else { &self.between_tokens }.record(after);
    }

    /// A text is complete.
    pub(crate) fn finished(&self, is_stop: bool, after: Duration) {
        if is_stop { &self.stopped } else { &self.full }.increment(1);
        self.whole.record(after);
    }

    /// A text was given up, by the client or because of an error.
    pub(crate) fn aborted(&self) {
        self.aborted.increment(1);
    }

    /// A request was answered by an error with this code.
    pub(crate) fn rejected(&self, code: &'static str) {
        counter!("disco_serve_rejections_total", "model_name" => self.model.clone(), "reason" => code).increment(1);
    }

    /// Sets the gauges of the engine's load.
    pub(crate) fn engine(&self, snapshot: &Snapshot) {
        let set = |name: &'static str, value: f64| gauge!(name, "model_name" => self.model.clone()).set(value);
        let load = &snapshot.load;
        let used = load.blocks.saturating_sub(load.free_blocks);
        set("vllm:num_requests_running", load.running as f64);
        set("vllm:num_requests_waiting", load.waiting as f64);
        set("vllm:num_requests_swapped", 0.0);
        set("vllm:kv_cache_usage_perc", used as f64 / load.blocks.max(1) as f64);
    }
}
