//! The receiving half.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use disco_core::shared_memory::MappedSnapshot;
use disco_core::wire::{Message, Packet, WireError};
use disco_core::{Error, Result};
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::Connection;
use crate::engine::limits::CHUNK;

/// Descriptors that may come with one chunk, and that may wait for their packets.
const FDS: usize = 16;

/// Bytes that are no whole packet yet, and descriptors whose packets were not taken.
pub(crate) struct Incoming {
    buffer: Vec<u8>,
    /// The part of the buffer that was not taken yet.
    unread: Range<usize>,
    /// What has come of a large packet, and what is to come.
    parts: Vec<u8>,
    left: u64,
    /// Bytes of parts that have come so far.
    moved: u64,
    fds: VecDeque<OwnedFd>,
    /// Memory with the large tensors of the next frame or reply.
    beside: Option<Arc<MappedSnapshot>>,
    /// The largest packet taken.
    limit: usize,
    is_closed: bool,
    /// A large reply in shared memory is next, and was not accepted.
    is_held: bool,
}

impl Incoming {
    /// Nothing so far. A packet may have `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let (buffer, parts) = (Vec::new(), Vec::new());
        let fds = VecDeque::new();
        Self {
            buffer,
            unread: 0..0,
            parts,
            left: 0,
            moved: 0,
            fds,
            beside: None,
            limit,
            is_closed: false,
            is_held: false,
        }
    }

    /// The other end has proved who it is: larger packets are taken.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Whether parts of a large packet have come, and others have not.
    pub(crate) fn is_inside_large_packet(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Bytes of large packets that have come so far.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// The other end has closed, or is gone; what came before can still be taken.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes in what is there now. Returns whether there may be more.
    ///
    /// # Errors
    /// More descriptors than packets that could want them.
    pub(crate) fn fill(&mut self, connection: &Connection) -> Result<bool> {
        self.make_room();
        let received = self.receive(connection);
        if self.fds.len() > FDS {
            return Err(Error::protocol(format!("{} descriptors that no packet speaks of", self.fds.len())));
        }
        match received {
            Ok(0) => self.is_closed = true,
            Ok(received) => {
                self.unread.end += received;
                // It stops at each packet with a descriptor.
                return Ok(true);
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // Reset: as good as closed.
            Err(_) => self.is_closed = true,
        }
        Ok(false)
    }

    /// Takes in bytes of nobody.
    #[cfg(fuzzing)]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.buffer.truncate(self.unread.end);
        self.buffer.extend_from_slice(bytes);
        self.unread.end = self.buffer.len();
    }

    /// A chunk of the buffer after what is unread.
    fn make_room(&mut self) {
        if self.buffer.len() < self.unread.end + CHUNK {
            if self.unread.start > 0 {
                self.buffer.copy_within(self.unread.clone(), 0);
                self.unread = 0..self.unread.len();
            }
            self.buffer.resize(self.buffer.len().max(self.unread.end + CHUNK), 0);
        }
    }

    fn receive(&mut self, connection: &Connection) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.buffer[self.unread.end..][..CHUNK])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = net::recvmsg(connection.as_fd(), &mut into, &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        Ok(received.bytes)
    }

    /// The next message, if all of it is there.
    ///
    /// # Errors
    /// Bytes that are no message, or one that is too large.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, WireError> {
        self.next_if(|| true)
    }

    /// Whether [`Incoming::next_if`] has left a large reply unread. Nothing behind it is read before.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// [`Incoming::next`], but leaves a large reply in shared memory, and all messages behind it, unread unless `accepts_large`.
    ///
    /// # Errors
    /// As [`Incoming::next`].
    pub(crate) fn next_if(&mut self, accepts_large: impl Fn() -> bool) -> Result<Option<Message>, WireError> {
        self.is_held = false;
        loop {
            let start = self.unread.start;
            let bytes = &self.buffer[start..self.unread.end];
            let Some(prefix) = bytes.first_chunk::<{ Packet::PREFIX }>() else { return Ok(None) };
            let length = Packet::content_len(*prefix)?;
            let limit = self.limit.min(CHUNK);
            if length > limit {
                return Err(WireError::TooLarge { bytes: length as u64, limit: limit as u64 });
            }
            let Some(content) = bytes[Packet::PREFIX..].get(..length) else { return Ok(None) };
            self.unread.start += Packet::PREFIX + length;
            let packet = Packet::read(content)?.with_beside(self.beside.clone());
            let message = match Message::decode(packet)? {
                Message::Part { left, bytes } => self.put_together(left, &bytes)?,
                message => Some(message),
            };
            match message {
                None => {}
                Some(Message::Beside) if !accepts_large() => {
                    self.unread.start = start;
                    self.is_held = true;
                    return Ok(None);
                }
                Some(Message::Beside) => self.beside = Some(self.map_snapshot()?),
                Some(message) => {
                    if let Message::Reply { .. } = &message {
                        self.beside = None;
                    }
                    return Ok(Some(message));
                }
            }
        }
    }

    /// The memory with the large tensors of the frame taken last.
    pub(crate) fn take_beside(&mut self) -> Option<Arc<MappedSnapshot>> {
        self.beside.take()
    }

    fn map_snapshot(&mut self) -> Result<Arc<MappedSnapshot>, WireError> {
        let fd = self.take_fd().map_err(|error| WireError::SharedTensor(error.to_string()))?;
        MappedSnapshot::open(&fd).map(Arc::new).map_err(|error| WireError::SharedTensor(error.to_string()))
    }

    /// A part of a large packet has come, of which others are left. Returns its message once all is there.
    fn put_together(&mut self, left: u64, part: &[u8]) -> Result<Option<Message>, WireError> {
        let whole = left.saturating_add((self.parts.len() + part.len()) as u64);
        let limit = (Packet::PREFIX + self.limit) as u64;
        if whole > limit {
            return Err(WireError::TooLarge { bytes: whole, limit });
        }
        if part.is_empty() || !self.parts.is_empty() && left + part.len() as u64 != self.left {
            return Err(WireError::Expected("the next part of a packet"));
        }
        self.parts.extend_from_slice(part);
        self.moved += part.len() as u64;
        self.left = left;
        if left > 0 {
            return Ok(None);
        }
        // It does not take its room for ever.
        let parts = std::mem::take(&mut self.parts);
        match Packet::split(&parts)? {
            (packet, []) => Message::decode(packet.with_beside(self.beside.clone())).map(Some),
            (_, rest) => Err(WireError::Trailing(rest.len())),
        }
    }

    /// The descriptor that came with the packet taken last.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn take_fd(&mut self) -> Result<OwnedFd> {
        self.fds.pop_front().ok_or_else(|| Error::protocol("a packet speaks of a descriptor that did not come along"))
    }
}
