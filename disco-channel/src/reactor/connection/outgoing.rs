//! The sending half, usable from any thread, and the socket.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::wire::{Message, Pieces, Transfer};
use disco_core::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};

use super::PART;
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
/// How many packets go at once.
const SLICES: usize = 64;
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

/// What the socket did not take yet.
#[derive(Default)]
struct Outbox {
    /// Packets that go next, whatever comes meanwhile: about [`CHUNK`].
    line: VecDeque<Parcel>,
    /// Packets that go as soon as those have.
    first: VecDeque<Parcel>,
    /// Packets that go when there are no others, in parts if they are large.
    last: VecDeque<Parcel>,
    /// Tensors of frames that are still to come, which go in parts: one with each line.
    ahead: VecDeque<Ahead>,
    /// Bytes that wait, without those of `ahead`.
    bytes: usize,
    /// Bytes that may wait beyond [`BACKLOG`].
    more: usize,
    /// Something was refused: the other end has no longer got everything.
    is_full: bool,
    is_cut: bool,
    /// Nothing is there but what may wait.
    holds: bool,
    /// End of a [pause](DESCRIPTOR_PAUSE).
    paused: Option<Instant>,
}

/// Bytes of which some may be gone, and the descriptor that goes with the first of them.
struct Parcel {
    bytes: Arc<[u8]>,
    /// A large packet, in place of `bytes`.
    pieces: Option<Arc<Pieces>>,
    sent: usize,
    fd: Option<Descriptor>,
    /// Of a large packet.
    is_part: bool,
    /// The transfer of a part ahead of frames, or the one in which the tensors of a frame went.
    transfer: Option<Arc<Transfer>>,
    /// Bytes of the transfer that it brings, and how many are left then.
    brings: Option<(usize, usize)>,
}

/// Tensors of a frame that is still to come, of which some parts may have gone.
struct Ahead {
    transfer: Arc<Transfer>,
    content: Arc<Pieces>,
    sent: usize,
}

/// A descriptor that goes along with a packet. Its owner may go on using it.
pub(crate) type Descriptor = Arc<dyn AsFd + Send + Sync>;

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

impl Parcel {
    /// A packet, and nothing else.
    fn of(bytes: Arc<[u8]>) -> Self {
        Self { bytes, pieces: None, sent: 0, fd: None, is_part: false, transfer: None, brings: None }
    }
}

impl Outbox {
    /// Decides what goes next.
    fn line_up(&mut self) -> Result<()> {
        let mut bytes: usize = self.line.iter().map(|parcel| parcel.bytes.len()).sum();
        while bytes < CHUNK && self.line.len() < SLICES {
            let next = match self.first.pop_front() {
                Some(parcel) => parcel,
                None => match self.next_part()? {
                    Some(parcel) => parcel,
                    None => break,
                },
            };
            bytes += next.bytes.len();
            self.line.push_back(next);
        }
        // A frame waits for at most one part; parts go on however many frames come. No part overtakes the message that an earlier
        // transfer is withdrawn.
        if self.first.is_empty() && self.line.iter().all(|parcel| parcel.brings.is_none()) {
            let part = self.next_ahead()?;
            self.line.extend(part);
        }
        Ok(())
    }

    /// The next of those that go last, or a part of it.
    fn next_part(&mut self) -> Result<Option<Parcel>> {
        let Some(parcel) = self.last.front_mut() else { return Ok(None) };
        let len = parcel.pieces.as_ref().map_or(parcel.bytes.len(), |pieces| pieces.byte_len());
        if len <= CHUNK {
            return Ok(self.last.pop_front());
        }
        let count = PART.min(len - parcel.sent);
        let part: Arc<[u8]> = match &parcel.pieces {
            Some(pieces) => pieces.read(parcel.sent, count)?.into(),
            None => parcel.bytes[parcel.sent..][..count].into(),
        };
        parcel.sent += count;
        let left = len - parcel.sent;
        let packet: Arc<[u8]> = Message::Part { left: left as u64, bytes: part }.encode()?.into();
        // Its envelope is to be sent, too.
        self.bytes += packet.len() - count;
        let mut transfer = None;
        if left == 0 {
            transfer = self.last.pop_front().and_then(|parcel| parcel.transfer);
        }
        Ok(Some(Parcel { is_part: true, transfer, ..Parcel::of(packet) }))
    }

    /// The next part of the tensors that go ahead of frames.
    fn next_ahead(&mut self) -> Result<Option<Parcel>> {
        let Some(ahead) = self.ahead.front_mut() else { return Ok(None) };
        let (transfer, count) = (ahead.transfer.clone(), PART.min(ahead.content.byte_len() - ahead.sent));
        let part = ahead.content.read(ahead.sent, count)?.into();
        ahead.sent += count;
        let left = ahead.content.byte_len() - ahead.sent;
        if left == 0 {
            self.ahead.pop_front();
        }
        let packet = Message::Ahead { transfer: transfer.id(), left: left as u64, bytes: part }.encode()?;
        self.bytes += packet.len();
        let brings = Some((count, left));
        Ok(Some(Parcel { is_part: true, transfer: Some(transfer), brings, ..Parcel::of(packet.into()) }))
    }

    /// Passes the packets that are next to the socket, up to one that brings a descriptor.
    fn pass_on(&self, socket: &OwnedFd) -> rustix::io::Result<usize> {
        let together = 1 + self.line.iter().skip(1).take_while(|parcel| parcel.fd.is_none()).count();
        let slices: Vec<IoSlice<'_>> =
            self.line.iter().take(together).map(|parcel| IoSlice::new(&parcel.bytes[parcel.sent..])).collect();
        let fd: Option<[BorrowedFd<'_>; 1]> = self.line.front().and_then(|parcel| Some([parcel.fd.as_ref()?.as_fd()]));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(fd) = &fd {
            control.push(SendAncillaryMessage::ScmRights(fd));
        }
        net::sendmsg(socket, &slices, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// The socket has taken so many bytes. Returns how many of them are those of large packets.
    fn forget(&mut self, mut sent: usize) -> usize {
        self.bytes -= sent;
        let mut parts = 0;
        while let Some(parcel) = self.line.front_mut() {
            // It goes with the first byte.
            parcel.fd = None;
            let taken = sent.min(parcel.bytes.len() - parcel.sent);
            parcel.sent += taken;
            parts += if parcel.is_part { taken } else { 0 };
            sent -= taken;
            if parcel.sent < parcel.bytes.len() {
                break;
            }
            if let Some(Parcel { transfer: Some(transfer), brings: Some((bytes, left)), .. }) = self.line.pop_front() {
                transfer.note_sent(bytes, left == 0);
            }
            if sent == 0 {
                break;
            }
        }
        parts
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
