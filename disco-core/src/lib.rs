//! Core of Disco, an SPMD runtime: one controller broadcasts commands to N workers over lanes, and workers exchange
//! tensors through communicators.
//!
//! The crate defines values, tensors, commands, the wire format and the traits [`Session`], [`Channel`],
//! [`Communicator`] and [`Backend`]. It implements the session over lanes ([`session`]) and the worker's loop
//! ([`worker`]). It opens no sockets and loads no vendor libraries. Programs usually depend on the facade crate
//! `disco-runtime`, which starts the workers.
//!
//! A worker function, and a controller that calls it through any session:
//!
//! ```
//! use disco_core::{DType, DataPlane, Placement, Result, Session, SessionExt, Tensor, WorkerContext, WorkerId};
//!
//! fn fill(_: &mut WorkerContext, x: Tensor, value: f64) -> Result<()> {
//!     x.view_mut::<f64>()?.iter_mut().for_each(|x| *x = value);
//!     Ok(())
//! }
//! disco_core::register_function!("docs.fill", fill);
//!
//! async fn run(session: &impl Session) -> Result<Vec<f64>> {
//!     let x = session.empty(DType::F64, [3], Placement::All).await?;
//!     session.call_named("docs.fill", (&x, 2.5)).await?;
//!     session.get_as::<Tensor>(&x, WorkerId::new(0)).await?.to_vec()
//! }
//! ```
//!
//! | to do | start at |
//! |---|---|
//! | call functions and collectives from the controller | [`SessionExt`], [`DataPlane`] |
//! | write a worker function | [`function`], [`WorkerContext`] |
//! | add a backend | [`Backend`], [`Communicator`] |
//! | add a transport | [`Channel`], [`Endpoint`] |
//! | read the crate graph, the path of a command and the invariants | `ARCHITECTURE.md` of the repository |

#![doc(html_root_url = "https://docs.rs/disco-core/latest")]

pub mod abort;
pub mod activity;
pub mod attendance;
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
mod diagnosis;
mod dtype;
pub mod env;
pub mod error;
mod error_kind;
mod failure;
pub mod function;
mod id;
pub mod launcher;
pub mod link;
mod loss;
mod members;
mod memory;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
mod metrics;
pub mod op;
mod prefetch;
mod processors;
pub mod session;
mod shape;
pub mod shared_memory;
mod signal;
pub mod status;
pub mod store;
mod stream;
pub mod suggestion;
pub mod sync;
pub mod tensor;
mod unavailable;
pub mod user_error;
mod value;
pub mod wire;
pub mod worker;
mod worker_range;
mod worker_set;
mod world;

pub use abort::Abort;
pub use attendance::Attendance;
pub use backend::{Backend, ConnectParams, Probe, Rendezvous};
pub use channel::{Channel, Endpoint, Inbox};
pub use command::{Command, Local};
pub use communicator::{Capabilities, Communicator, CommunicatorExt};
pub use config::WorkerConfig;
pub use context::WorkerContext;
pub use data_plane::{DataPlane, Placement, Scope};
pub use device::{Device, DeviceKind, UnknownDevice};
pub use device_api::{DeviceApi, Queue};
pub use diagnosis::Diagnosis;
pub use dtype::{DType, Element, UnknownDType};
pub use error::{Error, Result, Unavailable};
pub use function::{Object, Opaque};
pub use id::{GroupId, Rank, RegisterId, WorkerId};
pub use link::Link;
pub use members::Members;
pub use op::{Op, OpKind, Reduction};
pub use processors::processors;
pub use session::{DRef, Session, SessionExt};
pub use shape::Shape;
pub use store::Store;
pub use tensor::Tensor;
pub use value::{Value, WireObject};
pub use wire::Frame;
pub use worker_range::WorkerRange;
pub use worker_set::WorkerSet;
pub use world::World;

#[doc(hidden)]
pub use inventory;
