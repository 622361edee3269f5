//! New processes of nodes that are still connected.
//!
//! ```text
//! session                                                           node 1, whose worker 3 is lost
//! NodeLane to node 1 ── REPLACE worker 3, address of the new lane ─▶ bridge ──▶ Guests: a thread that joins as node 1
//! NodeLane to worker 3 ◀── JOIN, READY ────────────────────────────────────────── bridge ──▶ ProcessLane to worker 3
//! ```
//!
//! So the new process has a lane, a connection and an engine of its own, and the lane of its node goes on as before.
//!
//! # Invariants
//! - A lane knows a node as lost once the session knows all workers of the node as lost, also those of other lanes. Only
//!   then it replaces the whole node, with all of them.
//! - The lane to a node stays while the node has workers of other lanes, although it may have none of its own.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use disco_core::channel::Signal;
use disco_core::error::LostPeer;
use disco_core::{Error, Inbox, Result, WorkerId, WorkerRange, sync};

use crate::remote::reactor::Lane;

/// What a lane knows of its nodes as hosts of workers that other lanes have. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::remote::nodes) struct Hosting(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// The lane, once it runs.
    lane: OnceLock<Weak<Lane>>,
    /// Each lane to such workers has a [`Use`].
    users: Arc<()>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Lost nodes, by all their workers.
    lost: Vec<LostNodes>,
    guests: Vec<Guest>,
}

#[derive(Debug)]
struct LostNodes {
    workers: WorkerRange,
    why: Error,
    /// The session knows that all these workers are lost.
    is_told: bool,
}

/// Keeps the lane to the node, for a lane to workers that the node has started.
#[derive(Debug)]
pub(super) struct Use {
    _count: Arc<()>,
}

/// A lane to workers that a node has started.
#[derive(Debug)]
struct Guest {
    workers: WorkerRange,
    inbox: Weak<dyn Inbox>,
}

impl Known {
    fn find(&self, worker: WorkerId) -> Option<&LostNodes> {
        self.lost.iter().find(|lost| lost.workers.contains(worker))
    }

    fn check(&self, workers: WorkerRange) -> Result<()> {
        let aborted = |lost: &LostNodes| Err(Error::Aborted { cause: lost.why.to_string().into() });
        self.find(workers.first()).map_or(Ok(()), aborted)
    }
}

impl Hosting {
    /// The lane runs.
    pub(super) fn run(&self, lane: &Arc<Lane>) {
        // Fails only if a lane is started twice.
        _ = self.0.lane.set(Arc::downgrade(lane));
    }

    /// A lane to workers that nodes of this lane start is about to exist.
    pub(super) fn begin_use(&self) -> Use {
        Use { _count: self.0.users.clone() }
    }

    /// Whether nodes of the lane may have workers of other lanes.
    pub(super) fn is_used(&self) -> bool {
        Arc::strong_count(&self.0.users) > 1
    }

    /// Whether the node of a worker is lost, and the session knows that all its workers are.
    pub(super) fn has_lost(&self, worker: WorkerId) -> bool {
        sync::lock(&self.0.known).find(worker).is_some_and(|lost| lost.is_told)
    }

    /// Checks that the node of these workers, which starts them, is connected.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub(super) fn check(&self, workers: WorkerRange) -> Result<()> {
        sync::lock(&self.0.known).check(workers)
    }

    /// The node of `workers` is about to start them, for a lane with this inbox.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(super) fn add(&self, workers: WorkerRange, inbox: &Arc<dyn Inbox>) -> Result<()> {
        let known = &mut *sync::lock(&self.0.known);
        known.check(workers)?;
        let guests = &mut known.guests;
        guests.retain(|guest| guest.inbox.strong_count() > 0);
        guests.push(Guest { workers, inbox: Arc::downgrade(inbox) });
        Ok(())
    }

    /// Asks the node of these lost workers to start new ones, which join at one of `addresses`.
    ///
    /// # Errors
    /// The lane was closed.
    pub(super) fn ask(&self, workers: WorkerRange, addresses: Vec<String>) -> Result<()> {
        let lane = self.0.lane.get().and_then(Weak::upgrade);
        let lane = lane.ok_or_else(|| Error::state("the lane to their node was closed"))?;
        lane.signal(Signal::Replace { workers, addresses }).map_err(Error::State)
    }

    /// The session knows that workers of the lane are lost. If they are those of whole nodes, workers that these nodes have
    /// started for other lanes are lost with them.
    pub(super) fn note_lost(&self, workers: WorkerRange, why: &Error) {
        let Error::Lost(loss) = why else { return };
        let LostPeer::Node { .. } = loss.peer else { return };
        let guests: Vec<Guest> = {
            let Known { lost, guests } = &mut *sync::lock(&self.0.known);
            lost.push(LostNodes { workers, why: why.clone(), is_told: false });
            guests.extract_if(.., |guest| workers.contains(guest.workers.first())).collect()
        };
        for Guest { workers, inbox } in guests {
            inbox.upgrade().into_iter().for_each(|inbox| inbox.lost(workers, why.clone()));
        }
        let lost = &mut sync::lock(&self.0.known).lost;
        lost.iter_mut().filter(|lost| lost.workers == workers).for_each(|lost| lost.is_told = true);
    }
}

#[cfg(test)]
mod tests {
    use disco_core::channel::{Notice, Reply};
    use disco_core::error::{LossCause, Node};

    use super::*;

    /// The inbox of a lane to worker 3, and whether the lane to its node knew the node as lost when it was told.
    #[derive(Default)]
    struct Told {
        hosting: Hosting,
        lost: Mutex<Vec<(WorkerRange, bool)>>,
    }

    impl Inbox for Told {
        fn reply(&self, _: WorkerId, _: u64, _: Reply) {}
        fn notice(&self, _: WorkerId, _: Notice) {}
        fn room(&self, _: WorkerRange) {}
        fn left(&self, _: WorkerRange) {}

        fn lost(&self, workers: WorkerRange, _: Error) {
            // No lane to other workers starts meanwhile.
            assert!(matches!(self.hosting.check(workers), Err(Error::Aborted { .. })));
            sync::lock(&self.lost).push((workers, self.hosting.has_lost(workers.first())));
        }
    }

    #[test]
    fn a_node_counts_as_lost_once_the_workers_of_other_lanes_are_lost_with_it() {
        let told = Arc::new(Told::default());
        let (hosting, inbox) = (told.hosting.clone(), told.clone() as Arc<dyn Inbox>);
        let (workers, third, place) = (WorkerRange::new(2..4), WorkerRange::new(3..4), WorkerId::new(3));
        hosting.add(third, &inbox).unwrap();
        let lost = |peer| Error::peer_lost(peer, LossCause::ConnectionClosed);
        hosting.note_lost(third, &lost(LostPeer::Workers { workers: third, node: None }));
        assert!(!hosting.has_lost(place) && hosting.check(third).is_ok());
        let node = Node::new(1, "node 1");
        hosting.note_lost(workers, &lost(LostPeer::Node { node, behind: 0, workers }));
        assert_eq!(*sync::lock(&told.lost), [(third, false)]);
        assert!(hosting.has_lost(place) && hosting.add(third, &inbox).is_err());
    }
}
