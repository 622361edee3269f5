//! Sends and receives: messages in a few slots for each pair of ranks. The receiver copies the tensors.
//!
//! A group sends messages while slots are free, and receives messages in the order of their arrival, until all receives
//! are done and all its messages are acknowledged. So a group completes whenever the order of its peers' operations
//! allows it. Messages from one sender arrive in order, and match receives in order.
//!
//! A small tensor is inline in its message, so the sender does not wait for the receiver. Otherwise the message has the
//! location of the tensor. A tensor in the private memory of another process goes through the sender's staging area,
//! with one message for each piece. At most two such messages of a pair are in flight, in two pieces that collectives
//! never use ([`Piece::Message`]).

use std::collections::BTreeSet;

use disco_core::{DType, Error, Op, Result, Tensor};
use smallvec::SmallVec;

use crate::active_call::{ActiveCall, Region};
use crate::address_space::{INLINE, PRIVATE};
use crate::board::{self, Board, MAX_IN_FLIGHT, MessageHeader, Piece};
use crate::failure::Failure;
use crate::report;

/// Size from which a tensor is copied with streaming stores.
const STREAMING_MIN_BYTES: usize = 12 << 20;

/// A send or receive that is not complete.
struct Transfer {
    /// The receiver of a send, or the sender of a receive.
    peer: usize,
    region: Region,
    dtype: DType,
    elements: usize,
    /// The location of the tensor for the receiver, [`INLINE`] or [`PRIVATE`].
    location: u64,
    /// Bytes that went through the staging area so far.
    staged: usize,
}

/// Transfers of a group. Most groups have one or two, which need no allocation.
type Transfers = SmallVec<[Transfer; 2]>;

/// The incomplete transfers of a group.
struct PendingTransfers {
    me: usize,
    sends: Transfers,
    recvs: Transfers,
    /// Receivers of complete sends, which may not have acknowledged all messages yet.
    sent: SmallVec<[usize; 2]>,
}

/// The next step of a group.
enum Step {
    /// A slot is free for this send.
    Send(usize),
    /// A message has arrived for this receive.
    Take(usize),
    /// All transfers are complete.
    Done,
}

/// Runs a group of sends and receives.
pub(crate) fn run(call: &mut ActiveCall<'_>, ops: &[Op]) -> Result<()> {
    let board = call.board();
    let mut pending = PendingTransfers::new(call, ops);
    loop {
        match call.wait(|| pending.next(board), || pending.waiting(board))? {
            Step::Send(index) => pending.send(call, index)?,
            Step::Take(index) => pending.take(call, index)?,
            Step::Done => return Ok(()),
        }
    }
}

impl PendingTransfers {
    fn new(call: &ActiveCall<'_>, ops: &[Op]) -> Self {
        let transfer = |peer: usize, tensor: &Tensor| {
            let (region, dtype, elements) = (Region::of(tensor), tensor.dtype(), tensor.elements());
            let location = if region.bytes() <= board::MAX_INLINE_BYTES { INLINE } else { call.location(region) };
            Transfer { peer, region, dtype, elements, location, staged: 0 }
        };
        let (mut sends, mut recvs) = (Transfers::new(), Transfers::new());
        for op in ops {
            match op {
                Op::Send { src, to } => sends.push(transfer(to.index(), src)),
                Op::Recv { dst, from } => recvs.push(transfer(from.index(), dst)),
                _ => {}
            }
        }
        Self { me: call.rank(), sends, recvs, sent: SmallVec::new() }
    }

    /// The next possible step, if there is one.
    fn next(&self, board: &Board) -> Result<Option<Step>, Failure> {
        for (index, transfer) in first_of_each_peer(&self.sends) {
            let room = if transfer.location == PRIVATE { 2 } else { MAX_IN_FLIGHT };
            if board.has_room(self.me, transfer.peer, room) {
                return Ok(Some(Step::Send(index)));
            }
        }
        for (index, transfer) in first_of_each_peer(&self.recvs) {
            // The order matters: a peer may send its last message and then leave, so its presence is read first.
            let has_left = board.is_alarmed() && board.has_left(transfer.peer);
            match board.next_message(transfer.peer, self.me) {
                Some((_, header)) if !transfer.fits(header) => return Err(self.mismatch(transfer, header)),
                Some(_) => return Ok(Some(Step::Take(index))),
                None if has_left => return Err(Failure::lost(transfer.peer)),
                None => {}
            }
        }
        let is_lost = |to: &usize| board.has_left(*to) && board.in_flight(self.me, *to) > 0;
        if let Some(lost) = self.receivers().find(|to| board.is_alarmed() && is_lost(to)) {
            return Err(Failure::lost(lost));
        }
        let is_done = self.sends.is_empty() && self.recvs.is_empty();
        let is_taken = || self.sent.iter().all(|to| board.in_flight(self.me, *to) == 0);
        Ok((is_done && is_taken()).then_some(Step::Done))
    }

    /// Sends the message of a transfer, or the next of its pieces.
    fn send(&mut self, call: &mut ActiveCall<'_>, index: usize) -> Result<()> {
        let (me, transfer) = (self.me, &mut self.sends[index]);
        let (to, bytes, board) = (transfer.peer, transfer.region.bytes(), call.board());
        let header = [transfer.dtype as u64, transfer.elements as u64, transfer.location];
        if transfer.location == PRIVATE {
            let block = staging_block(call, me, to, board.next_number(me, to))?;
            let piece = block.bytes().min(bytes - transfer.staged);
            let from = transfer.region.part(transfer.staged, piece)?;
            call.own().copy(block.part(0, piece)?, from)?;
            transfer.staged += piece;
        }
        let mut payload = [0; board::MAX_INLINE_BYTES];
        let payload = &mut payload[..if transfer.location == INLINE { bytes } else { 0 }];
        call.own().read(transfer.region, payload)?;
        board.send(me, to, header, board::to_words(payload));
        board.wake_sleepers();
        let is_complete = transfer.location != PRIVATE || transfer.staged == bytes;
        if is_complete {
            let transfer = self.sends.remove(index);
            if transfer.location != INLINE {
                self.sent.push(to);
            }
        }
        Ok(())
    }

    /// Receives the message of a transfer, or the next of its pieces.
    fn take(&mut self, call: &mut ActiveCall<'_>, index: usize) -> Result<()> {
        let (me, transfer, board) = (self.me, &mut self.recvs[index], call.board());
        let (from, bytes) = (transfer.peer, transfer.region.bytes());
        let Some((number, header)) = board.next_message(from, me) else { return Ok(()) };
        let is_complete = match header[2] {
            INLINE => {
                let mut payload = [0; board::MAX_INLINE_BYTES];
                let room = payload.get_mut(..bytes);
                let payload = room.ok_or_else(|| {
                    Error::protocol(format!(
                        "rank {from} sent {bytes} bytes inline, which exceeds the limit of {} bytes",
                        board::MAX_INLINE_BYTES
                    ))
                })?;
                board.read_inline(from, me, number, payload);
                call.own().write(transfer.region, payload)?;
                true
            }
            PRIVATE => {
                let block = staging_block(call, from, me, number)?;
                let piece = block.bytes().min(bytes - transfer.staged);
                let to = transfer.region.part(transfer.staged, piece)?;
                call.own().copy(to, block.part(0, piece)?)?;
                transfer.staged += piece;
                transfer.staged == bytes
            }
            location => {
                let region = call.region(from, location, bytes as u64)?;
                call.start()?.streaming(bytes >= STREAMING_MIN_BYTES).copy(transfer.region, region)?;
                call.stop();
                true
            }
        };
        board.release_slot(from, me, number);
        board.wake_sleepers();
        if is_complete {
            self.recvs.remove(index);
        }
        Ok(())
    }

    fn mismatch(&self, transfer: &Transfer, header: MessageHeader) -> Failure {
        let sent = DType::all().find(|dtype| *dtype as u64 == header[0]);
        let sent = sent.map_or("something".into(), |dtype| format!("{dtype} x {}", header[1]));
        let expected = format!("{} x {}", transfer.dtype, transfer.elements);
        let detail = format!("rank {} sends {sent}, rank {} receives {expected}", transfer.peer, self.me);
        Failure::between(transfer.peer, self.me, Error::Mismatch { operation: "send and recv".into(), detail })
    }

    fn receivers(&self) -> impl Iterator<Item = usize> {
        self.sends.iter().map(|transfer| transfer.peer).chain(self.sent.iter().copied())
    }

    /// The current operations of the peers for which this rank waits.
    fn waiting(&self, board: &Board) -> String {
        let is_open = |to: &usize| board.in_flight(self.me, *to) > 0;
        let senders: BTreeSet<usize> = self.recvs.iter().map(|transfer| transfer.peer).collect();
        let receivers: BTreeSet<usize> = self.receivers().filter(is_open).collect();
        let peers: Vec<String> = senders.union(&receivers).map(|peer| report::doing(board, *peer)).collect();
        let list = |what: &str, ranks: BTreeSet<usize>| {
            (!ranks.is_empty()).then(|| format!(" {what} {}", report::ranks(&ranks.into_iter().collect::<Vec<_>>())))
        };
        let waits = [list("to receive from", senders), list("to be received by", receivers)];
        let waits: Vec<String> = waits.into_iter().flatten().collect();
        format!("{}; rank {} waits{}", peers.join(", "), self.me, waits.join(" and"))
    }
}

impl Transfer {
    fn fits(&self, header: MessageHeader) -> bool {
        header[..2] == [self.dtype as u64, self.elements as u64]
    }
}

/// The first transfer of each peer, with its index. Later transfers of that peer wait for it.
fn first_of_each_peer(transfers: &[Transfer]) -> impl Iterator<Item = (usize, &Transfer)> {
    let is_first = |index: usize, peer: usize| transfers[..index].iter().all(|earlier| earlier.peer != peer);
    transfers.iter().enumerate().filter(move |(index, transfer)| is_first(*index, transfer.peer))
}

/// The staging memory of message `number` from one rank to another: the receiver's block of the sender's piece.
fn staging_block(call: &ActiveCall<'_>, from: usize, to: usize, number: u64) -> Result<Region> {
    let block = call.board().block_bytes();
    call.staged(from, Piece::Message(number)).part(to * block, block)
}
