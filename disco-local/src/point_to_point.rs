//! Sends and receives: letters in a few slots for each pair of ranks, copied by the receiver.
//!
//! A group sends letters as far as there are slots, takes what has come for its receives in whatever order it comes, and
//! sends more when slots are free, until its receives are done and its letters are taken. So any order that can end does.
//! Letters of one sender stay in order, and so do the receives from it.
//!
//! A small tensor lies in its letter, so that its sender is done with it at once. Of others a letter says where they are. A
//! tensor that the receiver can't reach, since it lies in another process's private
//! memory, goes through the sender's staging area, a letter for each piece: two letters of a pair are under way at a time, in
//! two pieces that collectives never use ([`Piece::Letter`]).

use std::collections::BTreeSet;

use disco_core::{DType, Error, Op, Result, Tensor};
use smallvec::SmallVec;

use crate::board::{self, Board, Letter, Piece, SLOTS};
use crate::failure::Failure;
use crate::home::{ENCLOSED, PRIVATE};
use crate::report;
use crate::turn::{Region, Turn};

/// From how many bytes on a letter is copied past the caches.
const STREAM: usize = 12 << 20;

/// A tensor that is not received to its end.
struct Parcel {
    /// From whom, or to whom.
    peer: usize,
    region: Region,
    dtype: DType,
    elements: usize,
    /// Where peers find it, or that they can't.
    place: u64,
    /// Bytes that have gone through the staging area.
    staged: usize,
}

/// Several, of which most groups have one or two: those need no allocation.
type Parcels = SmallVec<[Parcel; 2]>;

/// What a group still has to do.
struct Post {
    me: usize,
    sends: Parcels,
    recvs: Parcels,
    /// Ranks that may have letters to take, of which nothing is left to send.
    sent: SmallVec<[usize; 2]>,
}

/// What a group can do now.
enum Step {
    /// There is a slot for a send.
    Send(usize),
    /// There is a letter for a receive.
    Take(usize),
    Done,
}

/// Runs a group of sends and receives.
pub(crate) fn run(turn: &mut Turn<'_>, ops: &[Op]) -> Result<()> {
    let board = turn.board();
    let mut post = Post::new(turn, ops);
    loop {
        match turn.wait(|| post.next(board), || post.waiting(board))? {
            Step::Send(index) => post.send(turn, index)?,
            Step::Take(index) => post.take(turn, index)?,
            Step::Done => return Ok(()),
        }
    }
}

impl Post {
    fn new(turn: &Turn<'_>, ops: &[Op]) -> Self {
        let parcel = |peer: usize, tensor: &Tensor| {
            let (region, dtype, elements) = (Region::of(tensor), tensor.dtype(), tensor.elements());
            let place = if region.bytes() <= board::ENCLOSED { ENCLOSED } else { turn.place(region) };
            Parcel { peer, region, dtype, elements, place, staged: 0 }
        };
        let (mut sends, mut recvs) = (Parcels::new(), Parcels::new());
        for op in ops {
            match op {
                Op::Send { src, to } => sends.push(parcel(to.index(), src)),
                Op::Recv { dst, from } => recvs.push(parcel(from.index(), dst)),
                _ => {}
            }
        }
        Self { me: turn.rank(), sends, recvs, sent: SmallVec::new() }
    }

    /// What can be done now, if anything.
    fn next(&self, board: &Board) -> Result<Option<Step>, Failure> {
        for (index, parcel) in firsts(&self.sends) {
            let room = if parcel.place == PRIVATE { 2 } else { SLOTS };
            if board.has_room(self.me, parcel.peer, room) {
                return Ok(Some(Step::Send(index)));
            }
        }
        for (index, parcel) in firsts(&self.recvs) {
            // That it is gone is seen before what it sent last is looked for.
            let is_gone = board.is_alarmed() && board.is_gone(parcel.peer);
            match board.next_letter(parcel.peer, self.me) {
                Some((_, letter)) if !parcel.fits(letter) => return Err(self.mismatch(parcel, letter)),
                Some(_) => return Ok(Some(Step::Take(index))),
                None if is_gone => return Err(Failure::lost(parcel.peer)),
                None => {}
            }
        }
        let is_lost = |to: &usize| board.is_gone(*to) && board.under_way(self.me, *to) > 0;
        if let Some(lost) = self.receivers().find(|to| board.is_alarmed() && is_lost(to)) {
            return Err(Failure::lost(lost));
        }
        let is_done = self.sends.is_empty() && self.recvs.is_empty();
        let is_taken = || self.sent.iter().all(|to| board.under_way(self.me, *to) == 0);
        Ok((is_done && is_taken()).then_some(Step::Done))
    }

    /// Sends a letter, or the next piece of it.
    fn send(&mut self, turn: &mut Turn<'_>, index: usize) -> Result<()> {
        let (me, parcel) = (self.me, &mut self.sends[index]);
        let (to, bytes, board) = (parcel.peer, parcel.region.bytes(), turn.board());
        let letter = [parcel.dtype as u64, parcel.elements as u64, parcel.place];
        if parcel.place == PRIVATE {
            let slot = slot(turn, me, to, board.next_number(me, to))?;
            let piece = slot.bytes().min(bytes - parcel.staged);
            let from = parcel.region.part(parcel.staged, piece)?;
            turn.own().copy(slot.part(0, piece)?, from)?;
            parcel.staged += piece;
        }
        let mut enclosed = [0; board::ENCLOSED];
        let enclosed = &mut enclosed[..if parcel.place == ENCLOSED { bytes } else { 0 }];
        turn.own().read(parcel.region, enclosed)?;
        board.send(me, to, letter, board::words(enclosed));
        board.awake();
        let is_whole = parcel.place != PRIVATE || parcel.staged == bytes;
        if is_whole {
            let parcel = self.sends.remove(index);
            if parcel.place != ENCLOSED {
                self.sent.push(to);
            }
        }
        Ok(())
    }

    /// Copies a letter to where it belongs, or the next piece of it.
    fn take(&mut self, turn: &mut Turn<'_>, index: usize) -> Result<()> {
        let (me, parcel, board) = (self.me, &mut self.recvs[index], turn.board());
        let (from, bytes) = (parcel.peer, parcel.region.bytes());
        let Some((number, letter)) = board.next_letter(from, me) else { return Ok(()) };
        let is_whole = match letter[2] {
            ENCLOSED => {
                let mut enclosed = [0; board::ENCLOSED];
                let room = enclosed.get_mut(..bytes);
                let enclosed = room.ok_or_else(|| Error::protocol(format!("rank {from} encloses {bytes} bytes")))?;
                board.read_enclosed(from, me, number, enclosed);
                turn.own().write(parcel.region, enclosed)?;
                true
            }
            PRIVATE => {
                let slot = slot(turn, from, me, number)?;
                let piece = slot.bytes().min(bytes - parcel.staged);
                let to = parcel.region.part(parcel.staged, piece)?;
                turn.own().copy(to, slot.part(0, piece)?)?;
                parcel.staged += piece;
                parcel.staged == bytes
            }
            place => {
                let region = turn.region(from, place, bytes as u64)?;
                turn.start()?.streaming(bytes >= STREAM).copy(parcel.region, region)?;
                turn.stop();
                true
            }
        };
        board.take(from, me, number);
        board.awake();
        if is_whole {
            self.recvs.remove(index);
        }
        Ok(())
    }

    fn mismatch(&self, parcel: &Parcel, letter: Letter) -> Failure {
        let sent = DType::all().find(|dtype| *dtype as u64 == letter[0]);
        let sent = sent.map_or("something".into(), |dtype| format!("{dtype} x {}", letter[1]));
        let expected = format!("{} x {}", parcel.dtype, parcel.elements);
        let detail = format!("rank {} sends {sent}, rank {} receives {expected}", parcel.peer, self.me);
        Failure::between(parcel.peer, self.me, Error::Mismatch { operation: "send and recv".into(), detail })
    }

    fn receivers(&self) -> impl Iterator<Item = usize> {
        self.sends.iter().map(|parcel| parcel.peer).chain(self.sent.iter().copied())
    }

    /// What the peers do that this rank waits for.
    fn waiting(&self, board: &Board) -> String {
        let is_open = |to: &usize| board.under_way(self.me, *to) > 0;
        let senders: BTreeSet<usize> = self.recvs.iter().map(|parcel| parcel.peer).collect();
        let receivers: BTreeSet<usize> = self.receivers().filter(is_open).collect();
        let peers: Vec<String> = senders.union(&receivers).map(|peer| report::doing(board, *peer)).collect();
        let mut text = format!("{}; rank {} waits", peers.join(", "), self.me);
        let list = |ranks: BTreeSet<usize>| report::ranks(&ranks.into_iter().collect::<Vec<_>>());
        if !senders.is_empty() {
            text = format!("{text} to receive from {}", list(senders));
        }
        if !receivers.is_empty() {
            let and = if text.ends_with("waits") { "" } else { " and" };
            text = format!("{text}{and} to be received by {}", list(receivers));
        }
        text
    }
}

impl Parcel {
    fn fits(&self, letter: Letter) -> bool {
        letter[..2] == [self.dtype as u64, self.elements as u64]
    }
}

/// The first parcel of each peer, and where it is: the others wait for it.
fn firsts(parcels: &[Parcel]) -> impl Iterator<Item = (usize, &Parcel)> {
    let is_first = |index: usize, peer: usize| parcels[..index].iter().all(|earlier| earlier.peer != peer);
    parcels.iter().enumerate().filter(move |(index, parcel)| is_first(*index, parcel.peer))
}

/// The place where a letter of that number from one rank to another is staged: the receiver's block of the piece.
fn slot(turn: &Turn<'_>, from: usize, to: usize, number: u64) -> Result<Region> {
    let block = turn.board().block_bytes();
    turn.staged(from, Piece::Letter(number)).part(to * block, block)
}
