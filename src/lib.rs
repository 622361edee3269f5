#![doc = include_str!("../README.md")]

mod builder;
#[cfg(all(feature = "trace", target_os = "linux"))]
mod dump;
mod env;
#[cfg_attr(not(target_os = "linux"), path = "unsupported.rs")]
mod init;
#[cfg(target_os = "linux")]
mod job_socket;
mod kind;
#[cfg(all(feature = "mpi", target_os = "linux"))]
mod launched;
#[cfg(target_os = "linux")]
mod log_files;
#[cfg(target_os = "linux")]
mod node;
#[cfg(all(feature = "mpi", target_os = "linux"))]
mod ranks;
#[cfg(target_os = "linux")]
mod role;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod signals;
#[cfg(target_os = "linux")]
mod tasks;
mod timeline;
#[cfg(target_os = "linux")]
pub mod tvm;

pub use builder::Builder;
pub use disco_channel::placement;
#[cfg(feature = "metrics")]
pub use disco_core::metrics;
pub use disco_core::session::{
    Arguments, Deadlines, IntoArg, IntoArgs, LaneSession, Replaced, ReplacementPolicy, Resized, Timeline,
};
pub use disco_core::{
    Abort, Backend, Capabilities, Communicator, CommunicatorExt, DRef, DType, DataPlane, Device, DeviceApi, DeviceKind,
    Element, Error, GroupId, Object, Op, OpKind, Opaque, Placement, Probe, Queue, Rank, Reduction, RegisterId, Result,
    Scope, Session, SessionExt, Shape, Store, Tensor, Unavailable, Value, WireObject, WorkerContext, WorkerId,
    WorkerRange, World,
};
pub use disco_core::{Diagnosis, activity, error, launcher, status, tensor};
#[cfg(feature = "serde")]
pub use disco_core::{function::Json, register_error};
pub use disco_core::{register_function, register_object};
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use env::READ_SETTINGS;
pub use env::{Settings, from_env};
pub use init::init;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use init::{init_in_test, init_without_launcher};
pub use kind::SessionKind;
#[cfg(all(feature = "mpi", target_os = "linux"))]
#[doc(hidden)]
pub use launched::restart_under_mpi;
pub use pollster::block_on;
#[cfg(target_os = "linux")]
pub use {
    disco_channel::nodes::{Announcement, JoinOptions, StopHandle, Token, status as ask_status},
    disco_channel::processes::Invitation,
    disco_channel::programs,
    node::{be_node, join},
    role::serve,
};

// A crate that is never mentioned is not linked, so it registers nothing.
#[cfg(feature = "candle")]
pub use disco_candle as candle;
#[cfg(feature = "checkpoint")]
pub use disco_checkpoint as checkpoint;
#[cfg(feature = "ffi")]
pub use disco_ffi::{self as ffi, export_function};
#[cfg(feature = "local")]
use disco_local as _;
#[cfg(feature = "mpi")]
pub use disco_mpi as mpi;
#[cfg(feature = "nccl-without-bindings")]
pub use disco_nccl as nccl;
#[cfg(feature = "rccl")]
pub use disco_rccl as rccl;
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
        DataPlane "data-plane.md"
        Failures "failures.md"
        Groups "groups.md"
        Monitoring "monitoring.md"
        Tracing "tracing.md"
        Troubleshooting "troubleshooting.md"
        Tvm "tvm.md"
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
