//! Models on several workers, and models by their names on a hub.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods, reason = "tests")]

mod embeddings;
#[cfg(feature = "hub")]
mod hub;
#[cfg(target_os = "linux")]
mod transformer;
