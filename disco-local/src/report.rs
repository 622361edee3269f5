//! Words for people who ask why it hangs.

use std::fmt::Write;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use disco_core::OpKind;

use crate::group::{Group, Presence, State};

/// What one rank is doing. Written by it alone, without order: it is for a person.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Trace {
    /// What it is inside of, as a [code](name).
    inside: AtomicU8,
    /// The last operation that it finished, and how many these were.
    last: AtomicU8,
    finished: AtomicU64,
}

/// The code of a split, which is no [`OpKind`]; those have their number + 1.
const SPLIT: u8 = u8::MAX;

impl Trace {
    /// Enters an operation; none is a split.
    pub(crate) fn enter(&self, kind: Option<OpKind>) {
        self.inside.store(kind.map_or(SPLIT, |kind| kind as u8 + 1), Ordering::Relaxed);
    }

    /// Leaves it, having finished so many.
    pub(crate) fn leave(&self, operations: usize) {
        if operations > 0 {
            self.last.store(self.inside.load(Ordering::Relaxed), Ordering::Relaxed);
            let finished = self.finished.load(Ordering::Relaxed);
            self.finished.store(finished + operations as u64, Ordering::Relaxed);
        }
        self.inside.store(0, Ordering::Relaxed);
    }
}

fn name(code: u8) -> Option<&'static str> {
    match code {
        SPLIT => Some("split"),
        code => Some(OpKind::ALL.get(usize::from(code.checked_sub(1)?))?.name()),
    }
}

/// `rank 3`, `ranks 0, 1, 5`.
pub(crate) fn ranks(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}

/// Who has not connected, and who waits for them.
pub(crate) fn connecting(state: &State) -> String {
    let (come, missing): (Vec<_>, Vec<_>) =
        (0..state.members.len()).partition(|&rank| state.members[rank].presence != Presence::Awaited);
    let have = if missing.len() == 1 { "has" } else { "have" };
    format!("{} {have} not come; {}", ranks(&missing), waiting(&come))
}

/// What some ranks do instead of coming, and who waits for them.
pub(crate) fn missing(group: &Group, has_come: impl Fn(usize) -> bool) -> String {
    let (come, missing): (Vec<_>, Vec<_>) = (0..group.size()).partition(|&rank| has_come(rank));
    let missing: Vec<String> = missing.into_iter().map(|rank| doing(group, rank)).collect();
    format!("{}; {}", missing.join(", "), waiting(&come))
}

/// What a rank does, who is waited for.
pub(crate) fn doing(group: &Group, rank: usize) -> String {
    let trace = &group.traces[rank];
    let (inside, last) = (trace.inside.load(Ordering::Relaxed), trace.last.load(Ordering::Relaxed));
    let mut text = format!("rank {rank} ");
    let written = match (name(inside), name(last)) {
        (Some(operation), _) if group.board.is_touching(rank) => write!(text, "is still copying in {operation}"),
        (Some(operation), _) => write!(text, "is in {operation}"),
        (None, None) => write!(text, "has not come (no operation so far)"),
        (None, Some(last)) => {
            let finished = trace.finished.load(Ordering::Relaxed);
            let s = if finished == 1 { "" } else { "s" };
            write!(text, "has not come ({finished} operation{s} so far, the last {last})")
        }
    };
    debug_assert!(written.is_ok(), "a string takes all text");
    text
}

fn waiting(come: &[usize]) -> String {
    format!("{} wait{}", ranks(come), if come.len() == 1 { "s" } else { "" })
}
