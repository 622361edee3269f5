//! One end of a Unix socket: packets, and descriptors that go along with them. Never waits.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::waker::Waker;
use disco_core::wire::{Message, PACKET_LIMIT, Packet, WireError};
use disco_core::{Error, Result};
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// The largest packet that one who has proved who it is may send.
pub(super) const PACKET: usize = PACKET_LIMIT as usize;
/// Bytes that may wait to be sent. More means that the other end does not read.
const BACKLOG: usize = 1 << 30;
/// A buffer above this is not kept.
const LARGE: usize = 16 * CHUNK;
/// Bytes taken in at once.
const CHUNK: usize = 64 << 10;
/// How many chunks are taken from one connection before anything else is done.
pub(super) const ROUNDS: usize = 16;
/// Descriptors that may come with one chunk, and that may wait for their packets.
const FDS: usize = 16;

/// The sending half, usable from any thread, and the socket.
pub(super) struct Connection {
    stream: UnixStream,
    outbox: Mutex<Outbox>,
    /// Whoever polls the socket, and has to flush what it did not take.
    waker: Arc<Waker>,
}

/// What the socket did not take yet.
#[derive(Default)]
struct Outbox {
    queue: VecDeque<Parcel>,
    bytes: usize,
    /// Something was refused: the other end has no longer got everything.
    is_full: bool,
}

/// Bytes, and the descriptor that goes with the first of them.
struct Parcel {
    bytes: Arc<[u8]>,
    sent: usize,
    fd: Option<OwnedFd>,
}

impl Connection {
    pub(super) fn new(stream: UnixStream, waker: Arc<Waker>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, outbox: Mutex::default(), waker })
    }

    /// Sends a packet and a descriptor, in order. What does not go at once is left to the one who polls.
    ///
    /// # Errors
    /// The other end is gone, or does not read.
    pub(super) fn send(&self, packet: impl Into<Arc<[u8]>>, fd: Option<OwnedFd>) -> Result<()> {
        let bytes = packet.into();
        let mut outbox = self.outbox();
        if outbox.bytes.saturating_add(bytes.len()) > BACKLOG {
            outbox.is_full = true;
            return Err(Error::invalid(format!("the other end has left {} bytes unread", outbox.bytes)));
        }
        outbox.bytes += bytes.len();
        outbox.queue.push_back(Parcel { bytes, sent: 0, fd });
        if !self.drain(&mut outbox).map_err(cut)? {
            self.waker.wake();
        }
        Ok(())
    }

    /// Goes on sending. Returns whether nothing is left.
    ///
    /// # Errors
    /// The other end is gone.
    pub(super) fn flush(&self) -> Result<bool> {
        self.drain(&mut self.outbox()).map_err(cut)
    }

    /// Whether something was refused.
    pub(super) fn is_full(&self) -> bool {
        self.outbox().is_full
    }

    /// Closes it for both ends.
    pub(super) fn close(&self) {
        // It fails only if that was done already.
        _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Whether something waits for the socket to take it.
    pub(super) fn is_behind(&self) -> bool {
        !self.outbox().queue.is_empty()
    }

    fn drain(&self, outbox: &mut Outbox) -> io::Result<bool> {
        while let Some(parcel) = outbox.queue.front_mut() {
            let sent = match parcel.send(&self.stream) {
                Ok(sent) => sent,
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            parcel.fd = None;
            parcel.sent += sent;
            let done = parcel.sent == parcel.bytes.len();
            outbox.bytes -= sent;
            if done {
                outbox.queue.pop_front();
            }
        }
        Ok(true)
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Parcel {
    fn send(&self, stream: &UnixStream) -> rustix::io::Result<usize> {
        let fds: Vec<BorrowedFd<'_>> = self.fd.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        net::sendmsg(stream, &[IoSlice::new(&self.bytes[self.sent..])], &mut control, flags)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("behind", &self.outbox().bytes).finish_non_exhaustive()
    }
}

/// The receiving half: bytes that are no whole packet yet, and descriptors whose packets were not taken.
pub(super) struct Incoming {
    buffer: Vec<u8>,
    /// The part of the buffer that was not taken yet.
    unread: Range<usize>,
    fds: VecDeque<OwnedFd>,
    /// The largest packet taken.
    limit: usize,
    is_closed: bool,
}

impl Incoming {
    /// Nothing so far. A packet may have `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), unread: 0..0, fds: VecDeque::new(), limit, is_closed: false }
    }

    /// The other end has proved who it is: larger packets are taken.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The other end has closed, or is gone; what came before can still be taken.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes in what is there now. Returns whether there may be more.
    ///
    /// # Errors
    /// More descriptors than packets that could want them.
    pub(super) fn fill(&mut self, connection: &Connection) -> Result<bool> {
        self.make_room();
        let received = self.receive(connection);
        if self.fds.len() > FDS {
            return Err(Error::invalid(format!("{} descriptors that no packet speaks of", self.fds.len())));
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

    /// A chunk of the buffer after what is unread.
    fn make_room(&mut self) {
        if self.unread.is_empty() && self.buffer.len() > LARGE {
            // One large packet does not take its room for ever.
            self.buffer = Vec::new();
            self.unread = 0..0;
        }
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
        let received = net::recvmsg(&connection.stream, &mut into, &mut control, flags)?;
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
    pub(super) fn next(&mut self) -> Result<Option<Message>, WireError> {
        let start = self.unread.start;
        let bytes = &self.buffer[start..self.unread.end];
        let Some(prefix) = bytes.first_chunk::<{ Packet::PREFIX }>() else { return Ok(None) };
        let length = Packet::content_len(*prefix)?;
        if length > self.limit {
            return Err(WireError::TooLarge(length as u64));
        }
        let Some(content) = bytes[Packet::PREFIX..].get(..length) else { return Ok(None) };
        self.unread.start += Packet::PREFIX + length;
        Message::decode(Packet::read(content)?).map(Some)
    }

    /// The descriptor that came with the packet taken last.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn take_fd(&mut self) -> Result<OwnedFd> {
        self.fds.pop_front().ok_or_else(|| Error::invalid("a packet speaks of a descriptor that did not come along"))
    }
}

fn cut(error: io::Error) -> Error {
    Error::invalid(format!("the connection is cut: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Connection, Connection) {
        let (a, b) = UnixStream::pair().unwrap();
        let connection = |stream| Connection::new(stream, Arc::new(Waker::new().unwrap())).unwrap();
        (connection(a), connection(b))
    }

    fn bye(text: &str) -> Vec<u8> {
        Message::Bye(text.into()).encode().unwrap()
    }

    #[test]
    fn packets_come_whole_and_in_order_however_they_are_cut() {
        let (a, b) = pair();
        let long = "x".repeat(3 * CHUNK);
        let texts = ["", "short", &long, "last"];
        for text in texts {
            a.send(bye(text), None).unwrap();
        }
        let (mut incoming, mut come) = (Incoming::new(1 << 20), Vec::new());
        while come.len() < texts.len() {
            a.flush().unwrap();
            incoming.fill(&b).unwrap();
            while let Some(message) = incoming.next().unwrap() {
                let Message::Bye(text) = message else { panic!() };
                come.push(text);
            }
        }
        assert_eq!(come, texts);
        drop(a);
        incoming.fill(&b).unwrap();
        assert!(incoming.is_closed() && incoming.next().unwrap().is_none());
    }

    #[test]
    fn what_the_other_end_does_not_take_waits() {
        let (a, b) = pair();
        let big: Arc<[u8]> = bye(&"x".repeat(1 << 20)).into();
        a.send(big.clone(), None).unwrap();
        assert!(a.is_behind());
        let (mut incoming, mut come) = (Incoming::new(2 << 20), 0);
        while come == 0 {
            incoming.fill(&b).unwrap();
            a.flush().unwrap();
            come += usize::from(incoming.next().unwrap().is_some());
        }
        assert!(!a.is_behind());
        drop(b);
        assert!(a.send(big, None).unwrap_err().to_string().starts_with("the connection is cut: "));
    }

    #[test]
    fn a_descriptor_comes_with_its_packet() {
        let (a, b) = pair();
        let (fd, other) = UnixStream::pair().unwrap();
        a.send(bye("none"), None).unwrap();
        a.send(bye("one"), Some(fd.into())).unwrap();
        let mut incoming = Incoming::new(1 << 20);
        while incoming.unread.len() < bye("none").len() + bye("one").len() {
            incoming.fill(&b).unwrap();
        }
        incoming.next().unwrap().unwrap();
        incoming.next().unwrap().unwrap();
        let received = UnixStream::from(incoming.take_fd().unwrap());
        assert!(incoming.take_fd().is_err());
        drop(received);
        assert_eq!(std::io::Read::read(&mut &other, &mut [0]).unwrap(), 0, "the last copy is closed");
    }

    #[test]
    fn a_packet_above_the_limit_is_refused_before_it_comes() {
        let (a, b) = pair();
        a.send(u64::MAX.to_le_bytes().to_vec(), None).unwrap();
        let mut incoming = Incoming::new(100);
        incoming.fill(&b).unwrap();
        assert!(matches!(incoming.next(), Err(WireError::TooLarge(u64::MAX))));
        let mut incoming = Incoming::new(100);
        a.send(101u64.to_le_bytes().to_vec(), None).unwrap();
        incoming.fill(&b).unwrap();
        assert!(matches!(incoming.next(), Err(WireError::TooLarge(101))));
    }
}
