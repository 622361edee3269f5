//! A bounded broadcast ring of bytes between processes: one writer, many readers, every reader sees every record in order.
//!
//! ```text
//!   words   0..16     head      words published        │ each on lines of its own
//!          16..32     bell      whom futexes sleep on  │
//!          32..48     sleepers  readers that lie down  │
//!          48..64     starved   the writer waits for room
//!          then 16 for each reader: its cursor, words read
//!          then the ring: 2^n words
//!
//!   record  number of bytes │ tag │ bytes, filled up to whole words      at `position % 2^n`, wraps around anywhere
//!
//!                cursor of the slowest          head
//!   ── free ───────────┤ records │ records │ … │ ├─────── free ──
//! ```
//!
//! **Sending.** The writer owns the words from head to a ring beyond the slowest cursor that it has seen. It stores a record's
//! words there, then the head (release). **Taking.** A reader that sees a head (acquire) beyond its cursor copies the record
//! out, then stores its cursor (release), which the writer acquires before it uses the words again.
//!
//! **Sleeping.** A reader that finds nothing spins, yields, then reads the bell, counts itself among the sleepers, looks at the
//! head again and sleeps while the bell is as it was. The writer publishes, then looks for sleepers, and rings. Between
//! store and look both have a sequentially consistent fence: the reader sees the head, or the writer sees the sleeper. A
//! record says [whom](Whom) it concerns; the others sleep on, until there is one for them, the ring is full, or
//! the writer [wakes the rest](Writer::wake_rest), which it does now and then.
//!
//! **Room.** A writer that finds the ring full raises `starved`, then looks at the cursors again. A reader that has crossed a
//! quarter of the ring stores its cursor, then looks at the flag; the slowest that leaves half of the ring free lowers it
//! and is to tell. Again both have a fence in between.
//!
//! Words are atomic: another process that does not keep to this can confuse but not corrupt. What is read is copied out
//! once, then checked: a head that is too far, a cursor that goes back or ahead, a record longer than what is there, are
//! [`Garbage`]. A reader that is [retired](Writer::retire) is waited for no more.

mod bell;
#[cfg(all(test, loom))]
mod loom_models;
mod memory;
mod reader;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod writer;

pub use bell::Whom;
pub use memory::Memory;
pub use reader::{Reader, Taken};
pub use writer::Writer;

/// Words before a record's bytes.
const HEADER: u64 = 2;

/// What the other side has put into the ring can't be.
#[allow(clippy::exhaustive_structs, reason = "a reason and nothing else")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage(pub &'static str);
