//! The `disco` command as a library: which backends are there, are they right, how fast is the control plane, how are GPUs linked,
//! start a program, join one.
//!
//! A command that also has a backend of one's own is a program that links the backend and calls [`main`]:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! // use my_backend as _; // the crate of the backend, so that it is linked
//!
//! fn main() -> ExitCode {
//!     disco_cli::main("my-disco")
//! }
//! ```
//!
//! Then `my-disco check --backend NAME`, `my-disco bench all_reduce --backend NAME` and `my-disco ping` treat it as any other.
//! The features `local`, `mpi`, `nccl` and `rccl`, all on by default, link Disco's own backends.

mod backends;
mod bench;
mod check;
mod cli;
mod output;
mod ping;
mod plot;
mod report;
mod run;
#[cfg(target_os = "linux")]
mod token;
#[cfg(feature = "nccl")]
mod topo;
mod values;
#[cfg(target_os = "linux")]
mod worker;

pub use cli::main;
