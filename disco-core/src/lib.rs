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
//! use disco_core::{DType, Placement, Result, Session, Tensor, WorkerContext, WorkerId};
//!
//! fn fill(_: &mut WorkerContext, x: Tensor, value: f64) -> Result<()> {
//!     x.view_mut::<f64>()?.iter_mut().for_each(|x| *x = value);
//!     Ok(())
//! }
//! disco_core::register_function!("docs.fill", fill);
//!
//! async fn run(session: &dyn Session) -> Result<Vec<f64>> {
//!     let x = session.empty(DType::F64, [3], Placement::All).await?;
//!     session.call("docs.fill", (&x, 2.5)).await?;
//!     session.get::<Tensor>(&x, WorkerId::new(0)).await?.to_vec()
//! }
//! ```
//!
//! | to do | start at |
//! |---|---|
//! | call functions and collectives from the controller | [`Session`] |
//! | write a worker function | [`function`], [`WorkerContext`] |
//! | add a backend | [`Backend`], [`Communicator`] |
//! | add a transport | [`Channel`], [`Endpoint`] |
//! | read the crate graph, the path of a call and the invariants | `ARCHITECTURE.md` of the repository |
//!
//! # Contracts
//! | contract | implemented by | called by |
//! |---|---|---|
//! | `Session` | `LaneSession`, over any lanes | programs, on any executor |
//! | `Channel` | a lane, the controller's end | the session. `start` and `close` block, up to their limits; `send` and `signal` never wait |
//! | `SendsAhead`, `Polled`, `StartsWorkers` | lanes that can | the session, which asks the lane for them |
//! | `Inbox` | the session, a node's bridge | lanes, from any of their threads |
//! | `Endpoint` | a lane, the worker's end | the worker's loop, which owns its thread and may block |
//! | `SharedStore` | the store in the controller's memory, and its remote ends | a `Link`, which gives it out as a view of the worker's epoch (`Store`) |
//! | `Descriptors` | `Shared` among threads; the process lane through the controller | data planes, to share memory and sockets |
//! | `Abort` | communicators, meetings of ranks | a `Link`, which keeps those of one worker (`AbortRegistry`) |
//! | `Backend`, `DeviceApi` | a crate for each vendor, `disco-local` | `init_ccl` on a worker |
//! | `Communicator` | backends; `Watched` around each in a worker's context | worker functions, one thread at a time |
//!
//! A `Link` is a struct that a lane makes for each worker. It has the worker's store, descriptors, aborts and
//! `Activity`, an arena for host tensors that other processes map, and a function that sends notices to the
//! controller.
//!
//! Features of a backend beyond the contract are its *extension*: `Communicator::extension` returns it as `Any`, and
//! the backend's crate makes a typed view of it (`disco_nccl::extension(comm)?.premul_sum(..)`).
//! `Communicator::enqueue_with` launches its operations, so that reports and checks cover them like those of
//! `enqueue`.
//!
//! `dyn Communicator` is not `Send`: MPI may accept calls of one thread only, and a process may have several
//! communicators.
//! `disco_local::Communicator` and `disco_ccl::Communicator` are `Send`.
//!
//! # Layers
//! A module uses only modules below it:
//!
//! ```text
//! data_plane                                                 worker functions `disco.…`, and the methods that call them
//! session                 worker                             the controller's methods and changes of workers; a worker's loop
//! stream                                                     the path of a command
//!    │             function ── context                       worker functions, and their view of the worker
//!    ├──── channel ───┤  backend                             contracts of lanes and of data planes
//!  wire              link   attendance                       encoding; a worker's store, descriptors and aborts; ranks that have arrived
//! status  diagnosis  config                                  the state of a session, for operators; why a collective hangs;
//!                                                            the configuration that all workers get at the start
//! signal  store  communicator  device_api                    contents of lanes; contracts of the store, of ranks and of devices
//! work                                                       operations that run beside their caller
//! activity                                                   the records of a worker
//! reductions                                                 registered reductions: argmax, logsumexp, top-k
//! metrics                                                    counters and histograms
//! command                                                    commands
//! members                                                    the workers of a session, and their places
//! calling                                                    how the workers execute a call
//! op  value  shared_memory                                   operations; arguments; memory that processes share
//! tensor                                                     tensors
//! scope                                                      sets of workers of a collective
//! abort  env ── launcher  mesh  owner  world                 epochs and aborts; variables; tasks of launchers; workers by named
//!                                                            dimensions; owners of what drops end; workers and groups
//! error                                                      every failure
//! failure                                                    the failure of a worker, as lanes carry it
//! error_kind  loss  user_error  unavailable  memory          for matching: kinds of errors; lost peers and the causes;
//!                                                            errors of the program's own types; missing libraries; kinds of memory
//! worker_set ── worker_range                                 sets of workers; consecutive workers
//! causes  codec  device  dtype  id  shape                    chains of errors; bytes and numbers
//! format_as  prefetch  processors  suggestion  sync          `Display` and `Debug`; processors of this process; similar names;
//! terminal                                                   locks; messages
//! ```

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests compare texts"))]
#![doc(html_root_url = "https://docs.rs/disco-core/latest")]

pub mod abort;
mod abort_cause;
pub mod activity;
pub mod attendance;
pub mod backend;
mod calling;
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
mod format_as;
pub mod function;
mod id;
pub mod launcher;
pub mod link;
mod loss;
mod members;
mod memory;
mod mesh;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
mod metrics;
pub mod op;
mod owner;
mod prefetch;
mod processors;
pub mod reductions;
mod scope;
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
mod terminal;
mod unavailable;
pub mod user_error;
mod value;
pub mod wire;
pub mod work;
pub mod worker;
mod worker_range;
mod worker_set;
mod world;

pub use abort::{Abort, AbortCause};
pub use attendance::Attendance;
pub use backend::{Backend, ConnectParams, Probe, Rendezvous};
pub use calling::{Calling, Parts};
pub use channel::{Channel, Endpoint, Inbox};
pub use command::{Command, Local};
pub use communicator::{Capabilities, Communicator, CommunicatorExt};
pub use config::{Uplink, WorkerConfig};
pub use context::{Kept, WorkerContext};
pub use data_plane::{Placement, is_data_plane_function};
pub use device::{Device, DeviceKind, UnknownDevice};
pub use device_api::{DeviceApi, Queue};
pub use diagnosis::Diagnosis;
pub use dtype::{DType, Element, UnknownDType};
pub use error::{Error, Result, Unavailable};
pub use function::{Object, Opaque};
pub use id::{GroupId, Rank, RegisterId, WorkerId};
pub use link::Link;
pub use members::Members;
pub use mesh::Mesh;
pub use op::{Op, OpKind, Reduction};
pub use owner::Owner;
pub use processors::processors;
pub use scope::{Axes, Scope};
pub use session::{DRef, Session};
pub use shape::Shape;
pub use store::Store;
pub use tensor::Tensor;
pub use value::{Value, WireObject};
pub use wire::Frame;
pub use work::Work;
pub use worker_range::WorkerRange;
pub use worker_set::WorkerSet;
pub use world::World;

#[doc(hidden)]
pub use inventory;
#[doc(hidden)]
pub use terminal::tell;
