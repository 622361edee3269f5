//! A bounded broadcast ring: one writer, many readers, every reader sees every item in order.
//!
//! ```text
//!                     tail                      head                      position modulo capacity = slot
//!   ── free ───────────┤  x x x x x x x x x x x  ├─────────── free ──
//!                        ▲         ▲     ▲
//!                  reader 2  reader 0  reader 1    each reader stores its position at intervals; tail: the smallest
//!
//!   state   head: 47 bits | wake: 1 | live: 16     changed by one exchange at a time
//!   slot    item | readers that have not read it (shares), if the last reader drops it
//! ```
//!
//! **Sending.** The writer owns the slots from the head up to one capacity beyond the tail. It stores an item there,
//! and publishes it by a compare-exchange of the state that advances the head (release). It loads the tail, which is
//! the smallest stored position of a live reader (acquire), every 64 items and when the slots up to the known tail are
//! used up.
//!
//! **Reading.** A reader whose position is below the head (acquire) lends the item to its caller, in its slot. Once the
//! caller asks for the next item, the reader advances. It stores its position (release) at each eighth of the ring and
//! before it sleeps. So an item costs a reader no write to memory that others use.
//!
//! **Release.** The writer drops most items while it sends later ones, once the tail has passed them. Up to a whole
//! ring of them stays in memory for any time, so an item that owns much has one *share* for each live reader instead,
//! which the reader gives up when it advances (acquire, release); the last one drops the item. If a reader has retired
//! between the count and the exchange that publishes the item, the exchange fails and the shares are counted again. An
//! only reader always drops the items.
//!
//! **Retiring.** A dropped reader gives up its shares, then removes itself from the live count by a compare-exchange
//! that fails if an item was published meanwhile. So all its accesses happen before the first item that does not count
//! it. Then it stores that it has no position.
//!
//! **Sleeping.** A reader that finds no item spins if it has a processor to itself, then yields, then sleeps: it locks
//! the queue of sleepers, sets the wake bit and loads the head in one operation, and queues itself only if there is
//! still no item. The exchange that publishes an item also reads and clears the bit, so that a writer without sleepers
//! pays nothing. A writer that finds the bit set wakes the first sleeper, unless a woken reader is about to do so; each
//! woken reader wakes two others (tree wake-up). No wake-up is lost: bit and head are in one atomic word, so either the
//! reader sees the item or the writer sees the bit. An item with another [target](WakeTarget) than all readers leaves
//! the bit set and wakes only its target; if it has none, the first sleeper, unless a reader is awake for such items.
//! Other sleepers then wake for the next item for all readers, when the ring is full, or once that reader has slept for
//! 200 ms.
//!
//! **Room.** A writer that finds the ring full sets a flag, then loads the positions again. A reader stores its
//! position, then loads the flag. Both have a sequentially consistent fence in between, so at least one sees the
//! other's store. The reader that leaves half of the ring free clears the flag and calls `on_room`.
//!
//! **Closing** is a separate flag. Readers check it before each item, and sleepers are woken. Unread items are dropped
//! with their readers, or with the ring.
//!
//! `cargo test --release --lib loom` with `RUSTFLAGS="--cfg loom"` checks this against the memory model.

mod ends;
#[cfg(test)]
mod loom_models;
mod lot;
mod room;
pub(crate) mod spin_policy;
mod state;
pub(crate) mod sync;
#[cfg(test)]
mod tests;
mod track;

#[cfg(not(loom))]
use disco_core::{Command, WorkerId, WorkerRange};

pub use ends::{Reader, RingControl, Writer};
pub use state::MAX_READERS;

/// Slots of a lane's ring.
pub const CAPACITY: usize = 1024;

/// The readers that an item wakes. Other readers find the item when they wake for another reason.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeTarget {
    /// All readers.
    All,
    /// The reader with this index.
    One(usize),
    /// No particular reader.
    Nobody,
}

#[cfg(not(loom))]
impl WakeTarget {
    /// The readers of `workers`, in their order, that a command concerns.
    pub(crate) fn of(command: &Command, workers: WorkerRange) -> Self {
        let worker = match command {
            Command::SyncWorker { worker } | Command::DebugGet { worker, .. } | Command::DebugSet { worker, .. } => {
                *worker
            }
            Command::CopyFromWorker0 { .. } | Command::CopyToWorker0 { .. } => WorkerId::new(0),
            _ => return Self::All,
        };
        workers.position(worker).map_or(Self::Nobody, Self::One)
    }
}

/// The end of an item that all readers have finished with.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The last reader drops the item at once. Costs an atomic operation for each reader.
    ByLastReader,
    /// The writer drops the item when it sends later ones, if the ring has several readers. The ring keeps up to its
    /// capacity of such items.
    ByWriter,
}

/// Why the ring did not take an item.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The slowest reader has not finished with the item in the next slot.
    Full,
    /// The ring was closed, or all readers were dropped.
    Closed,
}

/// The ring was closed.
#[allow(clippy::exhaustive_structs, reason = "a unit")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// Makes a ring of `capacity` slots, rounded up to a power of two. After [`Writer::send`] or [`RingControl::room`] has
/// found the ring full, `on_room` is called once, on the thread of the reader that leaves half of it free.
///
/// # Panics
/// `readers` exceeds [`MAX_READERS`].
pub fn ring<T>(
    capacity: usize,
    readers: usize,
    on_room: impl Fn() + Send + Sync + 'static,
) -> (Writer<T>, Vec<Reader<T>>) {
    ring_with_neighbours(0, capacity, readers, on_room)
}

/// [`ring`] whose readers share the processors with `neighbours` other threads that wait as they do.
pub(crate) fn ring_with_neighbours<T>(
    neighbours: usize,
    capacity: usize,
    readers: usize,
    on_room: impl Fn() + Send + Sync + 'static,
) -> (Writer<T>, Vec<Reader<T>>) {
    assert!(readers <= MAX_READERS, "{readers} readers of one ring");
    let room = room::Room::new(capacity.next_power_of_two(), readers, Box::new(on_room));
    let (pen, cursors) = track::track(capacity.next_power_of_two(), readers, room);
    let spin_policy = spin_policy::SpinPolicy::new(readers + neighbours);
    let reader = |(index, cursor)| Reader::new(cursor, index, spin_policy);
    (Writer::new(pen), cursors.into_iter().enumerate().map(reader).collect())
}
