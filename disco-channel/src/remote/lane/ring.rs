//! The controller's end of the shared ring, and the records that go through it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use disco_core::activity::{Activity, RecorderConfig};
use disco_core::shared_memory::Segment;
use disco_core::{Error, Frame, Inbox, Result, WorkerRange, sync};

use super::frames::{ALL_READERS, MAX_INLINE_BYTES};
use crate::remote::reactor::Lane;
use crate::replies::{LeftReplies, Replies};
use crate::shared_ring::{Garbage, Memory, WakeTarget, Writer};

/// Capacity of the ring in words of 8 bytes: 4 MiB.
pub(crate) const CAPACITY_WORDS: usize = 1 << 19;

/// The ring of a lane. The lane's methods write; the reactor thread retires and wakes readers.
pub(crate) struct Ring {
    writer: Mutex<Writer>,
    replies: LeftReplies,
    /// Whether the reactor thread calls [`Ring::tick`] at intervals. Changed while `writer` is locked.
    ticks: AtomicBool,
    /// The readers, in their order.
    workers: WorkerRange,
    /// The recording memory of each reader.
    activities: Vec<Activity>,
}

impl Ring {
    /// Makes a ring that `workers` read, and the shared memory of the ring and of the workers' records. Returns `None`, and logs why, if the
    /// system has no shared memory.
    pub(crate) fn new(workers: WorkerRange, recorder: RecorderConfig) -> Option<(Arc<Segment>, Arc<Self>)> {
        let readers = workers.len();
        let make = || {
            let segment = Arc::new(Segment::create(8 * segment_words(readers, CAPACITY_WORDS, recorder))?);
            let activities = (0..readers).map(|reader| activity(&segment, (reader, readers, CAPACITY_WORDS), recorder));
            let activities = activities.collect::<Result<_>>()?;
            let memory = Memory::new(segment.clone(), readers, CAPACITY_WORDS)?;
            let (writer, replies) = (Mutex::new(Writer::new(memory.clone())), Replies::new(memory));
            Ok::<_, Error>((
                segment,
                Arc::new(Self {
                    writer,
                    replies: LeftReplies::new(workers, replies),
                    ticks: AtomicBool::new(false),
                    workers,
                    activities,
                }),
            ))
        };
        make()
            .inspect_err(|error| tracing::warn!(%error, "no shared memory for the ring: commands go over sockets"))
            .ok()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Writer> {
        sync::lock(&self.writer)
    }

    /// Wakes readers that sleep on records of other readers; stops ticking if there were none.
    pub(crate) fn tick(&self) {
        let mut writer = self.lock();
        if !writer.wake_rest() {
            self.ticks.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn ticks(&self) -> bool {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Sends a record, and wakes the reactor thread if it has to tick from now on.
    ///
    /// # Errors
    /// The ring has no room.
    pub(super) fn send(
        &self,
        writer: &mut Writer,
        tag: u64,
        record: &[u8],
        target: WakeTarget,
        lane: &Lane,
    ) -> Result<()> {
        writer.send(tag, record, target).map_err(|_| Error::state("the ring has no room"))?;
        if target != WakeTarget::All && !self.ticks() {
            self.ticks.store(true, Ordering::Relaxed);
            lane.wake();
        }
        Ok(())
    }

    /// Passes the last records of each worker to `inbox`, also of processes that have ended.
    pub(super) fn collect(&self, inbox: &dyn Inbox, last: usize) {
        for (worker, activity) in self.workers.iter().zip(&self.activities) {
            inbox.recording(worker, activity.encode(last).into());
        }
    }

    /// The replies that workers leave in shared memory.
    pub(crate) fn replies(&self) -> &LeftReplies {
        &self.replies
    }
}

/// Words of the memory of a ring and its readers' records.
pub(crate) fn segment_words(readers: usize, capacity: usize, recorder: RecorderConfig) -> usize {
    Memory::words(readers, capacity) + readers * recorder.words()
}

/// The activity of a reader, in the segment of a ring with this number of readers and this capacity.
///
/// # Errors
/// The segment is too small.
pub(crate) fn activity(
    segment: &Arc<Segment>,
    (reader, readers, capacity): (usize, usize, usize),
    recorder: RecorderConfig,
) -> Result<Activity> {
    let start = Memory::words(readers, capacity) + reader * recorder.words();
    let activity = Activity::shared(recorder, segment.clone(), start);
    activity.ok_or_else(|| Error::protocol("the ring's memory has no room for records"))
}

/// The number of frames of the largest size that fit into the ring. A reader with an impossible cursor is retired and
/// passed to `accuse`.
pub(super) fn room(writer: &mut Writer, mut accuse: impl FnMut(usize, Garbage)) -> usize {
    loop {
        match writer.room(MAX_INLINE_BYTES) {
            Ok(room) => return room.map_or(0, |room| room / MAX_INLINE_BYTES),
            Err((reader, garbage)) => {
                writer.retire(reader);
                accuse(reader, garbage);
            }
        }
    }
}

/// The ring record that stands for a large frame: the index of the reader that gets the frame over its connection, and
/// a no-op frame with the freed ids for the other readers. Also returns the readers that get the frame.
///
/// # Errors
/// A value can't leave the process.
pub(super) fn placeholder(frame: &Frame, target: WakeTarget, readers: usize) -> Result<(Vec<u8>, WakeTarget)> {
    let everybody = || Ok((ALL_READERS.to_ne_bytes().to_vec(), WakeTarget::All));
    let reader = match target {
        WakeTarget::One(reader) => reader as u64,
        WakeTarget::Nobody => readers as u64,
        _ => return everybody(),
    };
    let record = [&reader.to_ne_bytes()[..], frame.as_noop().bytes()?].concat();
    // The list of freed ids may itself be too large for the ring.
    if record.len() > MAX_INLINE_BYTES { everybody() } else { Ok((record, target)) }
}
