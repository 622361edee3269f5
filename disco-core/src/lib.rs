//! The words and the contracts of Disco: values, tensors, commands, the wire format, the traits [`Session`], [`Channel`],
//! [`Communicator`] and [`Backend`], the one session implementation over lanes, and the worker's loop.
//!
//! No sockets and no vendor libraries here. The crate graph, the path of a command and the invariants stand in
//! `ARCHITECTURE.md`; programs usually depend on the facade crate `disco`.

pub mod abort;
pub mod activity;
pub mod backend;
pub mod channel;
mod command;
mod communicator;
mod device;
pub mod device_api;
mod dtype;
pub mod epoch;
pub mod error;
mod frame;
pub mod function;
mod id;
pub mod link;
mod object;
pub mod op;
mod prefetch;
pub mod roll;
pub mod session;
mod shape;
pub mod shared_memory;
pub mod store;
pub mod tensor;
mod value;
pub mod wire;
pub mod worker;
mod world;

pub use abort::Abort;
pub use backend::{Backend, Probe, Rendezvous, Seat};
pub use channel::{Channel, Endpoint, Inbox};
pub use command::{Command, Local};
pub use communicator::{Capabilities, Communicator, CommunicatorExt};
pub use device::{Device, DeviceKind};
pub use device_api::{DeviceApi, Queue};
pub use dtype::{DType, Element};
pub use error::{Error, Result, Unavailable};
pub use frame::Frame;
pub use id::{GroupId, Rank, RegisterId, WorkerId};
pub use link::Link;
pub use object::{Object, Opaque};
pub use op::{Op, OpKind, Reduction};
pub use roll::Roll;
pub use session::{DRef, DataPlane, Placement, Scope, Session, SessionExt};
pub use shape::Shape;
pub use store::Store;
pub use tensor::Tensor;
pub use value::{Value, WireObject};
pub use worker::WorkerContext;
pub use world::World;

#[doc(hidden)]
pub use inventory;
