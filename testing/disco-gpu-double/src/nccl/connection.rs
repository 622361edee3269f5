//! Connections: the first launch of a kind connects ranks, which waits until the peers launch theirs.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::Arc;

use super::call::{Call, Kind};
use super::clique::{Aborted, Clique};
use super::comm::Comm;
use crate::settings;
use crate::sync::lock;

/// The first version of NCCL that connects at the first collective. Earlier versions connect when a communicator is
/// made.
const FIRST_VERSION_WITH_LAZY_CONNECT: c_int = 22_203;

/// A connection, as requested by a rank.
#[derive(Clone, Copy, Debug, serde::Deserialize, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub(crate) enum Connection {
    /// Collectives with all ranks.
    All,
    /// Sends to a rank.
    To(usize),
    /// Receives from a rank.
    From(usize),
}

/// The connections that calls need and the communicator lacks. Marks them as made.
pub(crate) fn missing(comm: &Comm, calls: &[Arc<Call>]) -> Vec<Connection> {
    let connection = |call: &Arc<Call>| match call.kind {
        Kind::Send => Some(Connection::To(call.root)),
        Kind::Recv => Some(Connection::From(call.root)),
        _ => (settings::read().nccl_version() >= FIRST_VERSION_WITH_LAZY_CONNECT).then_some(Connection::All),
    };
    let connections: BTreeSet<Connection> = calls.iter().filter_map(connection).collect();
    let mut connected = lock(&comm.connected);
    connections.into_iter().filter(|connection| connected.insert(*connection)).collect()
}

/// Requests connections.
pub(crate) fn request(clique: &Clique, rank: usize, connections: &[Connection]) {
    if !connections.is_empty() {
        clique.change(|state| {
            state.requested_connections.extend(connections.iter().map(|connection| (rank, *connection)))
        });
        clique.link().into_iter().for_each(|link| link.request_connections(connections));
    }
}

/// Waits until the peers have requested their ends of the connections.
pub(crate) fn connect(comm: &Comm, clique: &Clique, rank: usize, connections: &[Connection]) -> Result<(), Aborted> {
    if connections.is_empty() {
        return Ok(());
    }
    let ends = |connection: &Connection| match *connection {
        Connection::All => (0..clique.ranks()).map(|peer| (peer, Connection::All)).collect(),
        Connection::To(peer) => vec![(peer, Connection::From(rank))],
        Connection::From(peer) => vec![(peer, Connection::To(rank))],
    };
    let ends: Vec<_> = connections.iter().flat_map(ends).collect();
    clique.wait(comm, |state| {
        (state.has_failed || ends.iter().all(|end| state.requested_connections.contains(end))).then_some(())
    })
}
