//! What the lane and its service thread share.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use disco_core::activity::Progress;
use disco_core::{Error, Frame, Result, WorkerId};

use super::batch::{Batch, Load};
use super::children::NodeProcess;
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
    batch: Mutex<Batch>,
    /// Nodes that the session has started itself, for the service thread to take.
    started: Mutex<Vec<NodeProcess>>,
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
            batch: Mutex::new(Batch::new(nodes)),
            started: Mutex::default(),
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
        let batch = self.batch();
        let here = self.seats.iter().enumerate().filter(|(index, _)| !self.exits.has_left(*index));
        let left = here.map(|(_, seat)| seat.credit.left(batch.size())).min().unwrap_or(CAPACITY);
        left as usize
    }

    /// Passes a frame on that nobody waits for; it may linger for others to go with it.
    ///
    /// # Errors
    /// A value that can't leave the process.
    pub(super) fn post_soon(&self, frame: &Frame) -> Result<()> {
        // Encoded before the lock is taken: the service thread needs that for heartbeats.
        frame.bytes()?;
        let mut batch = self.batch();
        self.add(&mut batch, frame)?;
        if batch.is_due() {
            self.go(&mut batch, |_| true);
        } else if batch.watch() {
            self.waker.wake();
        }
        Ok(())
    }

    /// Passes a frame on at once, behind those that linger, to nodes for which somebody waits; others may get `rest` in its
    /// place, and that when something else goes to them.
    ///
    /// # Errors
    /// A value that can't leave the process.
    pub(super) fn post_now(&self, frame: &Frame, rest: Option<&Frame>, is_meant: impl Fn(usize) -> bool) -> Result<()> {
        // As above.
        frame.bytes()?;
        let mut batch = self.batch();
        if !(0..self.len()).all(&is_meant) {
            self.go(&mut batch, |_| true);
        }
        self.add(&mut batch, frame)?;
        match rest {
            None => self.go(&mut batch, is_meant),
            Some(rest) => {
                let load = batch.take();
                batch.add(rest)?;
                let others = batch.take();
                for index in 0..self.len() {
                    let is_meant = is_meant(index);
                    let load = if is_meant { &load } else { &others };
                    load.iter().for_each(|load| self.load(index, load, is_meant));
                }
            }
        }
        Ok(())
    }

    fn add(&self, batch: &mut Batch, frame: &Frame) -> Result<()> {
        if !batch.has_place_for(frame)? {
            self.go(batch, |_| true);
        }
        batch.add(frame)
    }

    /// Passes on what lingers. Returns whether more may.
    pub(super) fn flush(&self) -> bool {
        let mut batch = self.batch();
        if self.closed.load(Ordering::Acquire) {
            // Nodes were told to leave, ahead of it.
            batch.take();
        }
        match batch.size() {
            (0, _) => batch.unwatch(),
            _ => self.go(&mut batch, |_| true),
        }
        batch.is_watched()
    }

    /// How long frames linger, if any may.
    pub(super) fn lingers(&self) -> Option<Duration> {
        let batch = self.batch();
        batch.is_watched().then_some(batch.linger)
    }

    fn go(&self, batch: &mut Batch, is_meant: impl Fn(usize) -> bool) {
        if let Some(load) = batch.take() {
            (0..self.len()).for_each(|index| self.load(index, &load, is_meant(index)));
        }
    }

    fn load(&self, index: usize, load: &Load, is_meant: bool) {
        self.seats[index].credit.use_up(load.frames, load.bytes);
        let packets = load.packets.clone();
        self.send(index, |connection| match is_meant {
            true => connection.send_last(packets),
            false => connection.hold_last(packets),
        });
    }

    pub(super) fn started(&self) -> MutexGuard<'_, Vec<NodeProcess>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Workers are told to begin an epoch.
    pub(super) fn begin(&self, epoch: u64) {
        self.epoch.fetch_max(epoch, Ordering::AcqRel);
    }

    /// The latest epoch that a worker can be in.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether nodes were told to leave, behind other commands or ahead of them.
    pub(super) fn is_leaving(&self) -> bool {
        self.exits.are_expected() || self.leaving.load(Ordering::Acquire)
    }

    /// Sends something to a node that is there. One that does not take it is seen to have ended.
    pub(super) fn send(&self, index: usize, send: impl FnOnce(&Arc<Connection>) -> Result<()>) {
        if self.exits.has_left(index) {
            return;
        }
        let sent = self.seats[index].connection.get().map_or(Ok(()), send);
        if let Err(error) = sent {
            tracing::debug!(node = index, %error, "can't be told");
            // The service thread looks why.
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
