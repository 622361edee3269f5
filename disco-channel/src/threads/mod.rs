//! Workers that are threads of this process.
//!
//! ```text
//! controller's threads                         thread `disco-worker-3`
//! ThreadLane::send ─────── ring ─────────────▶ ThreadEndpoint::recv
//! ThreadLane::signal ───── Link::abort ▶ operations that wait for peers
//! Inbox ◀───────────────────────────────────── ThreadEndpoint::reply, Link::notify: plain calls on the worker's thread
//! ThreadLane::close ◀───── exits ───────────── `run` returned or panicked, after the endpoint was dropped
//! ```
//!
//! Commands and tensors pass by reference. A worker that ends before shutdown, or by a panic, is reported as lost, and
//! the ring no longer waits for it.

mod endpoint;
mod exits;
mod worker_set;

mod lane;
pub(crate) mod session;
#[cfg(test)]
mod tests;
mod work;

pub use endpoint::ThreadEndpoint;
pub use lane::ThreadLane;
