//! The collector of OpenTelemetry that gets the spans of requests.

use anyhow::Result;
use disco_serve::trace::Queue;

/// The way to a collector, if there is one.
pub(crate) struct Collector {
    #[cfg(feature = "otlp")]
    exporter: Option<disco_serve::trace::otlp::Exporter>,
}

#[cfg(feature = "otlp")]
impl Collector {
    /// Sends spans to the collector with this address from now on.
    ///
    /// # Errors
    /// The address or a variable of the environment is malformed.
    pub(crate) fn start(url: Option<&str>) -> Result<Self> {
        use anyhow::Context as _;
        use disco_serve::trace::otlp::{Endpoint, Exporter, Options};

        let Some(url) = url else { return Ok(Self { exporter: None }) };
        let endpoint = Endpoint::new(url, |name| std::env::var(name).ok()).context("--otlp")?;
        Ok(Self { exporter: Some(Exporter::start(endpoint, Options::default())?) })
    }

    /// Where spans go.
    pub(crate) fn spans(&self) -> Option<Queue> {
        self.exporter.as_ref().map(disco_serve::trace::otlp::Exporter::queue)
    }

    /// Sends the spans that wait.
    pub(crate) fn end(self) {
        /// How long the collector has for the last spans.
        const GRACE: std::time::Duration = std::time::Duration::from_secs(2);
        if self.exporter.is_some_and(|exporter| !exporter.end(GRACE)) {
            tracing::warn!("the collector does not take the last spans");
        }
    }
}

#[cfg(not(feature = "otlp"))]
impl Collector {
    /// # Errors
    /// This program can't send spans.
    pub(crate) fn start(url: Option<&str>) -> Result<Self> {
        anyhow::ensure!(
            url.is_none(),
            "--otlp: this program is built without the feature `otlp`: `cargo build --release -p disco-serve --features otlp`"
        );
        Ok(Self {})
    }

    pub(crate) fn spans(&self) -> Option<Queue> {
        None
    }

    pub(crate) fn end(self) {}
}
