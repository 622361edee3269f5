//! Spans in OTLP, as JSON over HTTP. The collector gets them from a thread of their own.

mod encode;
mod endpoint;
mod exporter;

pub use endpoint::{Endpoint, WrongEndpoint};
pub use exporter::{Exporter, Options};
