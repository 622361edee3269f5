//! The receiving half of a connection.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use disco_core::shared_memory::MappedSnapshot;
use disco_core::wire::{Message, Packet, WireError};
use disco_core::{Error, Result};
use disco_engine::limits::CHUNK_BYTES;
use disco_engine::noise::{Keys, MAX_PLAIN_BYTES, Opener};
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::Connection;

/// Descriptors that may come with one read, and that may wait for their packets.
const MAX_FDS: usize = 16;

/// Received bytes and descriptors that were not taken as messages yet.
pub(crate) struct Incoming {
    buffer: Vec<u8>,
    /// The range of the buffer that was not taken yet.
    unread: Range<usize>,
    /// The parts of a large packet that have come.
    parts: Vec<u8>,
    /// Bytes of the large packet that are still to come.
    left: u64,
    /// Total bytes of parts received.
    moved: u64,
    fds: VecDeque<OwnedFd>,
    /// Shared memory with the large tensors of the next frame or reply, or why it can't be mapped.
    beside: Option<Result<Arc<MappedSnapshot>, WireError>>,
    /// Whether this end answers before the other one uses such memory again.
    accepts_reused: bool,
    /// The last of it that is reused.
    reused: Option<Arc<MappedSnapshot>>,
    /// The largest packet accepted.
    limit: usize,
    is_closed: bool,
    /// Decrypts all bytes.
    opener: Option<Opener>,
    /// The next message is a large reply in shared memory that was not accepted.
    is_held: bool,
    /// A packet was taken that is no message of its own.
    has_part: bool,
}

impl Incoming {
    /// Starts empty. A packet may have `limit` bytes.
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
            accepts_reused: false,
            reused: None,
            limit,
            is_closed: false,
            opener: None,
            is_held: false,
            has_part: false,
        }
    }

    /// Sets the limit of a packet, once the other end is admitted.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Decrypts all bytes from now on.
    pub(crate) fn decrypt(&mut self, keys: Keys) {
        self.opener = Some(Opener::new(keys));
    }

    /// Whether a large packet has come in part.
    pub(crate) fn is_inside_large_packet(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Total bytes of large packets received.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Whether the connection was closed or has failed. Earlier messages can still be taken.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Reads from the socket. Returns whether there may be more to read.
    ///
    /// # Errors
    /// More descriptors wait than packets may need; an encrypted record was changed.
    pub(crate) fn fill(&mut self, connection: &Connection) -> Result<bool> {
        let received = match self.opener.take() {
            None => self.receive(connection),
            Some(mut opener) => {
                let received = self.receive_sealed(connection, &mut opener)?;
                self.opener = Some(opener);
                received
            }
        };
        if self.fds.len() > MAX_FDS {
            return Err(Error::protocol(format!("{} descriptors came without packets that take them", self.fds.len())));
        }
        match received {
            Ok(0) => self.is_closed = true,
            Ok(_) => {
                // A short read does not mean the end: it also stops at each descriptor.
                return Ok(true);
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // A reset counts as closed.
            Err(_) => self.is_closed = true,
        }
        Ok(false)
    }

    /// Adds bytes without a socket.
    #[cfg(fuzzing)]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.buffer.truncate(self.unread.end);
        self.buffer.extend_from_slice(bytes);
        self.unread.end = self.buffer.len();
    }

    /// Makes room for a chunk after the unread bytes.
    fn make_room(&mut self) {
        if self.buffer.len() < self.unread.end + CHUNK_BYTES {
            if self.unread.start > 0 {
                self.buffer.copy_within(self.unread.clone(), 0);
                self.unread = 0..self.unread.len();
            }
            self.buffer.resize(self.buffer.len().max(self.unread.end + CHUNK_BYTES), 0);
        }
    }

    /// Reads records from the socket, and opens the complete ones. Returns the bytes read.
    ///
    /// # Errors
    /// A record was changed.
    fn receive_sealed(&mut self, connection: &Connection, opener: &mut Opener) -> Result<rustix::io::Result<usize>> {
        let received = opener.fill(|into| net::recv(connection.as_fd(), into, RecvFlags::DONTWAIT).map(|read| read.1));
        loop {
            self.make_room();
            match opener.open(&mut self.buffer[self.unread.end..][..MAX_PLAIN_BYTES])? {
                Some(opened) => self.unread.end += opened,
                None => return Ok(received),
            }
        }
    }

    fn receive(&mut self, connection: &Connection) -> rustix::io::Result<usize> {
        self.make_room();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.buffer[self.unread.end..][..CHUNK_BYTES])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = net::recvmsg(connection.as_fd(), &mut into, &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        self.unread.end += received.bytes;
        Ok(received.bytes)
    }

    /// Whether a complete packet was taken that is no message of its own, since the last call: a part of a large message.
    pub(crate) fn take_part(&mut self) -> bool {
        mem::take(&mut self.has_part)
    }

    /// Takes the next complete message.
    ///
    /// # Errors
    /// The bytes are not a message, or the packet is too large.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, WireError> {
        self.next_if(|| true)
    }

    /// Whether [`Incoming::next_if`] has left a large reply unread, which blocks the messages behind it.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// [`Incoming::next`], but stops before a large reply in shared memory unless `accepts_large`.
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
            let limit = self.limit.min(CHUNK_BYTES);
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
                None => self.has_part = true,
                Some(Message::Beside) if !accepts_large() => {
                    self.unread.start = start;
                    self.is_held = true;
                    return Ok(None);
                }
                Some(Message::Beside) => {
                    self.beside = Some(match self.map_snapshot() {
                        Err(error) if !matches!(error, WireError::NoMemory { .. }) => return Err(error),
                        mapped => mapped,
                    });
                }
                Some(message) => {
                    if let Message::Reply { .. } | Message::Unread { .. } = &message {
                        self.beside = None;
                    }
                    return Ok(Some(message));
                }
            }
        }
    }

    /// Accepts shared memory that the other end uses again once it has got the reply: for a worker, which has copied the
    /// tensor by then.
    pub(crate) fn accept_reused_memory(&mut self) {
        self.accepts_reused = true;
    }

    /// Takes the shared memory with the large tensors of the last frame.
    ///
    /// # Errors
    /// This process has no room for it.
    pub(crate) fn take_beside(&mut self) -> Result<Option<Arc<MappedSnapshot>>> {
        Ok(self.beside.take().transpose()?)
    }

    fn map_snapshot(&mut self) -> Result<Arc<MappedSnapshot>, WireError> {
        let mapped = self.take_fd().and_then(|fd| MappedSnapshot::open(&fd, self.reused.as_ref()));
        let mapped = mapped.map_err(|error| match WireError::of_tensor(error) {
            WireError::TensorKind(why) => WireError::SharedTensor(why),
            error => error,
        })?;
        if mapped.is_reused() {
            if !self.accepts_reused {
                return Err(WireError::SharedTensor("its content is not sealed".to_owned()));
            }
            self.reused = Some(mapped.clone());
        }
        Ok(mapped)
    }

    /// Adds a part of a large packet. Returns the message once the packet is complete.
    fn put_together(&mut self, left: u64, part: &[u8]) -> Result<Option<Message>, WireError> {
        let whole = left.saturating_add((self.parts.len() + part.len()) as u64);
        let limit = (Packet::PREFIX + self.limit) as u64;
        if whole > limit {
            return Err(WireError::TooLarge { bytes: whole, limit });
        }
        if part.is_empty() || !self.parts.is_empty() && left + part.len() as u64 != self.left {
            return Err(WireError::Expected("the next part of a packet"));
        }
        let no_memory = |_| WireError::NoMemory { bytes: whole as usize, is_shared: false, why: None };
        self.parts.try_reserve(part.len()).map_err(no_memory)?;
        self.parts.extend_from_slice(part);
        self.moved += part.len() as u64;
        self.left = left;
        if left > 0 {
            return Ok(None);
        }
        // Frees the memory of the complete packet.
        let parts = mem::take(&mut self.parts);
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
        self.fds.pop_front().ok_or_else(|| Error::protocol("a packet came without its descriptor"))
    }
}
