//! The `disco` command on the test double of the libraries of GPUs.

mod double;
mod nccl;
mod rccl;
mod topo;
