//! A bounded broadcast ring of bytes between processes: one writer, many readers, every reader sees every record in
//! order.
//!
//! ```text
//!   words   0..16     head      words published        │ each on lines of its own
//!          16..32     bell      futex of the sleepers  │
//!          32..48     sleepers  readers that sleep     │
//!          48..64     starved   the writer waits for room
//!          64..80     polling   callers that poll for replies
//!          then 32 for each reader: its cursor, words read; its reply, the number of a command, and whether it sleeps
//!          then the ring: 2^n words
//!
//!   record  number of bytes │ tag │ bytes, filled up to whole words      at `position % 2^n`, wraps around anywhere
//!
//!                cursor of the slowest          head
//!   ── free ───────────┤ records │ records │ … │ ├─────── free ──
//! ```
//!
//! **Sending.** The writer owns the words from the head up to one capacity beyond the slowest cursor that it has
//! loaded. It stores a record's words there, then the head (release). **Taking.** A reader whose cursor is below the
//! head (acquire) copies the record out, then stores its cursor (release), which the writer acquires before it reuses
//! the words.
//!
//! **Sleeping.** A reader that finds no record spins, yields, then loads the bell, increments `sleepers`, notes that it
//! sleeps, checks the head again and sleeps while the bell is unchanged. The writer stores the head, then loads
//! `sleepers`, or the note of the only reader that the record is for, and rings the bell if there are any. Both have a
//! sequentially consistent fence between store and load, so the reader sees the head or the writer sees the sleeper. A
//! record's [target](WakeTarget) says which readers it wakes. Other readers sleep on until a record wakes them, the ring
//! is full, or the writer [wakes the rest](Writer::wake_rest), which it does at intervals.
//!
//! **Room.** A writer that finds the ring full sets `starved`, then loads the cursors again. A reader that crosses a
//! quarter of the ring stores its cursor, then loads the flag, again with a fence in between. The slowest reader that
//! leaves half of the ring free clears the flag and has to tell the writer.
//!
//! **Replies** of readers have their words in the same memory (`replies.rs`).
//!
//! All words are atomic, so a process that violates the protocol can cause wrong data but no undefined behaviour. Each
//! side copies a value once, then checks it: a head too far ahead, a cursor that goes back or passes the head, and a
//! record longer than the published words are [`Garbage`]. The writer no longer waits for a reader that is
//! [retired](Writer::retire).

mod bell;
#[cfg(all(test, loom))]
mod loom_models;
mod memory;
mod reader;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod writer;

pub use memory::Memory;
pub use reader::{Reader, Taken};
pub use writer::Writer;

pub use crate::ring::WakeTarget;

/// Words of a record before its bytes.
const RECORD_HEADER_WORDS: u64 = 2;

/// The other side has stored an impossible value in the ring: which one.
#[allow(clippy::exhaustive_structs, reason = "a reason and nothing else")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage(pub &'static str);
