#![doc = include_str!("../README.md")]

mod builder;
mod env;
#[cfg_attr(not(target_os = "linux"), path = "elsewhere.rs")]
mod init;
mod kind;
#[cfg(all(feature = "mpi", target_os = "linux"))]
mod launched;
#[cfg(target_os = "linux")]
mod node;
#[cfg(all(feature = "mpi", target_os = "linux"))]
mod ranks;
#[cfg(target_os = "linux")]
mod role;

pub use builder::Builder;
pub use disco_channel::placement;
pub use disco_core::{
    Abort, Backend, Capabilities, Channel, Command, Communicator, CommunicatorExt, DRef, DType, DataPlane, Device,
    DeviceApi, DeviceKind, Element, Endpoint, Error, Frame, GroupId, Inbox, Link, Object, Op, OpKind, Opaque,
    Placement, Probe, Queue, Rank, Reduction, RegisterId, Rendezvous, Result, Scope, Seat, Session, SessionExt, Shape,
    Store, Tensor, Unavailable, Value, WireObject, WorkerContext, WorkerId, WorkerRange, World,
};
pub use disco_core::{
    abort, activity, backend, channel, device_api, error, function, link, op, session, store, tensor, wire, worker,
};
pub use disco_core::{register_backend, register_function, register_object};
pub use env::{Settings, from_env};
pub use init::init;
pub use kind::SessionKind;
pub use pollster::block_on;
#[cfg(target_os = "linux")]
pub use {
    disco_channel::nodes::{Announcement, JoinOptions, Token},
    disco_channel::processes::Invitation,
    node::join,
    role::serve,
};

// A crate that nobody mentions is not linked and registers nothing.
#[cfg(feature = "local")]
use disco_local as _;
#[cfg(feature = "mpi")]
pub use disco_mpi as mpi;
#[cfg(feature = "nccl-without-bindings")]
pub use disco_nccl as nccl;
#[cfg(feature = "rccl")]
pub use disco_rccl as rccl;
