//! How the peers of a lane connect.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::connection::Connection;
use crate::engine::controller::Origin;

/// How the peers of a lane connect, and what else differs between lanes.
pub(crate) trait Transport: Send {
    /// What becomes readable when a connection can be accepted, until none is any more.
    fn listener(&self) -> Option<BorrowedFd<'_>>;

    /// Accepts a connection; none if it is of no use.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if nobody connects; else the system accepts none.
    fn accept(&mut self) -> io::Result<Option<Accepted>>;

    /// No more connections are accepted.
    fn stop_accepting(&mut self);

    /// A line that a worker has printed.
    fn print(&self, _from: String, _is_err: bool, _line: Arc<[u8]>) {}

    /// A peer is gone.
    fn retire(&self, _peer: usize) {}

    /// How often something has to be done that no event tells of, at least.
    fn interval(&self) -> Duration {
        Duration::MAX
    }

    /// Does it.
    fn tick(&self) {}

    /// The lane is over.
    fn finish(&mut self) {}
}

/// A connection that was accepted.
pub(crate) struct Accepted {
    pub(crate) connection: Connection,
    pub(crate) origin: Origin,
    /// Bytes that come before messages.
    pub(crate) bytes: usize,
    /// The largest message at first.
    pub(crate) limit: usize,
}
