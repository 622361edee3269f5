//! The sending half, usable from any thread, and the socket.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::wire::{Message, Pieces, Transfer};
use disco_core::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, Shutdown};

use super::outbox::{Ahead, Descriptor, Outbox, Parcel, SLICES};
use crate::engine::limits::CHUNK;
use crate::reactor::Waker;
use crate::reactor::poller::{poll, poll_one};

/// Bytes that may wait to be sent, at least. More means that the other end does not read.
const BACKLOG: usize = 1 << 30;
/// What may wait beside a large packet of each worker.
const SLACK: usize = 64 << 20;
/// Bytes that may wait while another large packet is made. A sender that can wait does so until no more are left.
const DRAINED: usize = 16 << 20;
/// How often a sender that waits looks whether it still should.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes that go in one call. A thread that serves several connections attends to the others then.
const BURST: usize = 4 << 20;
/// Pause after the system has refused a descriptor, as this user has as many on their way as files may be open (`RLIMIT_NOFILE`). The
/// socket says nothing when that changes.
pub(crate) const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(5);

/// One end of a connected socket that streams bytes: what it sends, and the socket. Never waits.
pub(crate) struct Connection {
    socket: OwnedFd,
    outbox: Mutex<Outbox>,
    /// Bytes of large packets that have gone and come.
    moved: [AtomicU64; 2],
    /// Whoever polls the socket, and has to flush what it did not take.
    waker: Arc<Waker>,
}

impl Connection {
    /// Takes a connected socket.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn new(socket: impl Into<OwnedFd>, waker: Arc<Waker>) -> io::Result<Self> {
        let socket = socket.into();
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, outbox: Mutex::default(), moved: Default::default(), waker })
    }

    /// So many workers send by it, each of which may have a packet of `limit` bytes under way.
    pub(crate) fn serve(&self, workers: usize, limit: usize) {
        let bytes = workers.saturating_mul(limit).saturating_add(SLACK);
        self.outbox().more = bytes.saturating_sub(BACKLOG);
    }

    /// Sends a packet and a descriptor, ahead of frames and of what is left of large packets. Large ones queue behind these
    /// themselves. What does not go at once is left to the one who polls.
    ///
    /// # Errors
    /// The other end is gone, or does not read.
    pub(crate) fn send(&self, packet: impl Into<Arc<[u8]>>, fd: Option<Descriptor>) -> Result<()> {
        let bytes = packet.into();
        let is_urgent = bytes.len() <= CHUNK;
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

    /// Sends a large packet behind all others, which is read part by part when it goes.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn send_pieces(&self, pieces: Arc<Pieces>) -> Result<()> {
        let mut outbox = self.outbox();
        let bytes = pieces.byte_len();
        debug_assert!(bytes > CHUNK, "it goes in parts");
        self.check_backlog(&mut outbox, bytes)?;
        outbox.bytes += bytes;
        outbox.last.push_back(Parcel { pieces: Some(pieces), ..Parcel::of(Arc::default()) });
        self.go(&mut outbox)
    }

    /// Sends tensors in parts ahead of their frame. Other packets overtake them: one part at most goes before a packet, and a part goes
    /// with about [`CHUNK`] bytes of others.
    ///
    /// # Errors
    /// The other end is gone.
    pub(crate) fn send_ahead(&self, transfer: Arc<Transfer>, content: Arc<Pieces>) -> Result<()> {
        let mut outbox = self.outbox();
        transfer.begin();
        outbox.ahead.push_back(Ahead { transfer, content, sent: 0 });
        self.go(&mut outbox)
    }

    /// Sends a frame behind all others, whose tensors were [sent ahead](Self::send_ahead).
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

    /// Sends no more parts of a transfer that was to be [sent ahead](Self::send_ahead), and says so if some have gone.
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
            outbox.first.push_back(Parcel::of(packet.into()));
        }
        self.go(&mut outbox)
    }

    /// [`Connection::send`] of a packet that may be large, without another copy of it.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn send_owned(&self, packet: Vec<u8>) -> Result<()> {
        match packet.len() <= CHUNK {
            true => self.send(packet, None),
            false => self.send_pieces(Arc::new(Pieces::whole(packet))),
        }
    }

    /// Sends two packets behind all others, the first one with a descriptor. No other packet goes between the two if both together
    /// have at most [`CHUNK`] bytes.
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
        if first.len() + packet.as_ref().len() > CHUNK {
            drop(self.put(first.into(), Some(fd), false)?);
            return self.send_last(packet);
        }
        // One parcel, so that a packet that goes first can't overtake only the second one.
        let both = [first, packet.as_ref()].concat();
        let mut outbox = self.put(both.into(), Some(fd), false)?;
        self.go(&mut outbox)
    }

    /// As [`Connection::send_last`], but the packet may wait until something else is sent, or until the one who polls [flushes](Self::flush).
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn hold_last(&self, packet: impl Into<Arc<[u8]>>) -> Result<()> {
        let bytes = packet.into();
        let size = bytes.len();
        let mut outbox = self.put(bytes, None, false)?;
        outbox.holds |= outbox.bytes == size;
        match outbox.last.len() < SLICES {
            true => Ok(()),
            false => self.go(&mut outbox),
        }
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

    /// Fails if so many more bytes may not wait.
    fn check_backlog(&self, outbox: &mut Outbox, bytes: usize) -> Result<()> {
        if outbox.bytes.saturating_add(bytes) <= BACKLOG + outbox.more {
            return Ok(());
        }
        outbox.is_full = true;
        self.waker.wake();
        Err(Error::state(format!("the other end has left {} bytes unread", outbox.bytes)))
    }

    fn go(&self, outbox: &mut Outbox) -> Result<()> {
        if !self.pump(outbox)? {
            self.waker.wake();
        }
        Ok(())
    }

    /// Goes on sending. Returns whether nothing is left.
    ///
    /// # Errors
    /// The other end is gone.
    pub(crate) fn flush(&self) -> Result<bool> {
        self.pump(&mut self.outbox())
    }

    /// Whether something was refused.
    pub(crate) fn is_full(&self) -> bool {
        self.outbox().is_full
    }

    /// Sends what is left to be sent, for at most `limit`.
    pub(crate) fn drain(&self, limit: Duration) {
        let start = Instant::now();
        while let (Ok(false), Some(left)) = (self.flush(), limit.checked_sub(start.elapsed())) {
            self.wait_to_send(left);
        }
    }

    /// Sends what is left, and that nothing follows; then waits until the other end has closed, so that nothing of it is lost. All
    /// for at most `limit` each.
    pub(crate) fn finish(&self, limit: Duration) {
        self.drain(limit);
        // It fails only if that was done already.
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

    /// Whether so little waits that a large packet may follow, or nothing is sent any more.
    pub(crate) fn has_room(&self) -> bool {
        let outbox = self.outbox();
        outbox.is_cut || outbox.bytes <= DRAINED
    }

    /// Sends what waits until there [is room](Self::has_room), or for as long as the caller wants to wait.
    pub(crate) fn wait_for_room(&self, is_wanted: impl Fn() -> bool) {
        while !self.has_room() && is_wanted() && self.flush().is_ok_and(|is_empty| !is_empty) {
            self.wait_to_send(LOOK);
        }
    }

    /// Waits until the socket takes more, perhaps, or for `limit`.
    fn wait_to_send(&self, limit: Duration) {
        match self.is_paused() {
            true => thread::sleep(DESCRIPTOR_PAUSE.min(limit)),
            false => drop(poll_one(self, PollFlags::OUT, limit)),
        }
    }

    /// Takes bytes that are no packets; none if the other end has closed.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there are none; the other end is gone.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let (_, received) = net::recv(&self.socket, into, RecvFlags::DONTWAIT)?;
        Ok(received)
    }

    /// Whether it takes nothing any more.
    pub(crate) fn is_cut(&self) -> bool {
        self.outbox().is_cut
    }

    /// Bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        self.outbox().bytes
    }

    /// Closes it for both ends.
    pub(crate) fn close(&self) {
        self.outbox().is_cut = true;
        // It fails only if that was done already.
        _ = net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Bytes of large packets that the socket has taken, and that have come.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.iter().map(|moved| moved.load(Ordering::Relaxed)).sum()
    }

    /// So many bytes of large packets have come so far.
    pub(crate) fn note_received(&self, bytes: u64) {
        self.moved[1].store(bytes, Ordering::Relaxed);
    }

    /// Whether the other end has closed.
    pub(crate) fn is_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(self, PollFlags::empty())];
        poll(&mut polled, Duration::ZERO) && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Whether something waits for the socket to take it.
    pub(crate) fn is_behind(&self) -> bool {
        let outbox = self.outbox();
        outbox.bytes > 0 && !outbox.holds && outbox.paused.is_none()
    }

    /// Whether the next packet waits until the system accepts its descriptor, so that it is to be [flushed](Self::flush) after a
    /// [pause](DESCRIPTOR_PAUSE).
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
            if burst >= BURST {
                return Ok(false);
            }
            match outbox.pass_on(&self.socket) {
                Ok(sent) => {
                    let parts = outbox.forget(sent);
                    self.moved[0].fetch_add(parts as u64, Ordering::Relaxed);
                    burst += sent;
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::TOOMANYREFS) => {
                    outbox.paused = Instant::now().checked_add(DESCRIPTOR_PAUSE);
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

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("behind", &self.outbox().bytes).finish_non_exhaustive()
    }
}
