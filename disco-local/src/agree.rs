//! What ranks call, and whether it fits together.

use std::sync::Arc;

use disco_core::{Error, Op, OpKind, Rank, Result};

use crate::board::{Board, Head};
use crate::group::{Group, State};
use crate::report;

/// One rank's part in a collective.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call<'a> {
    Op(&'a Op),
    Split,
}

/// The communicators that a split makes, by rank of the parent, until they are taken.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    number: u64,
    seats: Vec<Option<NewSeat>>,
}

/// A rank's place in a communicator that a split made.
#[derive(Clone, Debug)]
pub(crate) struct NewSeat {
    pub(crate) group: Arc<Group>,
    pub(crate) rank: Rank,
}

impl Call<'_> {
    /// Which operation; none is a split.
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

    /// What all ranks must agree on, as text.
    pub(crate) fn signature(&self, size: usize) -> String {
        match self {
            Call::Op(op) => op.signature(size),
            Call::Split => self.name().to_owned(),
        }
    }

    /// What all ranks must agree on, as numbers; the counts of the V-forms are looked at by rank instead.
    pub(crate) fn head(&self, size: usize) -> Head {
        let Call::Op(op) = self else { return Head { signature: u64::MAX, count: 0 } };
        let byte = |code: Option<u8>| u64::from(code.unwrap_or(u8::MAX));
        let signature = byte(Some(op.kind() as u8))
            | byte(op.reduction().map(|reduction| reduction as u8)) << 8
            | byte(op.dtype().map(|dtype| dtype as u8)) << 16
            | op.root().map_or(u64::from(u32::MAX), |root| root.index() as u64) << 32;
        let count = match op {
            Op::AllGatherV { .. } | Op::AllToAllV { .. } => 0,
            _ => op.count(size) as u64,
        };
        Head { signature, count }
    }

    /// Shows the counts of a V-form.
    pub(crate) fn write_row(&self, board: &Board, rank: usize, number: u64) {
        match self {
            Call::Op(Op::AllGatherV { counts, .. }) => board.write_row(rank, number, counts.iter().copied()),
            Call::Op(Op::AllToAllV { send_counts, recv_counts, .. }) => {
                board.write_row(rank, number, send_counts.iter().chain(&**recv_counts).copied());
            }
            _ => {}
        }
    }

    /// Whether what `rank` calls fits what all others have posted.
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

/// Whether what each rank sends to `me`, and `me` to it, is what the other expects in an all-to-all V.
///
/// # Errors
/// [`Error::Mismatch`], naming a pair.
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

/// The error of ranks that called different things, once all have said what.
pub(crate) fn disagreement(state: &State) -> Option<Error> {
    let calls: Vec<&str> = state.members.iter().map(|member| member.side.as_deref()).collect::<Option<_>>()?;
    let mut sides: Vec<(&str, Vec<usize>)> = Vec::new();
    for (rank, call) in calls.iter().enumerate() {
        match sides.iter_mut().find(|side| side.0 == *call) {
            Some(side) => side.1.push(rank),
            None => sides.push((call, vec![rank])),
        }
    }
    let operation = calls.first()?.split(' ').next().unwrap_or_default().to_owned();
    let sides = sides.iter().map(|(call, by)| format!("{} called {call}", report::ranks(by)));
    Some(Error::Mismatch { operation, detail: sides.collect::<Vec<_>>().join(", ") })
}

impl Seats {
    /// The words that a rank posts for its wish.
    pub(crate) fn words(color: Option<u32>, key: i32) -> [u64; 2] {
        let color = color.map_or(0, |color| 1 << 32 | u64::from(color));
        [color, u64::from(key.cast_unsigned())]
    }

    /// Takes a rank's seat. The first to come makes the groups, of all wishes on the board.
    pub(crate) fn take(&mut self, parent: &Arc<Group>, rank: usize, number: u64) -> Option<NewSeat> {
        if self.number != number {
            let wishes = (0..parent.size()).map(|rank| {
                let [color, key] = [0, 1].map(|index| parent.board.word(rank, number, index));
                ((color >> 32 == 1).then_some(color as u32), (key as u32).cast_signed())
            });
            *self = Self { number, seats: seats(&wishes.collect::<Vec<_>>(), parent) };
        }
        self.seats.get_mut(rank)?.take()
    }

    /// Gives up the seat that a rank has not taken: the group in it holds the parent, which holds these seats.
    pub(crate) fn forget(&mut self, rank: usize) {
        if let Some(seat) = self.seats.get_mut(rank) {
            *seat = None;
        }
    }
}

/// Makes one group a color, its ranks ordered by key, then by rank in the parent.
fn seats(wishes: &[(Option<u32>, i32)], parent: &Arc<Group>) -> Vec<Option<NewSeat>> {
    let mut seats = vec![None; wishes.len()];
    let mut order: Vec<(u32, i32, usize)> =
        wishes.iter().enumerate().filter_map(|(rank, &(color, key))| Some((color?, key, rank))).collect();
    order.sort_unstable();
    for members in order.chunk_by(|a, b| a.0 == b.0) {
        let group = parent.child(members.len());
        for (rank, &(_, _, old)) in members.iter().enumerate() {
            seats[old] = Some(NewSeat { group: group.clone(), rank: Rank::new(rank as u32) });
        }
    }
    seats
}
