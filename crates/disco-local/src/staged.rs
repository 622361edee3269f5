//! Collectives on tensors in the private memory of a process, which ranks of other processes can't access.
//!
//! Each rank writes only to its own tensors and its own staging area, and reads the staging areas of all ranks. The
//! work is a pipeline over pieces that fit in the caches, so main memory is read and written as often as without
//! staging:
//!
//! ```text
//! before the meeting     fill    piece 0      if the own input is private, so that staging is certain
//! in each round i        fill    piece i      each rank copies the parts of its input that peers need to its area
//!                        work    piece i - 1  each rank makes its results from the areas and its own tensor;
//!                                             in a reduction with shares: its share, which it also copies to its area
//!                        share   piece i - 2  in such a reduction: each rank copies the shares of its peers
//! ```
//!
//! A synchronisation ends each round. Pieces are double-buffered and numbered over the life of a communicator: a piece
//! is filled again only after the synchronisation that follows its last read. If all ranks have filled their first
//! piece before the meeting, the meeting replaces the first synchronisation. The meeting of the next collective
//! replaces the last one. So a collective of one piece has no synchronisation of its own, or one for its shares.
//! Messages synchronise two ranks only, and therefore have pieces of their own ([`Piece`]). The shares and the order of
//! reduction are those of the zero-copy schedule, so the results have the same bits.

use disco_core::{Op, Result};

use crate::active_call::{ActiveCall, InlineVec, Region};
use crate::board::Piece;
use crate::parts::{STREAMING_MIN_BYTES, parts, reduce, uneven, unit, unsupported, width};

/// Fills the first piece before the meeting if this collective is certain to be staged. Returns whether it did.
pub(crate) fn prepare(call: &mut ActiveCall<'_>, op: &Op, input: Region) -> Result<bool> {
    let is_certain = call.is_private(input) && can_prepare(op);
    if is_certain {
        Staged::new(call, op)?.fill(call, 0)?;
    }
    Ok(is_certain)
}

/// Whether the number of pieces is known before the meeting. In an all-to-all V it depends on the counts of all ranks.
fn can_prepare(op: &Op) -> bool {
    !matches!(op, Op::AllToAllV { .. })
}

/// Runs a collective through the staging areas, after the meeting.
pub(crate) fn run(call: &mut ActiveCall<'_>, op: &Op, is_prepared: bool) -> Result<()> {
    let staged = Staged::new(call, op)?;
    let are_prepared = can_prepare(op) && call.inputs_are_private();
    let rounds = staged.pieces + if staged.shares { 2 } else { 1 };
    for round in 0..rounds {
        if round < staged.pieces && (round > 0 || !is_prepared) {
            staged.fill(call, round)?;
        }
        if (1..=staged.pieces).contains(&round) {
            staged.work(call, round - 1)?;
        }
        if staged.shares && round >= 2 {
            staged.share(call, round - 2)?;
        }
        // The meeting has replaced the first synchronisation, and the next meeting replaces the last one.
        if round + 1 < rounds && (round > 0 || !are_prepared) {
            call.sync()?;
        }
    }
    call.count_staged(staged.pieces);
    Ok(())
}

/// One rank's part in a staged collective.
struct Staged<'o> {
    op: &'o Op,
    me: usize,
    size: usize,
    input: Region,
    output: Region,
    /// Size in bytes of one piece. Depending on the operation, the pieces divide a whole tensor, or a block for each
    /// peer.
    step: usize,
    /// Bytes that no piece and no share cuts.
    unit: usize,
    /// Number of pieces.
    pieces: usize,
    /// Number of pieces that earlier collectives of this communicator have staged.
    first: u64,
    /// Whether each rank reduces a share of the result, which its peers copy.
    shares: bool,
    /// Whether results are written with streaming stores.
    streams: bool,
}

impl<'o> Staged<'o> {
    fn new(call: &ActiveCall<'_>, op: &'o Op) -> Result<Self> {
        let (me, size) = (call.rank(), call.size());
        let (input, output) = parts(op, me, size)?;
        let width = width(op);
        let longest = match op {
            Op::AllGatherV { counts, .. } => counts.iter().copied().max().unwrap_or(0) * width,
            Op::AllToAllV { .. } => {
                let counts = (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
                let most = counts.map(|(from, to)| call.count(from, to)).max().unwrap_or(0);
                most.saturating_mul(width)
            }
            _ => op.count(size) * width,
        };
        let step = match op {
            Op::ReduceScatter { .. } | Op::Scatter { .. } | Op::AllToAll { .. } | Op::AllToAllV { .. } => {
                call.board().block_bytes()
            }
            _ => call.board().piece_bytes(),
        };
        let unit = unit(op);
        let step = step / unit * unit;
        let streams = (input.bytes() + output.bytes()) * size >= STREAMING_MIN_BYTES && !input.is(output);
        let shares = matches!(op, Op::AllReduce { .. } | Op::Reduce { .. });
        let (pieces, first) = (longest.div_ceil(step), call.staged_before());
        Ok(Self { op, me, size, input, output, step, unit, pieces, first, shares, streams })
    }

    /// The staging area of `rank` for a piece of its input.
    fn area(&self, call: &ActiveCall<'_>, rank: usize, piece: usize) -> Region {
        call.staged(rank, Piece::Input(self.first + piece as u64))
    }

    /// The staging area of `rank` for its share of the result.
    fn share_area(&self, call: &ActiveCall<'_>, rank: usize, piece: usize) -> Region {
        call.staged(rank, Piece::Share(self.first + piece as u64))
    }

    /// Copies the parts of this rank's input that peers need to its staging area.
    fn fill(&self, call: &mut ActiveCall<'_>, piece: usize) -> Result<()> {
        let (me, area) = (self.me, self.area(call, self.me, piece));
        let whole = self.cut(self.input, piece)?;
        let blocks: Result<InlineVec<(Region, Region)>> = match self.op {
            Op::AllReduce { .. } | Op::Reduce { .. } => {
                let area = area.part(0, whole.bytes())?;
                self.others().map(|peer| Ok((self.share_of(area, peer)?, self.share_of(whole, peer)?))).collect()
            }
            Op::Broadcast { root, .. } if me != root.index() => return Ok(()),
            Op::Scatter { root, .. } if me != root.index() => return Ok(()),
            Op::Gather { root, .. } if me == root.index() => return Ok(()),
            Op::Broadcast { .. } | Op::AllGather { .. } | Op::AllGatherV { .. } | Op::Gather { .. } => {
                Ok(std::iter::once((area.part(0, whole.bytes())?, whole)).collect())
            }
            _ => {
                let block = |peer: usize| {
                    let block = self.cut(self.sent(call, peer)?, piece)?;
                    Ok((area.part(peer * self.step, block.bytes())?, block))
                };
                self.others().map(block).collect()
            }
        };
        let memory = call.own();
        blocks?.into_iter().try_for_each(|(to, from)| memory.copy(to, from))
    }

    /// Makes this rank's part of the result from the staging areas.
    fn work(&self, call: &mut ActiveCall<'_>, piece: usize) -> Result<()> {
        let me = self.me;
        match self.op {
            Op::AllReduce { .. } | Op::Reduce { .. } => {
                let (input, output) = (self.cut(self.input, piece)?, self.cut(self.output, piece)?);
                let share = |region: Region| self.share_of(region.part(0, input.bytes())?, me);
                let inputs =
                    self.all(|peer| if peer == me { share(input) } else { share(self.area(call, peer, piece)) });
                let result = share(self.share_area(call, me, piece));
                let own = (output.bytes() > 0).then(|| share(output));
                reduce(&call.own(), self.op, inputs, [result].into_iter().chain(own))
            }
            Op::ReduceScatter { .. } => {
                let input = self.cut(self.sent(call, me)?, piece)?;
                let inputs = self.all(|peer| {
                    if peer == me {
                        Ok(input)
                    } else {
                        self.area(call, peer, piece).part(me * self.step, input.bytes())
                    }
                });
                let output = self.output.part(piece * self.step, input.bytes());
                reduce(&call.own(), self.op, inputs, [output])
            }
            Op::Broadcast { root, .. } | Op::Scatter { root, .. } if self.output.bytes() > 0 => {
                self.take(call, root.index(), self.output, piece)
            }
            Op::AllGather { .. } | Op::Gather { .. } if self.output.bytes() > 0 => {
                (0..self.size).try_for_each(|peer| self.take(call, peer, self.output.block(peer, self.size)?, piece))
            }
            Op::AllGatherV { counts, .. } => (0..self.size)
                .try_for_each(|peer| self.take(call, peer, uneven(self.output, counts, peer, width(self.op))?, piece)),
            Op::AllToAll { .. } => {
                (0..self.size).try_for_each(|peer| self.take(call, peer, self.output.block(peer, self.size)?, piece))
            }
            Op::AllToAllV { recv_counts, .. } => (0..self.size).try_for_each(|peer| {
                self.take(call, peer, uneven(self.output, recv_counts, peer, width(self.op))?, piece)
            }),
            Op::Broadcast { .. } | Op::Scatter { .. } | Op::AllGather { .. } | Op::Gather { .. } => Ok(()),
            op => unsupported(op),
        }
    }

    /// Copies the shares of the result that peers have made.
    fn share(&self, call: &mut ActiveCall<'_>, piece: usize) -> Result<()> {
        let output = self.cut(self.output, piece)?;
        if output.bytes() == 0 {
            return Ok(());
        }
        for peer in self.others() {
            let area = self.share_area(call, peer, piece).part(0, output.bytes())?;
            let (to, from) = (self.share_of(output, peer)?, self.share_of(area, peer)?);
            call.own().streaming(self.streams).copy(to, from)?;
        }
        Ok(())
    }

    /// Copies a piece that `peer` has for this rank to `stretch`.
    fn take(&self, call: &mut ActiveCall<'_>, peer: usize, stretch: Region, piece: usize) -> Result<()> {
        let to = self.cut(stretch, piece)?;
        let from = match (self.op, peer == self.me) {
            (Op::AllToAll { .. } | Op::AllToAllV { .. } | Op::Scatter { .. }, true) => {
                self.cut(self.sent(call, peer)?, piece)?
            }
            (_, true) => self.cut(self.input, piece)?,
            (Op::AllToAll { .. } | Op::AllToAllV { .. } | Op::Scatter { .. }, false) => {
                self.area(call, peer, piece).part(self.me * self.step, to.bytes())?
            }
            (_, false) => self.area(call, peer, piece).part(0, to.bytes())?,
        };
        call.own().streaming(self.streams).copy(to, from)
    }

    /// The block of this rank's input that is for `peer`.
    fn sent(&self, call: &ActiveCall<'_>, peer: usize) -> Result<Region> {
        match self.op {
            Op::AllToAllV { send_counts, .. } => uneven(self.input, send_counts, peer, width(self.op)),
            _ => self.input.block(peer, call.size()),
        }
    }

    /// Piece `piece` of `stretch`; empty beyond its end.
    fn cut(&self, stretch: Region, piece: usize) -> Result<Region> {
        let start = (piece * self.step).min(stretch.bytes());
        stretch.part(start, self.step.min(stretch.bytes() - start))
    }

    /// The share of a piece that `rank` reduces.
    fn share_of(&self, piece: Region, rank: usize) -> Result<Region> {
        piece.share(rank, self.size, self.unit)
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.size).filter(|peer| *peer != self.me)
    }

    fn all(&self, region: impl Fn(usize) -> Result<Region>) -> InlineVec<Result<Region>> {
        (0..self.size).map(region).collect()
    }
}
