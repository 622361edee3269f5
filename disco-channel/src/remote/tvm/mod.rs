//! Workers of TVM's Disco in sessions of this program, and workers of this program in sessions of TVM's Disco.
//!
//! ```text
//! controller        transport                            worker
//! Lane, processes   a socket pair (standard input)       python3 -m tvm.exec.disco_worker ID N GROUPS 0 0
//! Lane, nodes       TCP, this program listens            python3 -m tvm.exec.disco_remote_socket_session HOST PORT K
//! TVM               two pipes                            `serve`: Endpoint, and the worker's loop
//! TVM               TCP, TVM listens                     `join`: a node whose workers are threads
//! ```
//!
//! `disco_core::wire::tvm` describes the packets. TVM's dialect has no message for failures, aborts, progress, the store
//! or liveness:
//!
//! - A worker of TVM that fails ends its process. The lane reports the worker as lost, with the exit status or the
//!   signal. TVM's error text is on the worker's standard error, which the lane passes on.
//! - A worker of this program that fails prints its error at once. If a reply is due, the worker sends Disco's message
//!   of a failure, which TVM's controller does not understand: there, the waiting call raises an error, and the session
//!   stays usable. After that reply the worker recovers.
//! - While a worker of TVM owes a reply, it counts as inside a function: only the deadline of calls applies.
//!
//! **Worker 0** of a lane to processes is a process of TVM, too. Copies from and to worker 0 are sent as
//! `DebugGetFromRemote` and `DebugSetRegister`, because only a thread of TVM's own controller has the queue of host
//! arrays.
//!
//! **The end.** After ShutDown, a worker reads until the end of the connection: TVM's controller still frees registers
//! then, and a closed pipe would end its process.
//!
//! **Sockets.** TVM's sessions over sockets have no token: any process that can connect gets commands, which call any
//! function. Therefore both ends accept only addresses of the loopback, unless an option says that connections need no
//! authentication.
//!
//! # Where Disco differs
//! - Registers are freed by ids before the next command (action 64), not by one `KillReg` each, which is still
//!   understood.
//! - `sync_all` is one broadcast (action 65) and n replies, and so is `get_all` (action 94).
//! - A lane to TVM's own workers (`translate.rs`) sends TVM's commands instead: one `KillReg`
//!   for each freed register, one command for each worker, and register ids plus 1, because TVM does not store
//!   functions in register 0.
//! - Operations with a root take any root, where TVM's have worker 0. The counts of the V-forms are
//!   a list or a matrix that all workers get; each uses its own row and column.
//! - The other messages of a connection (hello, replies, notices, progress, store, descriptors) are packets of the
//!   same form, numbered from 69 up; a reply has its command's number, so replies may come in any order.
//! - Tensors of any size can be arguments and can be set and got: by reference in one process, by copy elsewhere.
//! - The worker functions `send_to_next_group` and `recv_from_prev_group` run on every worker, as all calls do; workers
//!   without a next or previous group do nothing. The methods of `WorkerContext` return errors there.
//! - `broadcast` and `scatter` of a controller's array reach the whole world; of a handle, the world or each group.

mod address;
mod connection;
mod endpoint;
mod functions;
mod lane;
mod late;
mod meeting;
mod node;
mod nodes;
mod opened;
mod packets;
mod processes;
mod service;
mod session;
mod translate;
mod worker;

pub use address::Authentication;
pub use endpoint::Endpoint;
pub use lane::Lane;
pub use node::{JoinOptions, join};
pub use nodes::NodeOptions;
pub use packets::Packets;
pub use processes::Options;
pub use session::{nodes, processes};
pub use worker::{Place, serve};
