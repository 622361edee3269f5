//! Connections: the first launch of a kind has ranks connect, which waits until the peers launch theirs.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::Arc;

use super::call::{Call, Kind};
use super::clique::{Aborted, Clique};
use super::comm::Comm;
use crate::settings;
use crate::sync::lock;

/// The first version of NCCL that connects for collectives with the first of them; before, a communicator is made connected.
const LATE: c_int = 22_203;

/// What a rank connects for, as it asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Link {
    /// Collectives with all ranks.
    All,
    /// Sends to a rank.
    To(usize),
    /// Receives from a rank.
    From(usize),
}

/// What calls need that a communicator has not connected for. It counts as connected from then on.
pub(crate) fn missing(comm: &Comm, calls: &[Arc<Call>]) -> Vec<Link> {
    let link = |call: &Arc<Call>| match call.kind {
        Kind::Send => Some(Link::To(call.root)),
        Kind::Recv => Some(Link::From(call.root)),
        _ => (settings::read().nccl_version() >= LATE).then_some(Link::All),
    };
    let links: BTreeSet<Link> = calls.iter().filter_map(link).collect();
    let mut connected = lock(&comm.connected);
    links.into_iter().filter(|link| connected.insert(*link)).collect()
}

/// Asks for connections.
pub(crate) fn ask(clique: &Clique, rank: usize, links: &[Link]) {
    if !links.is_empty() {
        clique.change(|state| state.asked.extend(links.iter().map(|link| (rank, *link))));
    }
}

/// Waits until the peers have asked for their ends of connections.
pub(crate) fn connect(comm: &Comm, clique: &Clique, rank: usize, links: &[Link]) -> Result<(), Aborted> {
    if links.is_empty() {
        return Ok(());
    }
    let ends = |link: &Link| match *link {
        Link::All => (0..clique.ranks()).map(|peer| (peer, Link::All)).collect(),
        Link::To(peer) => vec![(peer, Link::From(rank))],
        Link::From(peer) => vec![(peer, Link::To(rank))],
    };
    let ends: Vec<_> = links.iter().flat_map(ends).collect();
    clique.wait(comm, |state| (state.has_failed || ends.iter().all(|end| state.asked.contains(end))).then_some(()))
}
