//! What the lane and its service thread share.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use disco_core::activity::Progress;
use disco_core::{Error, Result, WorkerId};

use crate::connection::{Connection, Waker};
use crate::credit::{CAPACITY, Credit};
use crate::exits::Exits;

/// The nodes of one lane.
pub(super) struct Roster {
    pub(super) workers: Range<WorkerId>,
    seats: Box<[Seat]>,
    /// What nodes are called, where that was said before they came.
    names: Vec<String>,
    /// Of nodes.
    pub(super) exits: Exits,
    /// Wakes the service thread.
    pub(super) waker: Arc<Waker>,
    /// The epoch that workers were told of last.
    epoch: AtomicU64,
    /// Nodes were sent a shutdown behind their other commands.
    pub(super) leaving: AtomicBool,
    /// Takes no more frames.
    pub(super) closed: AtomicBool,
    /// Whoever is still there is given up.
    pub(super) over: AtomicBool,
}

/// One node.
#[derive(Default)]
pub(super) struct Seat {
    /// Set once it is told what it is.
    pub(super) connection: OnceLock<Arc<Connection>>,
    /// What it is called.
    pub(super) name: OnceLock<String>,
    progress: Mutex<Vec<Progress>>,
    pub(super) credit: Credit,
    /// Which of its workers did not leave.
    pub(super) stuck: OnceLock<String>,
}

impl Roster {
    pub(super) fn new(workers: Range<WorkerId>, nodes: usize, names: Vec<String>, waker: Arc<Waker>) -> Self {
        let per_node = (workers.end.index() - workers.start.index()) / nodes;
        let seat = || Seat { progress: vec![Progress::default(); per_node].into(), ..Seat::default() };
        Self {
            workers,
            seats: (0..nodes).map(|_| seat()).collect(),
            names,
            exits: Exits::new(nodes),
            waker,
            epoch: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            over: AtomicBool::new(false),
        }
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.seats.len()
    }

    pub(super) fn per_node(&self) -> usize {
        (self.workers.end.index() - self.workers.start.index()) / self.seats.len()
    }

    pub(super) fn seat(&self, index: usize) -> &Seat {
        &self.seats[index]
    }

    /// What a node is called; `host` is what it says itself, once it is there.
    pub(super) fn name(&self, index: usize, host: Option<&str>) -> String {
        match (self.names.get(index), host) {
            (Some(name), _) => name.clone(),
            (None, Some(host)) => format!("node {} ({host})", index + 1),
            (None, None) => format!("node {}", index + 1),
        }
    }

    /// The workers of a node.
    pub(super) fn members(&self, index: usize) -> Range<WorkerId> {
        let start = self.workers.start.index() + index * self.per_node();
        WorkerId::new(start as u32)..WorkerId::new((start + self.per_node()) as u32)
    }

    /// The node of a worker, and which of its workers it is.
    pub(super) fn place(&self, worker: WorkerId) -> Option<(usize, usize)> {
        let at = worker.index().checked_sub(self.workers.start.index())?;
        let place = (at / self.per_node(), at % self.per_node());
        (place.0 < self.seats.len()).then_some(place)
    }

    /// What a worker is doing.
    pub(super) fn progress(&self, worker: WorkerId) -> Progress {
        self.place(worker).map(|(node, at)| self.seats[node].progress()[at].clone()).unwrap_or_default()
    }

    pub(super) fn set_progress(&self, worker: WorkerId, progress: Progress) {
        if let Some((node, at)) = self.place(worker) {
            self.seats[node].progress()[at] = progress;
        }
    }

    /// Frames that the lane would take now.
    pub(super) fn room(&self) -> usize {
        let here = self.seats.iter().enumerate().filter(|(index, _)| !self.exits.has_left(*index));
        here.map(|(_, seat)| seat.credit.left()).min().unwrap_or(CAPACITY) as usize
    }

    /// Workers are told to begin an epoch.
    pub(super) fn begin(&self, epoch: u64) {
        self.epoch.fetch_max(epoch, Ordering::AcqRel);
    }

    /// The latest epoch that a worker can be in.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Sends something to a node that is there. One that does not take it is seen to have ended.
    pub(super) fn send(&self, index: usize, send: impl FnOnce(&Arc<Connection>) -> Result<()>) {
        if self.exits.has_left(index) {
            return;
        }
        let sent = self.seats[index].connection.get().map_or(Ok(()), send);
        if let Err(error) = sent {
            tracing::debug!(node = index, %error, "can't be told");
            // The service thread looks at it.
            self.waker.wake();
        }
    }

    /// The error of nodes that are lost.
    pub(super) fn lost(&self, index: usize, why: String) -> Error {
        let name = self.seats[index].name.get().map_or("", String::as_str);
        let Range { start, end } = self.members(index);
        let workers = match end.index() - start.index() {
            1 => start.to_string(),
            _ => format!("workers {} to {}", start.index(), end.index() - 1),
        };
        Error::Lost { workers: format!("{name} with {workers}"), why }
    }
}

impl Seat {
    fn progress(&self) -> MutexGuard<'_, Vec<Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
