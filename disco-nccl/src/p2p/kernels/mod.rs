//! Disco's own all-reduce kernels, over memory that the GPUs of one machine share. For small tensors they have less
//! latency than NCCL.
//!
//! ```text
//! choice          the algorithm, by topology and size
//! grid            the number of blocks and threads
//! params          the parameters of the kernels, and the layout of a rank's state
//! status          the failure report of a launch
//! name            the names of the kernels
//! compile         the CUBIN for an architecture, compiled once in a process
//!   nvrtc         NVIDIA's runtime compiler, loaded at run time
//! all_reduce.cu   the kernels
//!   handshake.cuh synchronisation of blocks with the same index on different GPUs, with timeout and abort
//!   machine.cuh   instructions of the GPU: memory order, time, conversions
//! ```
//! | algorithm | steps | handshakes |
//! |---|---|---|
//! | one-shot | each rank reads all inputs and sums them | all ranks: *leading*, *trailing* |
//! | two-shot | each rank sums one slice, then reads the other sums | all ranks: *leading*, *mid*, *trailing* |
//! | hybrid cube mesh | each rank sums its half, adds its relay's | half: *leading*; relay: *mid*; both: *trailing* |
//! | barrier | none | all ranks: *alone* |
//!
//! Each algorithm begins with a copy of the input to the rank's shared buffer. After the trailing handshake, the shared
//! buffer may be overwritten, by the next launch or by other work. Input and output may be the same memory; they are
//! not in shared buffers. Elements are `f32`, `f16` or `bf16`. They are added as `f32` in the order of ranks, so that
//! all ranks get the same bits. The hybrid cube mesh rounds the sums of both halves to the element type before it adds
//! them.
//!
//! # Requirements on the caller
//! - Every rank launches the same kernels in the same order on one stream, with the same [`Grid`] and number of
//!   vectors. A launch ends before the next launch of the same rank begins (no programmatic dependent launch). A launch
//!   may be part of a graph, because the handshakes are counted in device memory and not by a parameter.
//! - All blocks of all ranks are resident at once. [`grid`](grid::grid) limits the number of blocks for that, provided
//!   that other work of the device ends without waiting for these kernels.
//! - Each rank's state has [`STATE_BYTES`] bytes, is aligned to 128 bytes and is zero before any rank launches. After a
//!   failed launch, later launches of that rank make no handshake and write nothing. To start again, all ranks stop,
//!   clear their states and synchronise.
//!
//! # Timeout and abort
//! A wait for a peer ends when the host sets the word at [`Params::abort`], or after [`Params::timeout_ns`]. The kernel
//! ends soon after, its output is unspecified, and the word at [`Params::report`] has the reason ([`Failure`]).

mod choice;
mod compile;
pub mod grid;
mod name;
mod nvrtc;
mod params;
mod status;

pub use choice::{Algorithm, Thresholds, choose};
pub use compile::{Architecture, MACHINE, compile, cubin, nvrtc};
pub use grid::Grid;
pub use name::{BARRIER, KERNELS, name};
pub use nvrtc::{Compiled, Nvrtc, Source};
pub use params::{FIELDS, MAX_BLOCKS, MAX_THREADS, MAX_WORLD, Params, STATE_BYTES, VECTOR};
pub use status::{Cause, Failure, Phase};
