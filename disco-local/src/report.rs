//! Words for people who ask why it hangs.

use std::fmt::Write;

use crate::group::{Member, Presence, Slot, State};

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

/// Who has not entered a collective, and who waits for them.
pub(crate) fn forming(state: &State) -> String {
    missing(state, |member| !matches!(member.slot, Slot::Empty))
}

/// Who has not come to a point inside a collective, and who waits for them.
pub(crate) fn inside(state: &State, step: u64) -> String {
    missing(state, |member| member.steps >= step)
}

/// What some ranks do instead of coming, and who waits for them.
fn missing(state: &State, has_come: impl Fn(&Member) -> bool) -> String {
    let (come, missing): (Vec<_>, Vec<_>) = (0..state.members.len()).partition(|&rank| has_come(&state.members[rank]));
    let missing: Vec<String> = missing.into_iter().map(|rank| doing(state, rank)).collect();
    format!("{}; {}", missing.join(", "), waiting(&come))
}

/// What a rank does, who is waited for.
pub(crate) fn doing(state: &State, rank: usize) -> String {
    let member = &state.members[rank];
    let mut text = format!("rank {rank} ");
    let written = match (member.inside, member.last) {
        (Some(operation), _) if member.copying => write!(text, "is still copying in {operation}"),
        (Some(operation), _) => write!(text, "is in {operation}"),
        (None, None) => write!(text, "has not come (no operation so far)"),
        (None, Some(last)) => {
            let s = if member.finished == 1 { "" } else { "s" };
            write!(text, "has not come ({} operation{s} so far, the last {last})", member.finished)
        }
    };
    debug_assert!(written.is_ok(), "a string takes all text");
    text
}

fn waiting(come: &[usize]) -> String {
    format!("{} wait{}", ranks(come), if come.len() == 1 { "s" } else { "" })
}
