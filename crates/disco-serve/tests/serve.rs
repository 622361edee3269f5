//! The HTTP layer and the program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod http;
#[cfg(target_os = "linux")]
mod program;

use std::sync::OnceLock;

use disco_serve::metrics;
use metrics_exporter_prometheus::PrometheusHandle;

/// The metrics of this process, which all of its servers share.
fn recorder() -> PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| metrics::install().unwrap()).clone()
}
