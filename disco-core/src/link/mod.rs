//! A worker's connections outside the command stream. Any thread may use them, also while a function runs.
//!
//! The parts of a [`Link`]:
//!
//! ```text
//! SharedStore    the session's store, with a view for each epoch              crate::store
//! Descriptors    file descriptors for peers on this machine                   descriptors
//! AbortRegistry  the listeners of aborts, and the worker's epoch              crate::abort
//! calls          operations of calls, and the cancellation of calls
//! cancel         the calls that the controller has cancelled, and the communicators after them
//! credit         how many results of a call the controller has taken
//! Activity       the state of the worker, for reports                         crate::activity
//! Keeper         memory that outlives the worker                              keeper
//! Arena          allocator of host tensors that other processes map           crate::shared_memory
//! ```
//!
//! A lane provides the store, the descriptors and a function that sends notices to the controller. [`Shared`] is the
//! store and the descriptors of workers that are threads of one process.

mod calls;
mod cancel;
mod credit;
mod descriptors;
mod keeper;
mod proc_descriptors;
mod shared;
mod worker;

pub use descriptors::{Descriptors, SharedFd};
pub(crate) use keeper::keep;
pub use keeper::{Keeper, KeeperCall, KeptName, MAX_NAME_BYTES};
pub use proc_descriptors::ProcDescriptors;
pub use shared::Shared;
pub use worker::Link;
