//! A bounded broadcast ring: one writer, many readers, every reader sees every item in order.

#[cfg(test)]
mod loom_models;
mod lot;
mod patience;
mod reader;
mod room;
mod state;
mod sync;
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
    let patience = patience::Patience::of_machine();
    let reader = |(index, cursor)| Reader::new(cursor, index, patience);
    (Writer::new(pen), cursors.into_iter().enumerate().map(reader).collect())
}
