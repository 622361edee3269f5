//! Disco is an SPMD runtime for distributed inference and training. One **controller**, your program, broadcasts calls
//! to N **workers**. The workers run the same functions on their own data and exchange tensors through a **backend**
//! that is chosen at run time.
//!
//! ```
//! use disco::prelude::*;
//!
//! /// Runs on every worker.
//! fn scale(ctx: &mut WorkerContext, by: f64) -> disco::Result<f64> {
//!     Ok(by * ctx.worker().index() as f64)
//! }
//! disco::register_function!("docs.scale", scale);
//!
//! fn main() -> disco::Result<()> {
//!     let session = Builder::threads(3).start()?;
//!     disco::block_on(async {
//!         let scaled = session.call("docs.scale", (2.5,)).await?;
//!         assert_eq!(session.get_all::<f64>(&scaled).await?, [0.0, 2.5, 5.0]);
//!         session.shutdown().await
//!     })
//! }
//! ```
//!
//! # Where to start
//! | to do | start at |
//! |---|---|
//! | import what nearly every program uses | [`prelude`] |
//! | start workers as threads, processes or nodes | [`Builder`]; [`init`] for processes and nodes; [`from_env`] and [`Settings`] for environment variables |
//! | write a worker function | [`register_function!`], [`WorkerContext`], [`function`]; [`Opaque`] for an object that stays on its worker |
//! | call functions and get their results | [`Session`]; a [`DRef`] is a handle to one object on each worker |
//! | call functions on some workers | [`call_on`](Session#method.call_on); [`call_each`](Session#method.call_each) for arguments of their own |
//! | get the result of one worker, in one command | [`LaneSession::call_returning`] |
//! | get results while a call runs | [`LaneSession::call_streaming`] and [`WorkerContext::emit`]; [`Results`] is a stream |
//! | cancel a call | [`Session::cancel`]; [`WorkerContext::cancelled`] in the function |
//! | exchange tensors from the controller | the collectives of [`Session`], with [`Placement`], [`Scope`] and [`Reduction`] |
//! | exchange tensors in a worker function | [`CommunicatorExt`] on [`WorkerContext::comm`] |
//! | exchange tensors while a worker computes | [`Communicator::start`] or `start_…` of [`CommunicatorExt`], and [`Work`] |
//! | reduce by functions of your own | [`register_reduction!`], [`Reduction::Custom`]; [`reductions`] has some |
//! | read and write tensors | [`Tensor`], [`tensor`]; [`DType`], [`Shape`], [`Device`] |
//! | match errors | [`Error`], [`error`]; [`Unavailable`] for a library that is missing |
//! | limit waits | [`Deadlines`], [`Builder::deadlines`] |
//! | save the state of a training, and load it with any number of workers | [`checkpoint`] |
//! | continue without lost workers, or with another number of workers | [`Session::replace_lost`], [`Session::resize`], [`ReplacementPolicy`] |
//! | split the workers | [`Mesh`]: named dimensions; [`Builder::groups`], [`LaneSession::subset`] |
//! | see the progress of the workers | [`LaneSession::status`], [`status`], [`activity`], [`Diagnosis`]; [`programs`] for all sessions of a machine |
//! | run on several machines or under a launcher | [`join`], [`JoinOptions`], [`Token`], [`launcher`]; [`serve`] and [`Invitation`] for other ways to start processes |
//! | send values of your own types | [`WireObject`], [`register_object!`], [`wire`]; the feature `serde` |
//! | write a backend | [`Backend`], [`Communicator`], [`backend`]; [`DeviceApi`], [`device_api`] for a kind of device |
//! | measure the latency between the processors of your threads | [`placement`] |
//! | work with sessions of TVM's Disco | [`tvm`], the feature `tvm` |
//!
//! # Features and platforms
//! | feature | adds |
//! |---|---|
//! | `local` (default) | the backend `local`: host tensors of threads, processes and nodes of one machine |
//! | `checkpoint` (default) | [`checkpoint`]: checkpoints that any number of workers loads |
//! | `nodes` (default) | sessions of nodes: workers on other machines, over encrypted connections; without it, starting or joining one is an error |
//! | `tcp` (default) | the backend `tcp`: host tensors of workers on any number of machines |
//! | `trace` (default) | [`trace`], `Builder::trace` and `DISCO_DUMP`: files of timelines and flight recorders |
//! | `mpi` | [`mpi`], the backend `mpi`: host tensors over the MPI library of the machine |
//! | `nccl` | [`nccl`], the backends `nccl` and `cuda_p2p`, and the device kind `cuda`: NVIDIA GPUs |
//! | `nccl-without-bindings` | the same, if another crate of the program chooses the version of the bindings of `cudarc` |
//! | `rccl` | [`rccl`], the backends `rccl` and `rocm_p2p`, and the device kind `rocm`: AMD GPUs |
//! | `candle` | [`candle`]: collectives, layers and split weights for models of the crate `candle` |
//! | `models` | [`models`]: language models on candle |
//! | `candle-cuda` | the same on CUDA devices; the CUDA toolkit builds it |
//! | `ffi` | [`ffi`] and [`export_function!`]: shared libraries on the workers, with functions of the TVM-FFI C ABI |
//! | `metrics` | [`metrics`]: counters and histograms through the crate `metrics` |
//! | `ndarray` | `Tensor::from_ndarray` and `View::as_ndarray`: host tensors as arrays of the crate `ndarray` |
//! | `tvm` | [`tvm`]: workers of TVM's Disco in sessions, and workers for sessions of TVM |
//! | `serde` | [`Json`] values and [`register_error!`]: arguments, results and errors of your own types |
//!
//! No other feature needs a vendor library to build: MPI, NCCL, CUDA, RCCL and HIP are opened at run time. Sessions of
//! processes and nodes, and the items for them, exist on Linux only.
//!
//! # The guide
//! The guide is the folder `docs` of the repository. It starts with `docs/quick-start.md`; `docs/environment.md` lists
//! the environment variables, and `docs/support.md` lists the tested platforms. `README.md` compares Disco with other
//! systems, and `ARCHITECTURE.md` explains the code.
//!
// Targets of links to items that a feature or a platform adds. Without it, the link leads to the table of features. A
// link to a crate leads to its row below: rustdoc shows no link to a crate whose documentation was not built.
#![cfg_attr(feature = "candle", doc = "[`candle`]: #reexport.candle")]
#![cfg_attr(not(feature = "candle"), doc = "[`candle`]: #features-and-platforms")]
#![cfg_attr(feature = "checkpoint", doc = "[`checkpoint`]: #reexport.checkpoint")]
#![cfg_attr(not(feature = "checkpoint"), doc = "[`checkpoint`]: #features-and-platforms")]
#![cfg_attr(feature = "ffi", doc = "[`ffi`]: #reexport.ffi")]
#![cfg_attr(not(feature = "ffi"), doc = "[`ffi`]: #features-and-platforms")]
#![cfg_attr(feature = "models", doc = "[`models`]: #reexport.models")]
#![cfg_attr(not(feature = "models"), doc = "[`models`]: #features-and-platforms")]
#![cfg_attr(feature = "mpi", doc = "[`mpi`]: #reexport.mpi")]
#![cfg_attr(not(feature = "mpi"), doc = "[`mpi`]: #features-and-platforms")]
#![cfg_attr(feature = "nccl-without-bindings", doc = "[`nccl`]: #reexport.nccl")]
#![cfg_attr(not(feature = "nccl-without-bindings"), doc = "[`nccl`]: #features-and-platforms")]
#![cfg_attr(feature = "rccl", doc = "[`rccl`]: #reexport.rccl")]
#![cfg_attr(not(feature = "rccl"), doc = "[`rccl`]: #features-and-platforms")]
#![cfg_attr(feature = "trace", doc = "[`trace`]: #reexport.trace")]
#![cfg_attr(not(feature = "trace"), doc = "[`trace`]: #features-and-platforms")]
#![cfg_attr(not(feature = "ffi"), doc = "[`export_function!`]: #features-and-platforms")]
#![cfg_attr(not(feature = "serde"), doc = "[`Json`]: #features-and-platforms")]
#![cfg_attr(not(feature = "metrics"), doc = "[`metrics`]: #features-and-platforms")]
#![cfg_attr(not(feature = "serde"), doc = "[`register_error!`]: #features-and-platforms")]
#![cfg_attr(not(feature = "tvm"), doc = "[`tvm`]: #features-and-platforms")]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod builder;
mod env;
#[cfg_attr(not(target_os = "linux"), path = "init/unsupported.rs")]
mod init;
mod kind;
#[cfg(target_os = "linux")]
mod remote;
mod timeline;

pub use builder::Builder;
pub use disco_channel::placement;
#[cfg(feature = "metrics")]
pub use disco_core::metrics;
pub use disco_core::session::{
    Arguments, Callee, Deadlines, IntoArg, IntoArgs, LaneSession, Observer, Recordings, Replaced, ReplacementPolicy,
    Resized, Results, Returned, SessionConfig, Submission, Timeline,
};
pub use disco_core::{
    Abort, AbortCause, Axes, Backend, Capabilities, Communicator, CommunicatorExt, DRef, DType, Device, DeviceApi,
    DeviceKind, Element, Error, GroupId, Mesh, Object, Op, OpKind, Opaque, Placement, Probe, Queue, Rank, Reduction,
    RegisterId, Result, Scope, Session, Shape, Store, Tensor, Unavailable, Value, WireObject, Work, WorkerContext,
    WorkerId, WorkerRange, World,
};
pub use disco_core::{Diagnosis, activity, error, launcher, reductions, status, tensor};
#[cfg(feature = "serde")]
pub use disco_core::{function::Json, register_error};
pub use disco_core::{register_function, register_object, register_reduction};
pub use env::{Settings, from_env};
pub use init::init;
pub use kind::SessionKind;
pub use pollster::block_on;
#[cfg(all(feature = "tvm", target_os = "linux"))]
pub use remote::tvm;
#[cfg(target_os = "linux")]
pub use {
    builder::remote::{NodeOptions, ProcessOptions},
    disco_channel::nodes::{Announce, Announcement, JoinOptions, StopHandle, Token, status as ask_status},
    disco_channel::processes::{Invitation, Launch},
    disco_channel::programs,
    remote::{node::join, role::serve},
};

/// For the command `disco` and for macros of this crate.
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod internal {
    pub use crate::env::remote::READ_SETTINGS;
    #[cfg(feature = "mpi")]
    pub use crate::init::restart_under_mpi;
    pub use crate::init::{init_in_test, init_without_launcher, serves};
    pub use crate::remote::node::be_node;
    pub use crate::remote::role::{WorkerProgram, set_worker_program};
    pub use crate::remote::signals;
    pub use crate::remote::start_nodes::START_NODE;
    pub use disco_channel::nodes::everywhere;
    pub use disco_channel::terminal::print as print_line;
}

// A crate that is never mentioned is not linked, so it registers nothing.
#[cfg(feature = "candle")]
pub use disco_candle as candle;
#[cfg(feature = "checkpoint")]
pub use disco_checkpoint as checkpoint;
#[cfg(feature = "ffi")]
pub use disco_ffi::{self as ffi, export_function};
#[cfg(feature = "local")]
use disco_local as _;
#[cfg(feature = "models")]
pub use disco_models as models;
#[cfg(feature = "mpi")]
pub use disco_mpi as mpi;
#[cfg(feature = "nccl-without-bindings")]
pub use disco_nccl as nccl;
#[cfg(feature = "rccl")]
pub use disco_rccl as rccl;
#[cfg(feature = "tcp")]
use disco_tcp as _;
#[cfg(feature = "trace")]
pub use disco_trace as trace;

/// Makes the Rust blocks of the guide doc tests.
#[cfg(doctest)]
mod guide {
    /// Declares a type per chapter, with the chapter as its documentation.
    macro_rules! chapters {
        ($($name:ident $path:literal)*) => { $(#[doc = include_str!(concat!("../docs/", $path))] struct $name;)* };
    }
    chapters! {
        QuickStart "quick-start.md"
        FromTorchAndMpi "from-torch-and-mpi.md"
        Concepts "concepts.md"
        Functions "functions.md"
        Sessions "sessions.md"
        Calls "calls.md"
        DataPlane "data-plane.md"
        Failures "failures.md"
        Groups "groups.md"
        Monitoring "monitoring.md"
        Tracing "tracing.md"
        Troubleshooting "troubleshooting.md"
    }
    #[cfg(feature = "checkpoint")]
    chapters! {
        Checkpoints "checkpoints.md"
    }
    #[cfg(feature = "ffi")]
    chapters! {
        Libraries "libraries.md"
    }
    #[cfg(feature = "serde")]
    chapters! {
        OwnTypes "own-types.md"
    }
    #[cfg(feature = "tvm")]
    chapters! {
        Tvm "tvm.md"
    }
    #[cfg(feature = "candle")]
    chapters! {
        Models "models.md"
    }
    #[cfg(feature = "nccl")]
    chapters! {
        Tensors "tensors.md"
        PeerToPeer "peer-to-peer.md"
    }
}

/// The names that nearly every program uses, for `use disco::prelude::*`. [`Result`] is not among them, so
/// that std's keeps its name.
///
/// ```
/// use disco::prelude::*;
///
/// /// Runs on every worker.
/// fn sum(ctx: &mut WorkerContext) -> disco::Result<f32> {
///     let tensor = Tensor::from_slice(&[ctx.worker().index() as f32], [1])?;
///     ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
///     Ok(tensor.to_vec::<f32>()?[0])
/// }
/// disco::register_function!("docs.sum", sum);
///
/// fn main() -> Result<(), disco::Error> {
///     let session = Builder::threads(3).start()?;
///     disco::block_on(async {
///         session.init_ccl("local", &[]).await?;
///         let sums = session.call("docs.sum", ()).await?;
///         assert_eq!(session.get_all::<f32>(&sums).await?, [3.0; 3]);
///         session.shutdown().await
///     })
/// }
/// ```
pub mod prelude {
    pub use crate::{Builder, CommunicatorExt, DType, Reduction, Session, Tensor, WorkerContext};
}

/// The backends linked into this program. The documentation of `disco-core` explains how to write one.
pub mod backend {
    pub use disco_core::backend::{all, find};
}

/// The kinds of devices of this program, and events in a [`Queue`].
pub mod device_api {
    pub use disco_core::device_api::{Event, find};
}

/// Traits of worker functions, their arguments and their results.
pub mod function {
    pub use disco_core::function::{Arg, Args, BoxError, FromArg, Function, IntoObject, WorkerFunction};
}

/// Reader and writer of the wire format, for implementations of [`WireObject`].
pub mod wire {
    pub use disco_core::wire::{Reader, WireError, Writer};
}
