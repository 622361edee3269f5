//! Workers that are threads of this process.
//!
//! ```text
//! controller's threads                         thread `disco-worker-3`
//! ThreadLane::send ─────── ring ─────────────▶ ThreadEndpoint::recv
//! ThreadLane::urgent ───── Link::abort ▶ whatever waits on peers
//! Inbox ◀───────────────────────────────────── ThreadEndpoint::reply, Link::notify: plain calls, on this thread
//! ThreadLane::close ◀───── exits ───────────── the function returned or panicked; the endpoint is gone by then
//! ```
//!
//! Commands and tensors pass by reference. A worker that ends before the lane was told to shut down, or by a panic, is
//! reported as lost, and the ring no longer waits for it.

mod crew;
mod endpoint;
mod exits;

mod lane;
#[cfg(test)]
mod tests;
mod work;

pub use endpoint::ThreadEndpoint;
pub use lane::ThreadLane;
