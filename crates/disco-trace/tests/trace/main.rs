//! Traces as files, text and dumps.

#![allow(clippy::unwrap_used, reason = "tests")]

mod arbitrary;
mod device;
mod explain;
mod file;
mod flight_recorder;
mod nesting;
mod sample;
