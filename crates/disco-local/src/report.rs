//! Texts for deadline errors: the current operation of each rank.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use disco_core::OpKind;

use crate::board::{Board, Presence};

/// Offsets in a rank's trace: the [code](name) of the current operation, the code of the last finished one, and the
/// number of finished operations. Only the rank itself writes its trace. The words are not ordered with each other,
/// because only error texts use them.
const CURRENT_OPERATION: usize = 0;
const LAST_OPERATION: usize = 1;
const FINISHED_OPERATIONS: usize = 2;

/// The code of a split, which is not an [`OpKind`]. The code of a kind is its number + 1.
const SPLIT_CODE: u64 = u8::MAX as u64;

/// Records that `rank` enters an operation; `None` is a split.
pub(crate) fn enter(board: &Board, rank: usize, kind: Option<OpKind>) {
    board.trace(rank)[CURRENT_OPERATION].store(kind.map_or(SPLIT_CODE, |kind| kind as u64 + 1), Ordering::Relaxed);
}

/// Records that `rank` leaves its operation and has finished `operations` of them.
pub(crate) fn leave(board: &Board, rank: usize, operations: usize) {
    let trace = board.trace(rank);
    if operations > 0 {
        trace[LAST_OPERATION].store(trace[CURRENT_OPERATION].load(Ordering::Relaxed), Ordering::Relaxed);
        let finished = trace[FINISHED_OPERATIONS].load(Ordering::Relaxed);
        trace[FINISHED_OPERATIONS].store(finished.wrapping_add(operations as u64), Ordering::Relaxed);
    }
    trace[CURRENT_OPERATION].store(0, Ordering::Relaxed);
}

fn name(code: u64) -> Option<&'static str> {
    match code {
        SPLIT_CODE => Some("split"),
        code => Some(OpKind::ALL.get(usize::try_from(code.checked_sub(1)?).ok()?)?.name()),
    }
}

/// `rank 3`, `ranks 0, 1, 5`.
pub(crate) fn ranks(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}

/// The ranks below `presence` during connect, and the ranks that wait for them.
pub(crate) fn connecting(board: &Board, presence: Presence) -> String {
    let (come, missing): (Vec<_>, Vec<_>) = (0..board.size()).partition(|&rank| board.presence(rank) >= presence);
    let have = if missing.len() == 1 { "has" } else { "have" };
    format!("{} {have} not arrived; {}", ranks(&missing), waiting(&come))
}

/// The current operations of the ranks that have not arrived, and the ranks that wait for them.
pub(crate) fn missing(board: &Board, has_arrived: impl Fn(usize) -> bool) -> String {
    let (come, missing): (Vec<_>, Vec<_>) = (0..board.size()).partition(|&rank| has_arrived(rank));
    let missing: Vec<String> = missing.into_iter().map(|rank| doing(board, rank)).collect();
    format!("{}; {}", missing.join(", "), waiting(&come))
}

/// The current operation of a rank for which others wait.
pub(crate) fn doing(board: &Board, rank: usize) -> String {
    let load = |index: usize| board.trace(rank)[index].load(Ordering::Relaxed);
    let mut text = format!("rank {rank} ");
    let written = match (name(load(CURRENT_OPERATION)), name(load(LAST_OPERATION))) {
        (Some(operation), _) if board.is_accessing(rank) => write!(text, "is still copying in {operation}"),
        (Some(operation), _) => write!(text, "is in {operation}"),
        (None, None) => write!(text, "has not arrived (no operation so far)"),
        (None, Some(last)) => {
            let finished = load(FINISHED_OPERATIONS);
            let s = if finished == 1 { "" } else { "s" };
            write!(text, "has not arrived ({finished} operation{s} so far, the last {last})")
        }
    };
    debug_assert!(written.is_ok(), "writing to a string does not fail");
    text
}

fn waiting(come: &[usize]) -> String {
    format!("{} wait{}", ranks(come), if come.len() == 1 { "s" } else { "" })
}
