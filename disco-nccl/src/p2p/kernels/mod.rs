//! All-reduce by kernels of our own, over memory that ranks of one machine share: less latency than NCCL's for what is
//! small.
//!
//! ```text
//! choice          which algorithm, by topology and size
//! grid            on how many blocks and threads
//! params          what every kernel is launched with, and what a rank has between launches
//! status          why a launch has failed
//! name            which kernel of the source
//! compile         CUBIN for a device's architecture, once a process
//!   nvrtc         NVIDIA's compiler as a library, found at run time
//! all_reduce.cu   the kernels
//!   handshake.cuh how blocks of the same number meet, and give up
//!   machine.cuh   what only a GPU has
//! ```
//!
//! | algorithm | what is done | handshakes |
//! |---|---|---|
//! | one-shot | each rank reads what all have, and sums it | all: *leading*, *trailing* |
//! | two-shot | each sums a slice, and reads the other slices' sums | all: *leading*, *mid*, *trailing* |
//! | hybrid cube mesh | four sum theirs; each adds what its relay, of the other four, has summed | the four: *leading*; the relay: *mid*; both: *trailing* |
//! | barrier | nothing | all: *alone* |
//!
//! All begin with a copy of the input to the rank's shared buffer, and after the trailing handshake that buffer may be
//! written again: by the next launch, or by who uses it otherwise. Input and output may be the same memory, and are not
//! shared. Elements are `f32`, `f16` or `bf16`, summed as `f32` in the order of ranks, so that all ranks get the same
//! bits. The hybrid cube mesh rounds the two halves' sums to the element type before it adds them.
//!
//! # What the caller sees to
//! - Every rank launches the same kernels in the same order, on one stream, with the same [`Grid`] and number of
//!   vectors; one launch is over before the next of the same rank begins (no programmatic dependent launch). It may be
//!   part of a graph: numbers of handshakes are in memory, and none is a parameter.
//! - All blocks of all ranks are on their devices at once: [`grid`](grid::grid) sees to it, if what else runs on a
//!   device ends by itself.
//! - Each rank's state, [`STATE_BYTES`] aligned to 128, is zeros before any rank launches. Once a launch has failed,
//!   the rank's later ones meet nobody and write nothing; to begin anew, all ranks stop, clear their states, meet, and
//!   go on.
//!
//! # How it ends where a peer does not come
//! A wait ends when the host sets the word at [`Params::abort`], or after [`Params::timeout_ns`]; the kernel is over
//! soon after, its output is unspecified, and the word at [`Params::report`] says why ([`Failure`]).

mod choice;
mod compile;
pub mod grid;
mod name;
mod nvrtc;
mod params;
mod status;

pub use choice::{Algorithm, Thresholds, choose};
pub use compile::{Architecture, compile, cubin, nvrtc};
pub use grid::Grid;
pub use name::{BARRIER, KERNELS, name};
pub use nvrtc::{Compiled, Nvrtc};
pub use params::{FIELDS, MAX_BLOCKS, MAX_THREADS, MAX_WORLD, Params, STATE_BYTES, VECTOR};
pub use status::{Cause, Failure, Phase};
