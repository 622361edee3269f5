//! A bounded broadcast ring: one writer, many readers, every reader sees every item in order.
//!
//! ```text
//!                     tail                      head                      position modulo capacity = slot
//!   ── free ───────────┤  x x x x x x x x x x x  ├─────────── free ──
//!                        ▲         ▲     ▲
//!                  reader 2  reader 0  reader 1    each knows its own position, nobody else does
//!
//!   state   head: 47 bits | wake: 1 | live: 16     changed by one exchange at a time
//!   slot    shares left | item
//! ```
//!
//! **Sending.** The writer owns the slot at the head, since the tail it has seen is a whole ring behind. It puts the item
//! there with one share for each live reader, and exchanges the state for one with the next head (release). If a reader
//! retired meanwhile the exchange fails, and the shares are counted again.
//!
//! **Taking.** A reader that has seen a head (acquire) beyond its position clones the item and gives its share back
//! (acquire, release); who gives the last one back empties the slot. The one who sees that only its own share is left
//! moves the item out instead. Either then stores the tail (release), which the writer acquires before it uses the slot
//! again. A reader gives its shares back in order, so the last ones of slot after slot are given back in order too, and
//! the tail needs no exchange. Head and tail are looked at once for all items between them, not for each.
//!
//! **Retiring.** A reader that is dropped gives back what it has, then takes itself from the live ones by an exchange that
//! fails if something was sent meanwhile. So all it did is before the first item that does not count it.
//!
//! **Sleeping.** A reader that finds nothing spins, yields, then lies down: with the lot locked, it sets the wake bit and
//! learns the head in one operation, and queues only if there is still nothing. The writer learns of the bit, and clears
//! it, by the exchange that publishes: it pays nothing while nobody sleeps. Else it wakes the first sleeper, if none is
//! on its way already, and sleepers that were woken wake further ones. A wake-up can't be lost, for of two changes to the
//! state one is first: the reader sees the item, or the writer sees the bit.
//!
//! **Room.** Who finds the ring full sets a flag, then looks at the tail again. Readers store the tail, and at each quarter
//! of the ring look at the flag; between store and look both have a sequentially consistent fence, so that one of them
//! sees the other. At the first quarter where half of the ring is free the flag is cleared and its owner told.
//!
//! **Closing** is a flag beside all this: readers look at it before each item, and sleepers are woken. Items that are left
//! go with their readers.
//!
//! `cargo test --release --lib loom` with `RUSTFLAGS="--cfg loom"` checks this against the memory model.

#[cfg(test)]
mod loom_models;
mod lot;
pub(crate) mod patience;
mod reader;
mod room;
mod state;
pub(crate) mod sync;
#[cfg(test)]
mod tests;
mod track;
mod writer;

pub use reader::Reader;
pub use state::MAX_READERS;
pub use writer::{Handle, Writer};

/// Slots of a lane's ring.
pub const CAPACITY: usize = 1024;

/// Why the ring did not take an item.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The slowest reader is a whole ring behind.
    Full,
    /// The ring was closed, or all readers have left.
    Closed,
}

/// The ring was closed.
#[allow(clippy::exhaustive_structs, reason = "a unit")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// A ring of `capacity` slots, rounded up to a power of two. `on_room` is called once for each time that somebody found
/// the ring full ([`Writer::send`], [`Handle::room`]), on the thread of the reader that leaves half of it free.
///
/// # Panics
/// More than [`MAX_READERS`].
pub fn ring<T: Clone>(
    capacity: usize,
    readers: usize,
    on_room: impl Fn() + Send + Sync + 'static,
) -> (Writer<T>, Vec<Reader<T>>) {
    assert!(readers <= MAX_READERS, "{readers} readers of one ring");
    let room = room::Room::new(capacity.next_power_of_two(), Box::new(on_room));
    let (pen, cursors) = track::track(capacity.next_power_of_two(), readers, room);
    let patience = patience::Patience::new(readers);
    let reader = |(index, cursor)| Reader::new(cursor, index, patience);
    (Writer::new(pen), cursors.into_iter().enumerate().map(reader).collect())
}
