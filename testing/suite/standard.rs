//! Tests of the standard harness: sessions of threads, sessions of any kind that begin with `init_test!`, and the example
//! `digits` and the template of a program. `cargo test -p disco-tests --test standard failure::` runs a module.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[cfg(target_os = "linux")]
mod digits;
mod failure;
mod gate;
#[cfg(unix)]
mod interrupt;
#[cfg(target_os = "linux")]
mod own_process;
mod own_session;
mod replacement;
mod session;
#[cfg(target_os = "linux")]
mod standard_harness;
#[cfg(target_os = "linux")]
mod standard_harness_without_init;
mod template;
mod with_session;
