//! The sending half of a connection, usable from any thread, and the socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::status::ConnectionStatus;
use disco_core::wire::{Message, Pieces, Transfer};
use disco_core::{Error, Result};
use disco_engine::limits::CHUNK_BYTES;
use disco_engine::noise::Keys;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, Shutdown};

use super::outbox::{Ahead, MAX_SLICES, Outbox};
use super::parcel::{Descriptor, Parcel};
use super::sealed::Sealed;
use super::tcp_info::TcpInfo;
use crate::remote::reactor::Waker;
use crate::remote::reactor::poller::{poll, poll_one};

/// Default limit of unsent bytes, at least. Above the limit, the other end counts as not reading.
const MAX_BACKLOG_BYTES: usize = 1 << 30;
/// Unsent bytes allowed besides one large packet of each worker.
const BACKLOG_SLACK_BYTES: usize = 64 << 20;
/// Unsent bytes up to which another large packet is encoded (back-pressure).
const DRAINED_BYTES: usize = 16 << 20;
/// How often a waiting sender checks whether it still has to wait.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes that are written in one call, so that a thread with several connections serves all of them.
const MAX_BURST_BYTES: usize = 4 << 20;
/// Delay after the system has refused to send a descriptor, because this user has `RLIMIT_NOFILE` descriptors in
/// flight. No socket event reports when that changes.
pub(crate) const DESCRIPTOR_RETRY_DELAY: Duration = Duration::from_millis(5);

/// One end of a connected stream socket, with the packets that wait to be sent. Sending never blocks.
pub(crate) struct Connection {
    socket: OwnedFd,
    outbox: Mutex<Outbox>,
    /// Bytes of large packets sent and received.
    moved: [AtomicU64; 2],
    /// Bytes that the socket has taken.
    sent: AtomicU64,
    /// Wakes the polling thread, which flushes the bytes that the socket did not take.
    waker: Arc<Waker>,
}

impl Connection {
    /// Makes a connection of a connected socket, which becomes non-blocking.
    ///
    /// # Errors
    /// The socket can't be made non-blocking.
    pub(crate) fn new(socket: impl Into<OwnedFd>, waker: Arc<Waker>) -> io::Result<Self> {
        let socket = socket.into();
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, outbox: Mutex::default(), moved: Default::default(), sent: AtomicU64::new(0), waker })
    }

    /// Encrypts all packets from now on.
    ///
    /// # Errors
    /// The socket has not taken the clear packets before.
    pub(crate) fn encrypt(&self, keys: Keys) -> Result<()> {
        let mut outbox = self.outbox();
        if !self.pump(&mut outbox)? {
            return Err(Error::protocol("the other end does not read the handshake"));
        }
        outbox.sealed = Some(Sealed::new(keys));
        Ok(())
    }

    /// Raises the limit of unsent bytes to one packet of `limit` bytes for each of `workers`.
    pub(crate) fn serve(&self, workers: usize, limit: usize) {
        let bytes = workers.saturating_mul(limit).saturating_add(BACKLOG_SLACK_BYTES);
        self.limit_unsent(bytes.max(MAX_BACKLOG_BYTES));
    }

    /// Sets the limit of unsent bytes.
    pub(crate) fn limit_unsent(&self, bytes: usize) {
        self.outbox().limit = Some(bytes);
    }

    /// Sends a packet, with a descriptor if given, ahead of frames and of parts of large packets. A large packet queues
    /// behind all others. The polling thread sends the bytes that the socket does not take now.
    ///
    /// # Errors
    /// The connection is closed, or the other end does not read.
    pub(crate) fn send(&self, packet: impl Into<Arc<[u8]>>, fd: Option<Descriptor>) -> Result<()> {
        let bytes = packet.into();
        let is_urgent = bytes.len() <= CHUNK_BYTES;
        let mut outbox = self.put(bytes, fd, is_urgent)?;
        self.go(&mut outbox)
    }

    /// Sends a packet behind all others.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn send_last(&self, packet: impl Into<Arc<[u8]>>) -> Result<()> {
        let mut outbox = self.put(packet.into(), None, false)?;
        self.go(&mut outbox)
    }

    /// Sends a large packet behind all others. Its pieces are read when each part is sent.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn send_pieces(&self, pieces: Arc<Pieces>) -> Result<()> {
        let mut outbox = self.outbox();
        let bytes = pieces.byte_len();
        debug_assert!(bytes > CHUNK_BYTES, "a packet sent in pieces is large");
        self.check_backlog(&mut outbox, bytes)?;
        outbox.bytes += bytes;
        outbox.last.push_back(Parcel { pieces: Some(pieces), ..Parcel::of(Arc::default()) });
        self.go(&mut outbox)
    }

    /// Sends tensors in parts ahead of their frame. Other packets overtake the parts: one part is sent with about
    /// [`CHUNK_BYTES`] bytes of other packets.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn send_ahead(&self, transfer: Arc<Transfer>, content: Arc<Pieces>) -> Result<()> {
        let mut outbox = self.outbox();
        transfer.begin();
        outbox.ahead.push_back(Ahead { transfer, content, sent: 0 });
        self.go(&mut outbox)
    }

    /// Sends a frame whose tensors were [sent ahead](Self::send_ahead) behind all other packets.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn send_last_after(&self, packet: impl Into<Arc<[u8]>>, transfer: Arc<Transfer>) -> Result<()> {
        let mut outbox = self.put(packet.into(), None, false)?;
        if let Some(parcel) = outbox.last.back_mut() {
            parcel.transfer = Some(transfer);
        }
        self.go(&mut outbox)
    }

    /// Stops [sending a transfer ahead](Self::send_ahead), and tells the other end if parts were sent.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn withdraw(&self, transfer: &Transfer) -> Result<()> {
        let packet = Message::Withdraw(transfer.id()).encode()?;
        let mut outbox = self.outbox();
        let is_it = |ahead: &Ahead| ahead.transfer.id() == transfer.id();
        let has_begun = match outbox.ahead.iter().position(is_it) {
            Some(place) => outbox.ahead.remove(place).is_some_and(|ahead| ahead.sent > 0),
            None => true,
        };
        if has_begun {
            outbox.bytes += packet.len();
            // In `line`, so that no part of a later transfer overtakes it.
            outbox.line.push_back(Parcel::of(packet.into()));
        }
        self.go(&mut outbox)
    }

    /// [`Connection::send`] for a packet that may be large, without copying it.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn send_owned(&self, packet: Vec<u8>) -> Result<()> {
        if packet.len() <= CHUNK_BYTES {
            self.send(packet, None)
        } else {
            self.send_pieces(Arc::new(Pieces::whole(packet)))
        }
    }

    /// Sends two packets behind all others, the first one with a descriptor. No other packet goes between the two if
    /// both together have at most [`CHUNK_BYTES`] bytes.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn send_last_behind(
        &self,
        first: impl AsRef<[u8]>,
        fd: Descriptor,
        packet: impl Into<Arc<[u8]>> + AsRef<[u8]>,
    ) -> Result<()> {
        let first = first.as_ref();
        if first.len() + packet.as_ref().len() > CHUNK_BYTES {
            drop(self.put(first.into(), Some(fd), false)?);
            return self.send_last(packet);
        }
        // One parcel, so that an urgent packet can't come between the two.
        let both = [first, packet.as_ref()].concat();
        let mut outbox = self.put(both.into(), Some(fd), false)?;
        self.go(&mut outbox)
    }

    /// As [`Connection::send_last`], but the packet may wait until another one is sent, or until a
    /// [flush](Self::flush).
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn hold_last(&self, packet: impl Into<Arc<[u8]>>) -> Result<()> {
        let bytes = packet.into();
        let size = bytes.len();
        let mut outbox = self.put(bytes, None, false)?;
        outbox.holds |= outbox.bytes == size;
        if outbox.last.len() < MAX_SLICES { Ok(()) } else { self.go(&mut outbox) }
    }

    /// Queues a packet.
    fn put(&self, bytes: Arc<[u8]>, fd: Option<Descriptor>, is_urgent: bool) -> Result<MutexGuard<'_, Outbox>> {
        let mut outbox = self.outbox();
        self.check_backlog(&mut outbox, bytes.len())?;
        outbox.bytes += bytes.len();
        let queue = if is_urgent { &mut outbox.first } else { &mut outbox.last };
        queue.push_back(Parcel { fd, ..Parcel::of(bytes) });
        Ok(outbox)
    }

    /// Fails if `bytes` more would exceed the limit of unsent bytes.
    fn check_backlog(&self, outbox: &mut Outbox, bytes: usize) -> Result<()> {
        if outbox.bytes.saturating_add(bytes) <= outbox.limit.unwrap_or(MAX_BACKLOG_BYTES) {
            return Ok(());
        }
        outbox.is_full = true;
        self.waker.wake();
        Err(Error::state(format!("the other end has left {} bytes unread", outbox.bytes)))
    }

    fn go(&self, outbox: &mut Outbox) -> Result<()> {
        let is_empty = self.pump(outbox)?;
        if !is_empty || outbox.must_notify {
            self.waker.wake();
        }
        Ok(())
    }

    /// Wakes the futures that wait for sent transfers. The caller must hold no lock, since wakers run arbitrary code.
    pub(crate) fn notify_sent(&self) {
        let mut outbox = self.outbox();
        outbox.must_notify = false;
        let sent = std::mem::take(&mut outbox.sent);
        drop(outbox);
        sent.iter().for_each(|transfer| transfer.notify());
    }

    /// Continues sending. Returns whether no bytes are left.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn flush(&self) -> Result<bool> {
        self.pump(&mut self.outbox())
    }

    /// Whether a packet was refused.
    pub(crate) fn is_full(&self) -> bool {
        self.outbox().is_full
    }

    /// Blocks until all packets are sent, or until none has been sent for `limit`.
    pub(crate) fn drain(&self, limit: Duration) {
        let (mut backlog, mut since) = (usize::MAX, Instant::now());
        while let Ok(false) = self.flush() {
            let left = self.backlog();
            if left < backlog {
                (backlog, since) = (left, Instant::now());
            }
            let Some(wait) = limit.checked_sub(since.elapsed()) else { return };
            self.wait_to_send(wait);
        }
    }

    /// Sends all packets, shuts the sending half down, and waits until the other end has closed, so that no packet is
    /// lost. Each of the two waits ends after `limit` without progress. Then closes the connection.
    pub(crate) fn finish(&self, limit: Duration) {
        self.drain(limit);
        // Fails only if it was shut down before.
        _ = net::shutdown(&self.socket, Shutdown::Write);
        let start = Instant::now();
        while let Some(left) = limit.checked_sub(start.elapsed()) {
            poll_one(self, PollFlags::IN, left);
            match net::recv(&self.socket, &mut [0; 4096], RecvFlags::DONTWAIT) {
                Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR) => {}
                _ => break,
            }
        }
        self.close();
    }

    /// Whether few enough bytes are unsent for another large packet, or the connection is closed.
    pub(crate) fn has_room(&self) -> bool {
        let outbox = self.outbox();
        outbox.is_cut || outbox.bytes <= DRAINED_BYTES
    }

    /// Blocks and sends until [`Self::has_room`], or until `is_wanted` is false.
    pub(crate) fn wait_for_room(&self, is_wanted: impl Fn() -> bool) {
        while !self.has_room() && is_wanted() && self.flush().is_ok_and(|is_empty| !is_empty) {
            self.wait_to_send(POLL_INTERVAL);
        }
    }

    /// Waits until the socket may take more bytes, at most for `limit`.
    fn wait_to_send(&self, limit: Duration) {
        if self.is_paused() {
            thread::sleep(DESCRIPTOR_RETRY_DELAY.min(limit))
        } else {
            _ = poll_one(self, PollFlags::OUT, limit);
        }
    }

    /// Reads raw bytes of the handshake; 0 if the other end has closed.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there are none; or the connection has failed.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let (_, received) = net::recv(&self.socket, into, RecvFlags::DONTWAIT)?;
        Ok(received)
    }

    /// Whether the connection is closed or has failed.
    pub(crate) fn is_cut(&self) -> bool {
        self.outbox().is_cut
    }

    /// Unsent bytes.
    pub(crate) fn backlog(&self) -> usize {
        self.outbox().bytes
    }

    /// Closes the connection in both directions. Transfers no longer wait for the other end.
    pub(crate) fn close(&self) {
        let ended = self.outbox().cut();
        ended.iter().for_each(|transfer| transfer.notify());
        // Fails only if it was shut down before.
        _ = net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Bytes of large packets sent and received.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.iter().map(|moved| moved.load(Ordering::Relaxed)).sum()
    }

    /// Bytes that the socket has taken.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Records the total bytes of large packets received.
    pub(crate) fn note_received(&self, bytes: u64) {
        self.moved[1].store(bytes, Ordering::Relaxed);
    }

    /// Whether the other end has closed.
    pub(crate) fn is_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(self, PollFlags::empty())];
        poll(&mut polled, Duration::ZERO) && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Adds this end's numbers of the connection.
    pub(crate) fn describe(&self, status: &mut ConnectionStatus) {
        {
            let outbox = self.outbox();
            (status.is_encrypted, status.waiting_bytes) = (outbox.sealed.is_some(), outbox.bytes as u64);
        }
        status.address = net::getpeername(&self.socket).ok().flatten().and_then(|address| address.try_into().ok());
        if let Some(tcp) = TcpInfo::of(&self.socket) {
            tcp.describe(status);
        }
    }

    /// Bytes that the other end's machine does not acknowledge, although the system has sent them several times.
    pub(crate) fn stuck(&self) -> Option<usize> {
        TcpInfo::of(&self.socket)?.stuck().map(|bytes| bytes as usize)
    }

    /// Whether packets wait until the socket is writable.
    pub(crate) fn is_behind(&self) -> bool {
        let outbox = self.outbox();
        outbox.bytes > 0 && !outbox.holds && outbox.paused.is_none()
    }

    /// Whether the next packet waits until the system accepts its descriptor. It has to be [flushed](Self::flush) after
    /// [`DESCRIPTOR_RETRY_DELAY`].
    pub(crate) fn is_paused(&self) -> bool {
        self.outbox().paused.is_some()
    }

    fn pump(&self, outbox: &mut Outbox) -> Result<bool> {
        outbox.holds = false;
        if outbox.paused.is_some_and(|end| Instant::now() < end) {
            return Ok(false);
        }
        outbox.paused = None;
        let mut burst = 0;
        loop {
            outbox.line_up()?;
            if outbox.line.is_empty() {
                return Ok(true);
            }
            if burst >= MAX_BURST_BYTES {
                return Ok(false);
            }
            let Outbox { sealed, line, .. } = &mut *outbox;
            if let Some(sealed) = sealed {
                sealed.fill(line)?;
            }
            match outbox.pass_on(&self.socket) {
                Ok(sent) => {
                    let parts = outbox.forget(sent);
                    self.moved[0].fetch_add(parts as u64, Ordering::Relaxed);
                    self.sent.fetch_add(sent as u64, Ordering::Relaxed);
                    burst += sent;
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::TOOMANYREFS) => {
                    outbox.paused = Instant::now().checked_add(DESCRIPTOR_RETRY_DELAY);
                    return Ok(false);
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    outbox.is_cut = true;
                    return Err(Error::system("the connection is cut", errno));
                }
            }
        }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

disco_core::format_as!(Debug for Connection, |it| "Connection {{ behind: {:?}, .. }}", it.outbox().bytes);
