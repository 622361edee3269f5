//! The state of a streaming call on its worker.

use std::collections::VecDeque;

/// Results of one worker that the controller has not taken, at most. The next one waits.
pub(crate) const WINDOW: u64 = 16;
/// Their bytes, after which the next result waits, too.
pub(crate) const WINDOW_BYTES: u64 = 1 << 20;

/// The streaming call that the worker runs.
#[derive(Clone, Debug)]
pub(crate) struct Emitting {
    command: u64,
    /// Number of results so far.
    sent: u64,
    /// The sizes of the last results in bytes: those that the controller may not have taken.
    untaken: VecDeque<u64>,
}

impl Emitting {
    pub(super) fn new(command: u64) -> Self {
        Self { command, sent: 0, untaken: VecDeque::new() }
    }

    pub(super) fn command(&self) -> u64 {
        self.command
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// The number of results that the controller has taken, as far as the worker knows.
    pub(super) fn taken(&self) -> u64 {
        self.sent - self.untaken.len() as u64
    }

    /// Notes the next result, of this size in bytes, and returns its number.
    pub(super) fn send(&mut self, bytes: u64) -> u64 {
        self.untaken.push_back(bytes);
        self.sent += 1;
        self.sent - 1
    }

    /// Notes that the controller has taken `count` results.
    pub(super) fn note_taken(&mut self, count: u64) {
        let untaken = self.sent.saturating_sub(count) as usize;
        self.untaken.drain(..self.untaken.len().saturating_sub(untaken));
    }

    pub(super) fn is_full(&self) -> bool {
        self.untaken.len() as u64 >= WINDOW || self.untaken.iter().sum::<u64>() >= WINDOW_BYTES
    }
}
