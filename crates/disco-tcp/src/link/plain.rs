//! A connection in clear.

use std::io::{self, IoSlice, Read as _};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::{Link, now, read};

/// Size of the read buffer: the head and the content of a small message need one call of the system.
const BUFFER_BYTES: usize = 4096;

/// A connection without encryption.
pub(crate) struct Plain {
    stream: TcpStream,
    buffer: Box<[u8]>,
    /// The bytes of the buffer that are not taken yet.
    unread: Range<usize>,
}

impl Plain {
    /// A link over a stream that does not block.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, buffer: vec![0; BUFFER_BYTES].into(), unread: 0..0 }
    }
}

impl AsFd for Plain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Link for Plain {
    fn send(&mut self, pieces: [&[u8]; 2]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(&self.stream, &pieces.map(IoSlice::new), &mut SendAncillaryBuffer::default(), flags);
        now(sent.map_err(io::Error::from))
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.unread.is_empty() {
            if into.len() >= BUFFER_BYTES {
                return read((&self.stream).read(into));
            }
            self.unread = 0..read((&self.stream).read(&mut self.buffer))?;
        }
        let count = self.unread.len().min(into.len());
        into[..count].copy_from_slice(&self.buffer[self.unread.start..][..count]);
        self.unread.start += count;
        Ok(count)
    }

    fn close(&self) {
        // A connection that has failed is closed.
        _ = self.stream.shutdown(Shutdown::Write);
    }
}
