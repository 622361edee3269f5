//! What a worker reaches besides its commands, from any thread, also while a function runs.
//!
//! A [`Link`] is made of parts, each with a contract of its own:
//!
//! ```text
//! SharedStore    the session's store, which each epoch sees by a view         crate::store
//! Descriptors    file descriptors for peers on this machine                   descriptors
//! AbortRegistry  who is told of an abort, and in which epoch the worker is    crate::abort
//! Activity       what the worker is doing, for reports                        crate::activity
//! Arena          where host tensors are made that other processes map         crate::shared_memory
//! ```
//!
//! A lane brings the store, the descriptors and a function for notices to the controller. [`Shared`] is store and descriptors of
//! workers that are threads of one process.

mod descriptors;
mod shared;
mod worker;

pub use descriptors::{Descriptors, SharedFd};
pub use shared::Shared;
pub use worker::Link;
