//! The double by itself: its functions beside the header of the real library, results of collectives and kernels, and
//! calls that it refuses as the real libraries do.
//!
//! The tests call the double's functions as those of a Rust library. Most tests run in a process of their own
//! ([`common::child::alone`]), because variables, injected faults, devices and their errors belong to a process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
mod free;
mod graph;
mod header;
mod hip;
mod ipc;
mod launch;
mod lifecycle;
mod memory;
mod peer;
mod refusals;
mod start;
mod word;
