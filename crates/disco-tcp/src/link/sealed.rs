//! An encrypted connection.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use disco_engine::noise::{MAX_PLAIN_BYTES, Opener, Sealer};

use super::{Link, now, read};

/// A connection whose bytes are [encrypted records](disco_engine::noise).
pub(crate) struct Sealed {
    stream: TcpStream,
    sealer: Sealer,
    /// The record that is being sent, and how many of its bytes the system has.
    record: Vec<u8>,
    sent: usize,
    opener: Opener,
    /// The content of the last record.
    content: Box<[u8]>,
    /// The bytes of the content that are not taken yet.
    unread: Range<usize>,
}

impl Sealed {
    /// A link over a stream that does not block, after the records that the two have sealed and opened.
    pub(crate) fn new(stream: TcpStream, sealer: Sealer, opener: Opener) -> Self {
        Self {
            stream,
            sealer,
            record: Vec::new(),
            sent: 0,
            opener,
            content: vec![0; MAX_PLAIN_BYTES].into(),
            unread: 0..0,
        }
    }
}

impl AsFd for Sealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Link for Sealed {
    fn send(&mut self, pieces: [&[u8]; 2]) -> io::Result<usize> {
        if !self.flush()? {
            return Ok(0);
        }
        self.sent = 0;
        let taken = self.sealer.seal(pieces.into_iter(), &mut self.record).map_err(io::Error::other)?;
        self.flush()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.record.len() {
            match now((&self.stream).write(&self.record[self.sent..]))? {
                0 => return Ok(false),
                count => self.sent += count,
            }
        }
        Ok(true)
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.unread.is_empty() {
            // A read may have brought several records.
            let mut opened = self.opener.open(&mut self.content).map_err(io::Error::other)?;
            if opened.is_none() {
                if self.opener.fill(|buffer| read((&self.stream).read(buffer)))? == 0 {
                    return Ok(0);
                }
                opened = self.opener.open(&mut self.content).map_err(io::Error::other)?;
            }
            self.unread = 0..opened.unwrap_or(0);
        }
        let count = self.unread.len().min(into.len());
        into[..count].copy_from_slice(&self.content[self.unread.start..][..count]);
        self.unread.start += count;
        Ok(count)
    }

    fn close(&self) {
        // A connection that has failed is closed.
        _ = self.stream.shutdown(Shutdown::Write);
    }
}
