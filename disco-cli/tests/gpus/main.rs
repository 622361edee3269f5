//! The `disco` command on the test double of the libraries of GPUs.

#![cfg(any(feature = "nccl", feature = "rccl"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod double;
mod nccl;
mod rccl;
mod topo;
