//! What ranks publish to enter a collective, and whether it fits together.

use std::sync::Arc;

use disco_core::{Error, Op, Rank, Result};

use crate::group::Group;
use crate::report;

/// One rank's part in a collective.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Op(Op),
    Split { color: Option<u32>, key: i32 },
}

/// A collective that all ranks have entered and agree on. Its tensors stay valid as long as anybody holds it.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// By rank; empty for a split.
    pub(crate) ops: Vec<Op>,
    /// By rank, its new communicator; empty for an operation.
    pub(crate) seats: Vec<Option<NewSeat>>,
}

/// A rank's place in a communicator that a split made.
#[derive(Clone, Debug)]
pub(crate) struct NewSeat {
    pub(crate) group: Arc<Group>,
    pub(crate) rank: Rank,
}

impl Round {
    /// The round of these calls, one a rank.
    ///
    /// # Errors
    /// [`Error::Mismatch`], showing both sides.
    pub(crate) fn of(calls: Vec<Call>, parent: &Arc<Group>) -> Result<Self> {
        let size = calls.len();
        if let [first, rest @ ..] = calls.as_slice()
            && !rest.iter().all(|call| call.fits(first, size))
        {
            return Err(disagree(first.name(), sides(&calls)));
        }
        let mut ops = Vec::new();
        let mut wishes = Vec::new();
        for call in calls {
            match call {
                Call::Op(op) => ops.push(op),
                Call::Split { color, key } => wishes.push((color, key)),
            }
        }
        check_exchange(&ops)?;
        Ok(Self { ops, seats: seat(&wishes, parent) })
    }
}

impl Call {
    /// `all_reduce`, `split`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Call::Op(op) => op.kind().name(),
            Call::Split { .. } => "split",
        }
    }

    /// What all ranks must agree on, as text.
    pub(crate) fn signature(&self, size: usize) -> String {
        match self {
            Call::Op(op) => op.signature(size),
            Call::Split { .. } => self.name().to_owned(),
        }
    }

    /// Whether two ranks may meet in these calls; the counts of all-to-all V are looked at by pairs instead.
    fn fits(&self, other: &Self, size: usize) -> bool {
        let (a, b) = match (self, other) {
            (Call::Op(a), Call::Op(b)) => (a, b),
            (Call::Split { .. }, Call::Split { .. }) => return true,
            _ => return false,
        };
        let counts = match (a, b) {
            (Op::AllGatherV { counts: a, .. }, Op::AllGatherV { counts: b, .. }) => a == b,
            (Op::AllToAllV { .. }, Op::AllToAllV { .. }) => true,
            _ => a.count(size) == b.count(size),
        };
        counts && (a.kind(), a.reduction(), a.dtype(), a.root()) == (b.kind(), b.reduction(), b.dtype(), b.root())
    }
}

/// What each rank called, with ranks that called the same put together.
fn sides(calls: &[Call]) -> String {
    let mut sides: Vec<(String, Vec<usize>)> = Vec::new();
    for (rank, call) in calls.iter().enumerate() {
        let signature = call.signature(calls.len());
        match sides.iter_mut().find(|side| side.0 == signature) {
            Some(side) => side.1.push(rank),
            None => sides.push((signature, vec![rank])),
        }
    }
    let sides = sides.iter().map(|(signature, ranks)| format!("{} called {signature}", report::ranks(ranks)));
    sides.collect::<Vec<_>>().join(", ")
}

/// Whether what each rank of an all-to-all V sends is what the other expects.
fn check_exchange(ops: &[Op]) -> Result<()> {
    for (from, sender) in ops.iter().enumerate() {
        for (to, receiver) in ops.iter().enumerate() {
            let (Op::AllToAllV { send_counts, .. }, Op::AllToAllV { recv_counts, .. }) = (sender, receiver) else {
                return Ok(());
            };
            let (sent, expected) = (send_counts[to], recv_counts[from]);
            if sent != expected {
                let detail = format!("rank {from} sends {sent} elements to rank {to}, which expects {expected}");
                return Err(disagree(sender.kind().name(), detail));
            }
        }
    }
    Ok(())
}

/// Makes one group a color, its ranks ordered by key, then by rank in the parent.
fn seat(wishes: &[(Option<u32>, i32)], parent: &Arc<Group>) -> Vec<Option<NewSeat>> {
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

fn disagree(operation: &str, detail: String) -> Error {
    Error::Mismatch { operation: operation.to_owned(), detail }
}
