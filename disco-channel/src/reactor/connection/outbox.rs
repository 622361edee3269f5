//! Packets that wait for the socket, and their order.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use disco_core::Result;
use disco_core::wire::{Message, Pieces, Transfer};
use rustix::net::{self, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::PART;
use crate::engine::limits::CHUNK;

/// How many packets go at once.
pub(super) const SLICES: usize = 64;

/// What the socket did not take yet.
#[derive(Default)]
pub(super) struct Outbox {
    /// Packets that go next, whatever comes meanwhile: about [`CHUNK`].
    pub(super) line: VecDeque<Parcel>,
    /// Packets that go as soon as those have.
    pub(super) first: VecDeque<Parcel>,
    /// Packets that go when there are no others, in parts if they are large.
    pub(super) last: VecDeque<Parcel>,
    /// Tensors of frames that are still to come, which go in parts: one with each line.
    pub(super) ahead: VecDeque<Ahead>,
    /// Bytes that wait, without those of `ahead`.
    pub(super) bytes: usize,
    /// Bytes that may wait beyond what always may.
    pub(super) more: usize,
    /// Something was refused: the other end has no longer got everything.
    pub(super) is_full: bool,
    pub(super) is_cut: bool,
    /// Nothing is there but what may wait.
    pub(super) holds: bool,
    /// End of a [pause](super::DESCRIPTOR_PAUSE).
    pub(super) paused: Option<Instant>,
}

/// Bytes of which some may be gone, and the descriptor that goes with the first of them.
pub(super) struct Parcel {
    pub(super) bytes: Arc<[u8]>,
    /// A large packet, in place of `bytes`.
    pub(super) pieces: Option<Arc<Pieces>>,
    pub(super) sent: usize,
    pub(super) fd: Option<Descriptor>,
    /// Of a large packet.
    pub(super) is_part: bool,
    /// The transfer of a part ahead of frames, or the one in which the tensors of a frame went.
    pub(super) transfer: Option<Arc<Transfer>>,
    /// Bytes of the transfer that it brings, and how many are left then.
    pub(super) brings: Option<(usize, usize)>,
}

/// Tensors of a frame that is still to come, of which some parts may have gone.
pub(super) struct Ahead {
    pub(super) transfer: Arc<Transfer>,
    pub(super) content: Arc<Pieces>,
    pub(super) sent: usize,
}

/// A descriptor that goes along with a packet. Its owner may go on using it.
pub(crate) type Descriptor = Arc<dyn AsFd + Send + Sync>;

impl Parcel {
    /// A packet, and nothing else.
    pub(super) fn of(bytes: Arc<[u8]>) -> Self {
        Self { bytes, pieces: None, sent: 0, fd: None, is_part: false, transfer: None, brings: None }
    }
}

impl Outbox {
    /// Decides what goes next.
    pub(super) fn line_up(&mut self) -> Result<()> {
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
    pub(super) fn pass_on(&self, socket: &OwnedFd) -> rustix::io::Result<usize> {
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
    pub(super) fn forget(&mut self, mut sent: usize) -> usize {
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
