//! The part of the reactor that differs between lanes.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use disco_core::{Error, Inbox, WorkerId, WorkerRange};
use disco_engine::controller::Origin;

use super::connection::Connection;

/// The listener of a lane, and its other parts that differ between processes and nodes.
pub(crate) trait Transport: Send {
    /// The descriptor that is readable when a connection can be accepted; `None` after [`Self::stop_accepting`].
    fn listener(&self) -> Option<BorrowedFd<'_>>;

    /// Accepts a connection; `None` if it was closed at once.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if no connection waits; else the system can't accept.
    fn accept(&mut self) -> io::Result<Option<Accepted>>;

    /// Closes the listener.
    fn stop_accepting(&mut self);

    /// Prints a line of a worker.
    fn print(&self, _node: u32, _worker: WorkerId, _is_err: bool, _line: Arc<[u8]>) {}

    /// Retires the ring's reader of a lost peer.
    fn retire(&self, _peer: usize) {}

    /// The inbox knows that these workers are lost.
    fn note_lost(&self, _workers: WorkerRange, _why: &Error) {}

    /// Delivers the replies that workers have left in shared memory.
    fn deliver_replies(&self, _inbox: &dyn Inbox) {}

    /// The interval at which [`Self::tick`] is called.
    fn interval(&self) -> Duration {
        Duration::MAX
    }

    /// Does periodic work.
    fn tick(&self) {}

    /// Ends the transport after all peers have ended.
    fn finish(&mut self) {}
}

/// A connection that was accepted.
pub(crate) struct Accepted {
    pub(crate) connection: Connection,
    pub(crate) origin: Origin,
    /// Bytes of the handshake that come before messages.
    pub(crate) bytes: usize,
    /// The largest message before admission.
    pub(crate) limit: usize,
}
