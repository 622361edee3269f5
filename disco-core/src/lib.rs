//! The words and the contracts of Disco: values, tensors, commands, the wire format, the traits [`Session`], [`Channel`],
//! [`Communicator`] and [`Backend`], the one session implementation over lanes, and the worker's loop.
//!
//! No sockets and no vendor libraries here. The crate graph, the path of a command and the invariants stand in
//! `ARCHITECTURE.md`; programs usually depend on the facade crate `disco`.

pub mod abort;
pub mod activity;
pub mod backend;
mod causes;
pub mod channel;
mod codec;
mod command;
mod communicator;
mod config;
mod context;
mod data_plane;
mod device;
pub mod device_api;
mod dtype;
pub mod env;
pub mod error;
mod error_kind;
mod failure;
pub mod function;
mod id;
pub mod link;
mod loss;
mod memory;
pub mod op;
mod prefetch;
pub mod roll;
pub mod session;
mod shape;
pub mod shared_memory;
mod signal;
pub mod store;
pub mod sync;
pub mod tensor;
mod unavailable;
pub mod user_error;
mod value;
pub mod wire;
pub mod worker;
mod worker_range;
mod world;

pub use abort::Abort;
pub use backend::{Backend, Probe, Rendezvous, Seat};
pub use channel::{Channel, Endpoint, Inbox};
pub use command::{Command, Local};
pub use communicator::{Capabilities, Communicator, CommunicatorExt};
pub use config::WorkerConfig;
pub use context::WorkerContext;
pub use device::{Device, DeviceKind, UnknownDevice};
pub use device_api::{DeviceApi, Queue};
pub use dtype::{DType, Element, UnknownDType};
pub use error::{Error, Result, Unavailable};
pub use function::{Object, Opaque};
pub use id::{GroupId, Rank, RegisterId, WorkerId};
pub use link::Link;
pub use op::{Op, OpKind, Reduction};
pub use roll::Roll;
pub use session::{DRef, DataPlane, Placement, Scope, Session, SessionExt};
pub use shape::Shape;
pub use store::Store;
pub use tensor::Tensor;
pub use value::{Value, WireObject};
pub use wire::Frame;
pub use worker_range::WorkerRange;
pub use world::World;

#[doc(hidden)]
pub use inventory;
