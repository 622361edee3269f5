//! The path of a command: the order of commands, the frames that lanes get, and the waits for replies. A reader who
//! knows these files knows how a call works; that workers are replaced, or change in number, is the business of
//! [`session`](crate::session), which lies above.
//!
//! ```text
//! command_stream   the order of commands, and what lanes get      asking        commands with replies
//!   order          numbers, registers, frames that are kept       waits         waits for replies and for capacity
//!   functions      the functions that were looked up              deadline_watch, ticker, sleepers   what ends and wakes waits
//! large, preparing large values, before the order ticket          worker_0      copies to and from worker 0
//! lane_set         the lanes, and who owns which worker           reply_table   replies, failures and losses that lanes report
//! fleet            whether workers take commands, who changes them
//! timeline, collecting, explaining                                records, and errors with a table of them
//! args, selected, dref, deadlines                                 what programs pass
//! ```
//!
//! # Invariants
//! - Submitting a call never waits for a reply. Every worker sees the same order. Dropping a handle never sends or
//!   blocks.
//! - A full lane accepts no frame: the submitter waits, without spinning, until the lane reports capacity. The order
//!   ticket is never held across a wait, so a future that is not polled delays no other one. The ring of a thread
//!   lane has 1,024 slots, the ring of a process lane 4 MiB: this limits the calls that are queued for a stuck
//!   worker.
//! - Workers that are threads read a frame in its slot of the ring. The ring keeps *light* frames (`Frame::is_light`:
//!   at most 1 KiB, no tensor) until the writer reuses their slots, so workers do not count references. The last
//!   worker that has finished releases any other frame at once, and its tensors.
//! - A freed id is sent before the command that reuses it, in the same frame.
//! - If a lane fails after another lane has taken the frame, the session is lost: all later methods return the error.
//! - A command that is submitted between the end of a worker and the report of its loss may reach only the other
//!   workers. For a user this is the same as a command before the end: it has no reply, and the session is lost
//!   before any later wait ends.
//! - If a command's values can't be encoded, in a session that needs bytes, the command is refused. Its number and
//!   its freed ids are sent in an empty frame.
//! - Abort, cancellation, credit for results and shutdown never pass through the ring (`Channel::signal`).
//! - A name of a worker function is registered once: otherwise `LaneSession::start` fails with both source locations.
//!
//! # Failure
//! - The first error or panic of a worker **poisons** it: later calls are skipped and poison their register; commands
//!   with a reply still answer. On the worker's notice, the session signals **abort** to all workers, so that peers
//!   inside a collective return with `Error::Aborted`. A node that passes such a notice or a loss on aborts its own
//!   workers and those behind it at once. From then on submissions fail with `Error::Earlier`, which has the root
//!   cause: of two failures, the one that is not a consequence of another.
//! - An **epoch** is the time between two recoveries. `Session::recover` (which `init_ccl` calls) sends a command
//!   that clears each worker's failure, drops its communicators and starts an epoch. Aborts and notices have the
//!   number of their epoch; those of an earlier epoch have no effect. A link gives out the store as a view of its
//!   worker's epoch (`store/view.rs`), so a late worker neither waits nor writes in the next epoch.
//! - A worker's process or a node that ends, closes its connection, is silent for 5 s or sends garbage is lost, and
//!   so is the session until the worker is replaced. After the connection of a process closes, the controller waits
//!   500 ms at most for its exit status, so that the error names a signal. A worker or node whose controller is lost
//!   ends. At shutdown, processes that do not leave are killed (by pidfd), and so are nodes that the session has
//!   started; threads can't be killed.

mod args;
pub(crate) mod asking;
pub(crate) mod collecting;
pub(crate) mod command_stream;
mod deadline_watch;
mod deadlines;
mod dref;
mod explaining;
pub(crate) mod fleet;
mod functions;
pub(crate) mod lane_set;
pub(crate) mod large;
pub(crate) mod order;
mod preparing;
pub(crate) mod reply_table;
mod selected;
mod sleepers;
mod ticker;
pub(crate) mod timeline;
mod waits;
mod worker_0;

pub use args::{Arguments, IntoArg, IntoArgs};
pub use collecting::Recordings;
pub use deadlines::Deadlines;
pub use dref::DRef;
pub(crate) use selected::Selected;
pub use timeline::Timeline;
