//! Checks that all ranks call the same collective.

use disco_core::{Error, Op, OpKind, Reduction, Result};

use crate::board::{Board, Head};
use crate::report;

/// The collective that a rank calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call<'a> {
    Op(&'a Op),
    Split,
}

impl Call<'_> {
    /// The kind of the operation, or none for a split.
    pub(crate) fn kind(&self) -> Option<OpKind> {
        match self {
            Call::Op(op) => Some(op.kind()),
            Call::Split => None,
        }
    }

    /// `all_reduce`, `split`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Call::Op(op) => op.kind().name(),
            Call::Split => "split",
        }
    }

    /// The parameters that must be equal on all ranks, as text.
    pub(crate) fn signature(&self, size: usize) -> String {
        match self {
            Call::Op(op) => op.signature(size),
            Call::Split => self.name().to_owned(),
        }
    }

    /// The parameters that must be equal on all ranks, as numbers. The counts of V-forms are compared by
    /// [`Call::fits`].
    pub(crate) fn head(&self, size: usize) -> Head {
        let Call::Op(op) = self else { return Head { signature: u64::MAX, count: 0 } };
        let byte = |code: Option<u8>| u64::from(code.unwrap_or(u8::MAX));
        let signature = byte(Some(op.kind() as u8))
            | byte(op.reduction().map(Reduction::code)) << 8
            | byte(op.dtype().map(|dtype| dtype as u8)) << 16
            | op.root().map_or(u64::from(u32::MAX), |root| root.index() as u64) << 32;
        let count = match op {
            Op::AllGatherV { .. } | Op::AllToAllV { .. } => 0,
            _ => op.count(size) as u64,
        };
        // A program's reduction has no number of its own, and its row is no part of the count.
        Head { signature, count: count ^ op.merge_digest() }
    }

    /// Writes the counts of a V-form to the board.
    pub(crate) fn write_row(&self, board: &Board, rank: usize, number: u64) {
        match self {
            Call::Op(Op::AllGatherV { counts, .. }) => board.write_row(rank, number, counts.iter().copied()),
            Call::Op(Op::AllToAllV { send_counts, recv_counts, .. }) => {
                board.write_row(rank, number, send_counts.iter().chain(&**recv_counts).copied());
            }
            _ => {}
        }
    }

    /// Whether the call of `rank` matches the posts of all other ranks.
    pub(crate) fn fits(&self, board: &Board, rank: usize, number: u64) -> bool {
        let mine = self.head(board.size());
        let counts = |peer: usize| match self {
            Call::Op(Op::AllGatherV { counts, .. }) => {
                counts.iter().enumerate().all(|(index, count)| board.count(peer, number, index) == *count)
            }
            _ => true,
        };
        (0..board.size()).filter(|peer| *peer != rank).all(|peer| board.head(peer, number) == mine && counts(peer))
    }
}

/// Checks an all-to-all V: the counts that `me` and each peer send must equal the counts that the other end expects.
///
/// # Errors
/// [`Error::Mismatch`] with one pair of ranks.
pub(crate) fn check_exchange(board: &Board, me: usize, number: u64) -> Result<()> {
    let size = board.size();
    let pairs = (0..size).flat_map(|peer| [(me, peer), (peer, me)]);
    for (from, to) in pairs {
        let (sent, expected) = (board.count(from, number, to), board.count(to, number, size + from));
        if sent != expected {
            let detail = format!("rank {from} sends {sent} elements to rank {to}, which expects {expected}");
            return Err(Error::Mismatch { operation: "all_to_all_v".into(), detail });
        }
    }
    Ok(())
}

/// The error of ranks that called different operations. None until all ranks have written their call to the board.
pub(crate) fn disagreement(board: &Board) -> Option<Error> {
    let calls: Vec<String> = (0..board.size()).map(|rank| board.call_text(rank)).collect::<Option<_>>()?;
    let mut sides: Vec<(&str, Vec<usize>)> = Vec::new();
    for (rank, call) in calls.iter().enumerate() {
        match sides.iter_mut().find(|side| side.0 == call) {
            Some(side) => side.1.push(rank),
            None => sides.push((call, vec![rank])),
        }
    }
    let operation = calls.first()?.split(' ').next().unwrap_or_default().to_owned();
    let sides = sides.iter().map(|(call, by)| format!("{} called {call}", report::ranks(by)));
    Some(Error::Mismatch { operation, detail: sides.collect::<Vec<_>>().join(", ") })
}
