//! The node's end: joins the controller, and relays between it and the node's workers, and between it and the nodes
//! behind this one.

mod bridge;
mod children;
#[cfg(test)]
mod doubles;
mod guests;
pub(super) mod join;
mod stop;
mod subtree;
mod upstream;

use std::sync::Arc;

use disco_core::link::Shared;
use disco_core::shared_memory::Arena;
use disco_core::wire::{Assignment, Message};
use disco_core::{Channel, Error, Result};
use disco_engine::handshake::Secret;
use disco_engine::noise::check;

use self::bridge::{Bridge, FLUSH_TIMEOUT};
use self::children::{Children, Listener};
use self::guests::Guests;
pub use self::join::JoinOptions;
use self::join::Joined;
pub use self::stop::StopHandle;
use self::subtree::Subtree;
use self::upstream::Upstream;
use crate::remote::lane::RemoteLane;
use crate::remote::processes::Sink;
use crate::remote::programs;
use crate::remote::reactor::Waker;
use crate::remote::store::RemoteStore;
use crate::ring::MAX_READERS;

/// Serves as a node until the session is over: joins the controller, starts the assigned workers, and relays commands
/// and replies, also for other nodes if the controller assigns them.
///
/// `lane` makes the lane to the workers. It gets the assignment, the state that the workers share, and the sink for the
/// output of workers that are processes.
///
/// # Errors
/// This program is built without the feature `nodes`. The controller does not answer in time, refuses the node or is lost; the workers can't be started (the controller is
/// told); or workers do not leave in time.
pub fn serve<F>(options: &JoinOptions, lane: F) -> Result<()>
where
    F: FnOnce(&Assignment, Arc<Shared>, Sink) -> Result<Arc<dyn Channel>>,
{
    check("joining a session as a node")?;
    join_and_serve(options, |joined, store, upstream| {
        let assignment = joined.assignment.clone();
        let arena = Arena::new(assignment.config.world.per_node())?;
        let shared = Arc::new(Shared::new(store.clone()).among_nodes(arena));
        let output = {
            let upstream = upstream.clone();
            Arc::new(move |worker, is_err, line: &[u8]| upstream.print(worker, is_err, line))
        };
        let limit = options.max_workers.map_or(MAX_READERS, |limit| limit as usize).min(MAX_READERS);
        let count = assignment.workers.len() / (1 + assignment.behind.len());
        if !(1..=limit).contains(&count) {
            return Err(Error::invalid(format!(
                "the controller assigns {count} workers, and this node accepts 1 to {limit}"
            )));
        }
        let mut own =
            Assignment { workers: assignment.workers.part(0, count), behind: Arc::default(), ..assignment.clone() };
        own.config.uplink = Some(joined.uplink);
        let own = lane(&own, shared.clone(), output)?;
        if assignment.behind.is_empty() {
            return Ok(Made { all: own.clone(), own });
        }
        let behind = behind(options, &assignment, joined.listener.take(), shared, upstream.clone())?;
        Ok(Made { all: Arc::new(Subtree::new(own.clone(), behind)), own })
    })
}

/// The lanes of a node.
struct Made {
    /// To the node's own workers.
    own: Arc<dyn Channel>,
    /// To these, and to those of the nodes behind it.
    all: Arc<dyn Channel>,
}

/// Joins the controller, and serves the workers of the lane that `make` makes.
fn join_and_serve(
    options: &JoinOptions,
    make: impl FnOnce(&mut Joined, &Arc<RemoteStore>, &Arc<Upstream>) -> Result<Made>,
) -> Result<()> {
    let refused = |error: std::io::Error| Error::system("the system refuses a node", error);
    let waker = Arc::new(Waker::new().map_err(refused)?);
    let Some(mut joined) = join::join(options, &waker)? else { return Ok(()) };
    let (connection, assignment) = (joined.connection.clone(), joined.assignment.clone());
    let store = Arc::new(RemoteStore::new(connection.clone()));
    let upstream = Arc::new(Upstream::new(connection.clone(), waker.clone(), store.clone(), &assignment));
    let Made { own, all } = make(&mut joined, &store, &upstream).inspect_err(|error| {
        // Fails only if the connection is closed already.
        _ = Message::Bye(error.to_string()).encode().and_then(|packet| connection.send_last(packet));
        connection.finish(FLUSH_TIMEOUT);
    })?;
    tracing::info!(node = assignment.node, workers = %assignment.workers, "joined");
    let stop = options.stop.clone().unwrap_or_default();
    let _listening = stop.listen(waker.clone());
    let _answering = programs::answer(upstream.observer(&assignment, &all));
    let guests = Guests::new(options, assignment.node, joined.own, own);
    Bridge::new(waker, store, upstream, all, guests, stop).run(joined)
}

/// The lane to the nodes behind this one.
fn behind(
    options: &JoinOptions,
    assignment: &Assignment,
    listener: Option<Listener>,
    shared: Arc<Shared>,
    upstream: Arc<Upstream>,
) -> Result<Arc<dyn Channel>> {
    let (nodes, all) = (assignment.behind.len(), assignment.workers);
    let count = all.len() / (1 + nodes);
    let are_numbered = u32::try_from(nodes).is_ok_and(|nodes| assignment.node.checked_add(nodes).is_some());
    let listener = listener.filter(|_| are_numbered && all.len() == count * (1 + nodes)).ok_or_else(|| {
        Error::protocol(format!(
            "the controller assigns {all} to this node and {nodes} behind it, unasked or unequally"
        ))
    })?;
    let secret = Secret::new(options.token.clone(), options.encrypts)?;
    let sink = Box::new(move |_, worker, is_err, line: &[u8]| upstream.print(worker, is_err, line));
    let children = Children::new(listener, secret, assignment, sink)?;
    Ok(Arc::new(RemoteLane::new(all.part(count, count * nodes), shared, children)))
}
