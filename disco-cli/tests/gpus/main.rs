//! The `disco` command on the test double of the libraries of GPUs.

#![cfg(all(any(feature = "nccl", feature = "rccl"), target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod double;
mod nccl;
mod rccl;
mod topo;
