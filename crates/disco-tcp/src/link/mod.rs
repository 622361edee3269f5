//! Connections to other ranks, as byte streams that never block: over TCP, encrypted ([`Sealed`]) or in clear ([`Plain`]), or
//! through the memory of a machine ([`Shared`]).

mod acknowledged;
#[cfg(feature = "metrics")]
mod counted;
mod plain;
mod sealed;
mod shared;

use std::io;
use std::os::fd::AsFd;

use rustix::event::PollFlags;

pub(crate) use acknowledged::{Acknowledged, acknowledged};
pub(crate) use plain::Plain;
pub(crate) use sealed::Sealed;
pub(crate) use shared::Shared;

/// A connection to another rank: a stream of bytes in each direction.
pub(crate) trait Link: AsFd + Send {
    /// Sends the first bytes of two pieces that follow each other. Returns how many; 0 if the connection takes none now.
    ///
    /// # Errors
    /// The connection has failed.
    fn send(&mut self, pieces: [&[u8]; 2]) -> io::Result<usize>;

    /// Passes the rest of what [`send`](Link::send) has taken on, at the end of a message. Returns whether nothing is left.
    ///
    /// # Errors
    /// The connection has failed.
    fn flush(&mut self) -> io::Result<bool>;

    /// Receives bytes into `into`, which has room for one at least. Returns how many; 0 if none have come.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] after the last byte; the connection has failed.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// What the rank polls the connection for until it may go on; `None` if it may go on now.
    ///
    /// # Errors
    /// The connection has failed.
    fn events(&mut self, wish: Wish) -> io::Result<Option<PollFlags>> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, wish.receives);
        flags.set(PollFlags::OUT, wish.sends);
        Ok(Some(flags))
    }

    /// Whether the other rank's machine acknowledges what the connection sends.
    fn acknowledged(&self) -> Acknowledged {
        acknowledged(self.as_fd())
    }

    /// Ends the stream to the other rank.
    fn close(&self);
}

/// What a rank wants to do with a connection that has taken or given no byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) sends: bool,
    pub(crate) receives: bool,
    /// Whether the rank sleeps until it can, or only looks.
    pub(crate) sleeps: bool,
}

/// Records the bytes and waits of a connection to a rank of a machine, with the feature `metrics`.
pub(crate) fn counted(link: Box<dyn Link>, machine: &str) -> Box<dyn Link> {
    #[cfg(feature = "metrics")]
    return Box::new(counted::Counted::new(link, machine));
    #[cfg(not(feature = "metrics"))]
    {
        _ = machine;
        link
    }
}

/// The result of a call that would have blocked is 0.
fn now(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
        result => result,
    }
}

/// The result of a read: no bytes mean the end.
fn read(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        result => now(result),
    }
}
