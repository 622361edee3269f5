//! The queues of packets that wait for the socket, and their order.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use disco_core::Result;
use disco_core::wire::{Message, Pieces, Transfer};
use disco_engine::limits::CHUNK_BYTES;
use rustix::net::{self, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::PART_BYTES;
use super::parcel::Parcel;
use super::sealed::Sealed;

/// Packets in one system call.
pub(super) const MAX_SLICES: usize = 64;

/// Packets that the socket has not taken yet.
#[derive(Default)]
pub(super) struct Outbox {
    /// Packets that are sent next, in this order: about [`CHUNK_BYTES`].
    pub(super) line: VecDeque<Parcel>,
    /// Urgent packets, which are sent after `line`.
    pub(super) first: VecDeque<Parcel>,
    /// Packets that are sent after all others, in parts if they are large.
    pub(super) last: VecDeque<Parcel>,
    /// Tensors of later frames, sent in parts: one part with each `line`, of each transfer in turn (round robin).
    pub(super) ahead: VecDeque<Ahead>,
    /// Transfers of sent parcels, until the polling thread notifies them without the outbox's lock.
    pub(super) sent: Vec<Arc<Transfer>>,
    /// A transfer of `sent` wakes a future, or has no other owner.
    pub(super) must_notify: bool,
    /// Bytes that wait, without those of `ahead`.
    pub(super) bytes: usize,
    /// Bytes that may wait, if the other end was admitted.
    pub(super) limit: Option<usize>,
    /// A packet was refused, so the other end has missed a message.
    pub(super) is_full: bool,
    /// The connection is closed or has failed.
    pub(super) is_cut: bool,
    /// All waiting packets may be held.
    pub(super) holds: bool,
    /// When to retry after [`DESCRIPTOR_RETRY_DELAY`](super::DESCRIPTOR_RETRY_DELAY).
    pub(super) paused: Option<Instant>,
    /// Encrypts all packets.
    pub(super) sealed: Option<Sealed>,
}

/// The tensors of a later frame, of which `sent` bytes were sent.
pub(super) struct Ahead {
    pub(super) transfer: Arc<Transfer>,
    pub(super) content: Arc<Pieces>,
    pub(super) sent: usize,
}

impl Outbox {
    /// Fills `line` with the packets to send next.
    pub(super) fn line_up(&mut self) -> Result<()> {
        let mut bytes: usize = self.line.iter().map(|parcel| parcel.bytes.len()).sum();
        while bytes < CHUNK_BYTES && self.line.len() < MAX_SLICES {
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
        // One part per line: a frame waits for at most one part, and parts make progress under any number of frames.
        if self.line.iter().all(|parcel| parcel.brings.is_none()) {
            let part = self.next_ahead()?;
            self.line.extend(part);
        }
        Ok(())
    }

    /// Takes the next packet of `last`, or a part of it.
    fn next_part(&mut self) -> Result<Option<Parcel>> {
        let Some(parcel) = self.last.front_mut() else { return Ok(None) };
        let len = parcel.pieces.as_ref().map_or(parcel.bytes.len(), |pieces| pieces.byte_len());
        if len <= CHUNK_BYTES {
            return Ok(self.last.pop_front());
        }
        let count = PART_BYTES.min(len - parcel.sent);
        let part: Arc<[u8]> = match &parcel.pieces {
            Some(pieces) => pieces.read(parcel.sent, count)?.into(),
            None => parcel.bytes[parcel.sent..][..count].into(),
        };
        parcel.sent += count;
        let left = len - parcel.sent;
        let packet: Arc<[u8]> = Message::Part { left: left as u64, bytes: part }.encode()?.into();
        // Counts the header of the part.
        self.bytes += packet.len() - count;
        let mut transfer = None;
        if left == 0 {
            transfer = self.last.pop_front().and_then(|parcel| parcel.transfer);
        }
        Ok(Some(Parcel { is_part: true, transfer, ..Parcel::of(packet) }))
    }

    /// Sends nothing more, and counts transfers as sent, so that no caller waits for a connection that is closed. Returns
    /// them; the caller notifies them without the outbox's lock.
    pub(super) fn cut(&mut self) -> Vec<Arc<Transfer>> {
        self.is_cut = true;
        let last_parts = self.line.iter_mut().filter(|parcel| matches!(parcel.brings, Some((_, 0))));
        let last_parts = last_parts.filter_map(|parcel| parcel.transfer.take());
        let ended: Vec<_> = self.ahead.drain(..).map(|ahead| ahead.transfer).chain(last_parts).collect();
        ended.iter().for_each(|transfer| transfer.note_sent(0, true));
        ended
    }

    /// Takes the next part of the tensors that go ahead of frames.
    fn next_ahead(&mut self) -> Result<Option<Parcel>> {
        let Some(mut ahead) = self.ahead.pop_front() else { return Ok(None) };
        let (transfer, count) = (ahead.transfer.clone(), PART_BYTES.min(ahead.content.byte_len() - ahead.sent));
        let part = ahead.content.read(ahead.sent, count)?.into();
        ahead.sent += count;
        let left = ahead.content.byte_len() - ahead.sent;
        if left > 0 {
            self.ahead.push_back(ahead);
        }
        let packet = Message::Ahead { transfer: transfer.id(), left: left as u64, bytes: part }.encode()?;
        self.bytes += packet.len();
        let brings = Some((count, left));
        Ok(Some(Parcel { is_part: true, transfer: Some(transfer), brings, ..Parcel::of(packet.into()) }))
    }

    /// Writes the packets of `line` to the socket, up to the next one with a descriptor. Encrypted packets are written
    /// as records. Returns the bytes of packets that the socket has taken.
    pub(super) fn pass_on(&mut self, socket: &OwnedFd) -> rustix::io::Result<usize> {
        if let Some(sealed) = &mut self.sealed {
            return sealed.pass_on(socket);
        }
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

    /// Removes `sent` bytes from `line`. Returns how many of them belong to large packets.
    pub(super) fn forget(&mut self, mut sent: usize) -> usize {
        self.bytes -= sent;
        let mut parts = 0;
        while let Some(parcel) = self.line.front_mut() {
            // The descriptor was sent with the first byte.
            parcel.fd = None;
            let taken = sent.min(parcel.bytes.len() - parcel.sent);
            parcel.sent += taken;
            parts += if parcel.is_part { taken } else { 0 };
            sent -= taken;
            if parcel.sent < parcel.bytes.len() {
                break;
            }
            if let Some(Parcel { transfer: Some(transfer), brings, .. }) = self.line.pop_front() {
                let (bytes, left) = brings.unwrap_or_default();
                if brings.is_some() {
                    transfer.note_sent(bytes, left == 0);
                }
                self.must_notify |= left == 0 || Arc::strong_count(&transfer) == 1;
                self.sent.push(transfer);
            }
            if sent == 0 {
                break;
            }
        }
        parts
    }
}
