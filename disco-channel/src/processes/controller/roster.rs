//! What the lane and its service thread share.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use disco_core::activity::Progress;
use disco_core::{Error, Result, WorkerId};

use crate::connection::{Connection, Waker};
use crate::credit::{CAPACITY, Credit};
use crate::exits::Exits;
use crate::shared_ring::Writer;

/// The workers of one lane.
pub(super) struct Roster {
    pub(super) workers: Range<WorkerId>,
    seats: Box<[Seat]>,
    pub(super) exits: Exits,
    /// Wakes the service thread.
    pub(super) waker: Arc<Waker>,
    /// Commands go over it, or over the connections.
    writer: Option<Mutex<Writer>>,
    /// Workers that are to be given up, and why.
    accused: Mutex<Vec<(usize, String)>>,
    /// Workers were sent a shutdown behind their other commands: whoever ends well, leaves.
    leaving: AtomicBool,
    /// The epoch that workers were told of last.
    epoch: AtomicU64,
    /// Takes no more frames.
    pub(super) closed: AtomicBool,
    /// Whoever is still there is to be killed.
    pub(super) kill: AtomicBool,
    /// The lane was dropped.
    pub(super) abandoned: AtomicBool,
}

/// One worker.
#[derive(Default)]
pub(super) struct Seat {
    /// Set once it has introduced itself.
    pub(super) connection: OnceLock<Arc<Connection>>,
    progress: Mutex<Progress>,
    /// For frames that go over the connection.
    credit: Credit,
}

impl Roster {
    pub(super) fn new(workers: Range<WorkerId>, waker: Arc<Waker>, writer: Option<Writer>) -> Self {
        let count = workers.end.index() - workers.start.index();
        Self {
            workers,
            seats: (0..count).map(|_| Seat::default()).collect(),
            exits: Exits::new(count),
            waker,
            writer: writer.map(Mutex::new),
            accused: Mutex::default(),
            leaving: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            kill: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Number of workers.
    pub(super) fn len(&self) -> usize {
        self.seats.len()
    }

    pub(super) fn worker(&self, index: usize) -> WorkerId {
        WorkerId::new((self.workers.start.index() + index) as u32)
    }

    pub(super) fn seat(&self, index: usize) -> &Seat {
        &self.seats[index]
    }

    /// Nobody waits for a worker to read any more.
    pub(super) fn retire(&self, index: usize) {
        if let Some(mut writer) = self.writer() {
            writer.retire(index);
        }
    }

    pub(super) fn writer(&self) -> Option<MutexGuard<'_, Writer>> {
        Some(self.writer.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Frames of up to `largest` bytes that the lane would take now.
    pub(super) fn room(&self, largest: usize) -> usize {
        let credit = self.credit();
        let Some(mut writer) = self.writer().filter(|_| credit > 0) else { return credit };
        loop {
            match writer.room(largest) {
                Ok(room) => return credit.min(room.map_or(0, |room| room / largest)),
                Err((reader, garbage)) => {
                    writer.retire(reader);
                    self.accuse(reader, format!("it put garbage into the ring: {}", garbage.0));
                }
            }
        }
    }

    /// Frames that may go over connections, where the slowest worker has taken enough of those before.
    fn credit(&self) -> usize {
        let here = self.seats.iter().enumerate().filter(|(index, _)| !self.exits.has_left(*index));
        here.map(|(_, seat)| seat.credit.left((0, 0))).min().unwrap_or(CAPACITY) as usize
    }

    /// A worker has taken so many frames and bytes of what came over its connection.
    pub(super) fn acknowledge(&self, index: usize, frames: u64, bytes: u64) {
        self.seats[index].credit.acknowledge(frames, bytes);
    }

    /// Workers are told to begin an epoch.
    pub(super) fn begin(&self, epoch: u64) {
        self.epoch.fetch_max(epoch, Ordering::AcqRel);
    }

    /// The latest epoch that a worker can be in.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// From now on workers end.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// A worker does not take what is sent. One whose connection is cut is seen to have ended.
    pub(super) fn refused(&self, index: usize, error: &Error) {
        match self.seats[index].connection.get() {
            Some(connection) if connection.is_full() => self.accuse(index, error.to_string()),
            _ => tracing::debug!(worker = %self.worker(index), %error, "can't be told"),
        }
    }

    /// Has the service thread give a worker up.
    pub(super) fn accuse(&self, index: usize, why: String) {
        self.accused.lock().unwrap_or_else(PoisonError::into_inner).push((index, why));
        self.waker.wake();
    }

    pub(super) fn accused(&self) -> Vec<(usize, String)> {
        std::mem::take(&mut self.accused.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Seat {
    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame, unless the worker has not come.
    pub(super) fn post(&self, packet: &Arc<[u8]>, bytes: usize) -> Result<()> {
        self.credit.use_up(1, bytes);
        self.connection.get().map_or(Ok(()), |connection| connection.send_last(packet.clone()))
    }

    /// Sends ahead of frames, unless the worker has not come.
    pub(super) fn urge(&self, packet: &Arc<[u8]>) -> Result<()> {
        self.connection.get().map_or(Ok(()), |connection| connection.send(packet.clone(), None))
    }
}
