//! The `disco` command as a library: list, check and measure backends, measure the control plane, show GPU links, run a
//! program, join a session, explain its trace.
//!
//! To get the same command with your own backend, write a program that links the backend and calls [`main`]:
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
//! Then `my-disco check --backend NAME` and `my-disco bench all_reduce --backend NAME` check and measure it like any
//! other. The features `local`, `tcp`, `mpi`, `nccl` and `rccl`, all on by default, link Disco's own backends.

#[cfg(not(target_os = "linux"))]
compile_error!("the command `disco` needs Linux; the library `disco` builds without it");

mod backends;
mod bench;
mod check;
mod cli;
mod log;
mod output;
mod ping;
mod reconnect;
mod report;
mod restart;
mod run;
mod session;
mod stacks;
mod status;
mod supervisor;
mod token;
#[cfg(feature = "nccl")]
mod topo;
mod trace;
mod tvm;
mod values;
mod watch;
mod worker;

pub use cli::main;
