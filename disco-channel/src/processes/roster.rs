//! What the lane and its service thread share.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use disco_core::activity::Progress;
use disco_core::{Result, WorkerId};

use super::commands::CAPACITY;
use super::connection::Connection;
use super::waker::Waker;
use crate::exits::Exits;
use crate::shared_ring::{Garbage, Writer};

/// The workers of one lane.
pub(super) struct Roster {
    pub(super) workers: Range<WorkerId>,
    seats: Box<[Seat]>,
    pub(super) exits: Exits,
    /// Wakes the service thread.
    pub(super) waker: Arc<Waker>,
    /// Commands go over it, or over the connections.
    writer: Option<Mutex<Writer>>,
    /// Frames sent over connections, where there is no ring, and whether somebody found no room for another.
    sent: AtomicU64,
    starved: AtomicBool,
    /// Readers that have put garbage into the ring, and what.
    accused: Mutex<Vec<(usize, Garbage)>>,
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
    /// Frames taken, where there is no ring.
    taken: AtomicU64,
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
            sent: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            accused: Mutex::default(),
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

    pub(super) fn writer(&self) -> Option<MutexGuard<'_, Writer>> {
        Some(self.writer.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Frames of up to `largest` bytes that the lane would take now.
    pub(super) fn room(&self, largest: usize) -> usize {
        let Some(mut writer) = self.writer() else { return self.credit() };
        loop {
            match writer.room(largest) {
                Ok(room) => return room / largest,
                Err((reader, garbage)) => {
                    writer.retire(reader);
                    self.accused.lock().unwrap_or_else(PoisonError::into_inner).push((reader, garbage));
                    self.waker.wake();
                }
            }
        }
    }

    /// A frame went over the connections.
    pub(super) fn count_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    fn credit(&self) -> usize {
        let left = || {
            let here = self.seats.iter().enumerate().filter(|(index, _)| !self.exits.has_left(*index));
            let taken = here.map(|(_, seat)| seat.taken.load(Ordering::SeqCst)).min();
            let sent = self.sent.load(Ordering::Relaxed);
            CAPACITY.saturating_sub(sent - taken.unwrap_or(sent).min(sent)) as usize
        };
        match left() {
            0 => {
                self.starved.store(true, Ordering::SeqCst);
                left()
            }
            room => room,
        }
    }

    /// A worker without a ring has taken so many frames. Returns whether somebody waits for that.
    pub(super) fn acknowledge(&self, index: usize, taken: u64) -> bool {
        self.seats[index].taken.store(taken, Ordering::SeqCst);
        self.starved.swap(false, Ordering::SeqCst)
    }

    pub(super) fn accused(&self) -> Vec<(usize, Garbage)> {
        std::mem::take(&mut self.accused.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Seat {
    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends, unless the worker has not come.
    pub(super) fn send(&self, packet: &Arc<[u8]>) -> Result<()> {
        self.connection.get().map_or(Ok(()), |connection| connection.send(packet.clone(), None))
    }
}
