//! Sends and receives: letters in the receiver's inbox, copied by the receiver.
//!
//! A group puts all its letters in their inboxes before it waits for anything, then takes what has come for its receives
//! in whatever order it comes, then waits until its own letters are read. So any order that can end does. Letters of one
//! sender stay in order, and so do the receives from it.

use std::collections::BTreeSet;
use std::sync::Arc;

use disco_core::{Error, Op, Result, Tensor};

use crate::failure::Failure;
use crate::group::{Group, Letter, Presence, State};
use crate::report;
use crate::turn::{Region, Turn};

/// From how many bytes on a letter is copied past the caches.
const STREAM: usize = 12 << 20;

/// A receive that has not got its letter.
struct Awaited<'a> {
    from: usize,
    dst: &'a Tensor,
}

/// What [`run`] can't run, whatever the peers do.
///
/// # Errors
/// [`Error::Invalid`]: something that is received into is also sent or received into, by the same group; or a rank sends to itself without
/// receiving it in the same group, or the other way round, which nobody could ever match.
pub(crate) fn check(group: &[Op], me: usize) -> Result<()> {
    let overlap = |a: &Tensor, b: &Tensor| {
        let (x, y) = (a.byte_range(), b.byte_range());
        Arc::ptr_eq(a.storage(), b.storage()) && x.start.max(y.start) < x.end.min(y.end)
    };
    for dst in group.iter().filter_map(Op::dst) {
        if let Some(src) = group.iter().filter_map(Op::src).find(|src| overlap(src, dst)) {
            return Err(Error::invalid(format!("one group sends {src} and receives into {dst}, which overlap")));
        }
    }
    let received: Vec<&Tensor> = group.iter().filter_map(Op::dst).collect();
    for (index, dst) in received.iter().enumerate() {
        if let Some(other) = received[..index].iter().find(|other| overlap(other, dst)) {
            return Err(Error::invalid(format!("one group receives into {other} and into {dst}, which overlap")));
        }
    }
    let sent = group.iter().filter(|op| matches!(op, Op::Send { to, .. } if to.index() == me)).count();
    let received = group.iter().filter(|op| matches!(op, Op::Recv { from, .. } if from.index() == me)).count();
    match sent == received {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "rank {me} sends {sent} tensors to itself and receives {received}; a group must do both alike"
        ))),
    }
}

/// Runs a group of sends and receives.
pub(crate) fn run(turn: &mut Turn<'_>, ops: &[Op]) -> Result<()> {
    let (me, group) = (turn.rank(), turn.group());
    group.update(|state| {
        state.announce();
        for op in ops {
            if let Op::Send { src, to } = op {
                state.members[to.index()].inbox.push(Letter { from: me, src: src.clone() });
                state.members[me].unread.push(to.index());
            }
        }
    });
    let mut awaited: Vec<Awaited<'_>> = ops
        .iter()
        .filter_map(|op| match op {
            Op::Recv { dst, from } => Some(Awaited { from: from.index(), dst }),
            _ => None,
        })
        .collect();
    while !awaited.is_empty() {
        let (index, letter) =
            turn.wait(|state| next(state, me, &awaited), |state| waiting(group, state, me, &awaited))?;
        let (to, from) = (Region::of(awaited[index].dst), Region::of(&letter.src));
        turn.start()?.streaming(to.bytes() >= STREAM).copy(to, from)?;
        awaited.remove(index);
        turn.stop();
        group.update(|state| {
            state.announce();
            let unread = &mut state.members[letter.from].unread;
            // A sender that has left early has forgotten its letters.
            if let Some(at) = unread.iter().position(|&to| to == me) {
                unread.remove(at);
            }
        });
    }
    let read = |state: &mut State| {
        let unread = &state.members[me].unread;
        match unread.iter().find(|&&to| is_gone(state, to)) {
            Some(&to) => Err(Failure::lost(to)),
            None => Ok(unread.is_empty().then_some(())),
        }
    };
    turn.wait(read, |state| waiting(group, state, me, &[]))
}

/// The first receive whose letter has come.
fn next(state: &mut State, me: usize, awaited: &[Awaited<'_>]) -> Result<Option<(usize, Letter)>, Failure> {
    for (index, Awaited { from, dst }) in awaited.iter().enumerate() {
        let inbox = &mut state.members[me].inbox;
        if let Some(at) = inbox.iter().position(|letter| letter.from == *from) {
            // A letter that does not fit stays where its sender finds it.
            let src = &inbox[at].src;
            return match (src.dtype(), src.elements()) == (dst.dtype(), dst.elements()) {
                true => Ok(Some((index, inbox.remove(at)))),
                false => Err(Failure::between(*from, me, mismatch((*from, src), (me, dst)))),
            };
        }
        if is_gone(state, *from) {
            return Err(Failure::lost(*from));
        }
    }
    Ok(None)
}

fn mismatch(sender: (usize, &Tensor), receiver: (usize, &Tensor)) -> Error {
    let side = |tensor: &Tensor| format!("{} x {}", tensor.dtype(), tensor.elements());
    let (sent, expected) = (side(sender.1), side(receiver.1));
    let detail = format!("rank {} sends {sent}, rank {} receives {expected}", sender.0, receiver.0);
    Error::Mismatch { operation: "send and recv".into(), detail }
}

fn is_gone(state: &State, rank: usize) -> bool {
    state.members[rank].presence == Presence::Gone
}

/// What the peers do that rank `me` waits for.
fn waiting(group: &Group, state: &State, me: usize, awaited: &[Awaited<'_>]) -> String {
    let senders = sorted(awaited.iter().map(|awaited| awaited.from));
    let receivers = sorted(state.members[me].unread.iter().copied());
    let peers = sorted(senders.iter().chain(&receivers).copied());
    let peers: Vec<String> = peers.into_iter().map(|peer| report::doing(group, peer)).collect();
    let mut text = format!("{}; rank {me} waits", peers.join(", "));
    if !senders.is_empty() {
        text = format!("{text} to receive from {}", report::ranks(&senders));
    }
    if !receivers.is_empty() {
        let and = if senders.is_empty() { "" } else { " and" };
        text = format!("{text}{and} to be received by {}", report::ranks(&receivers));
    }
    text
}

fn sorted(ranks: impl Iterator<Item = usize>) -> Vec<usize> {
    let ranks: BTreeSet<usize> = ranks.collect();
    ranks.into_iter().collect()
}
