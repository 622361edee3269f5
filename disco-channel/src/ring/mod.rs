//! A bounded broadcast ring: one writer, many readers, every reader sees every item in order.
//!
//! ```text
//!                     tail                      head                      position modulo capacity = slot
//!   ── free ───────────┤  x x x x x x x x x x x  ├─────────── free ──
//!                        ▲         ▲     ▲
//!                  reader 2  reader 0  reader 1    each position is private to its reader
//!
//!   state   head: 47 bits | wake: 1 | live: 16     changed by one exchange at a time
//!   slot    readers that have not taken the item (shares) | item
//! ```
//!
//! **Sending.** The writer owns the slot at the head: every reader has taken the item that was there a whole ring
//! before. It stores the item with one share for each live reader, and publishes it by a compare-exchange of the state
//! that advances the head (release). If a reader has retired meanwhile, the exchange fails and the shares are counted
//! again.
//!
//! **Taking.** A reader whose position is below the head (acquire) clones the item and gives up its share (acquire,
//! release). The reader that gives up the last share empties the slot; a reader that sees that only its own share is
//! left moves the item out instead of cloning it. Either reader then stores the tail (release), which the writer
//! acquires before it reuses the slot. Each reader gives up its shares in order, so the last shares of consecutive
//! slots are given up in order too, and a plain store of the tail is enough. Head and tail are loaded once for all
//! items between them.
//!
//! **Retiring.** A dropped reader gives up its shares, then removes itself from the live count by a compare-exchange
//! that fails if an item was published meanwhile. So all its accesses happen before the first item that does not count
//! it.
//!
//! **Sleeping.** A reader that finds no item spins, then yields, then sleeps: it locks the queue of sleepers, sets the
//! wake bit and loads the head in one operation, and queues itself only if there is still no item. The exchange that
//! publishes an item also reads and clears the bit, so that a writer without sleepers pays nothing. A writer that finds
//! the bit set wakes the first sleeper, unless a woken reader is about to do so; each woken reader wakes two others
//! (tree wake-up). No wake-up is lost: bit and head are in one atomic word, so either the reader sees the item or the
//! writer sees the bit. An item with another [target](WakeTarget) than all readers leaves the bit set and wakes only
//! its target. Other sleepers then wake for the next item for all readers, when the ring is full, or once the target
//! has slept for 200 ms.
//!
//! **Room.** A writer that finds the ring full sets a flag, then loads the tail again. A reader stores the tail, and at
//! each quarter of the ring loads the flag. Both have a sequentially consistent fence in between, so at least one sees
//! the other's store. At the first quarter where half of the ring is free, the reader clears the flag and calls
//! `on_room`.
//!
//! **Closing** is a separate flag. Readers check it before each item, and sleepers are woken. Unread items are dropped
//! with their readers.
//!
//! `cargo test --release --lib loom` with `RUSTFLAGS="--cfg loom"` checks this against the memory model.

#[cfg(test)]
mod loom_models;
mod lot;
mod reader;
mod room;
pub(crate) mod spin_policy;
mod state;
pub(crate) mod sync;
#[cfg(test)]
mod tests;
mod track;
mod writer;

#[cfg(not(loom))]
use disco_core::{Command, WorkerId, WorkerRange};

pub use reader::Reader;
pub use state::MAX_READERS;
pub use writer::{RingControl, Writer};

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

/// Why the ring did not take an item.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The slowest reader has not taken the item in the next slot.
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
pub fn ring<T: Clone>(
    capacity: usize,
    readers: usize,
    on_room: impl Fn() + Send + Sync + 'static,
) -> (Writer<T>, Vec<Reader<T>>) {
    assert!(readers <= MAX_READERS, "{readers} readers of one ring");
    let room = room::Room::new(capacity.next_power_of_two(), Box::new(on_room));
    let (pen, cursors) = track::track(capacity.next_power_of_two(), readers, room);
    let spin_policy = spin_policy::SpinPolicy::new(readers);
    let reader = |(index, cursor)| Reader::new(cursor, index, spin_policy);
    (Writer::new(pen), cursors.into_iter().enumerate().map(reader).collect())
}
