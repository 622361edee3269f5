//! Handshakes between blocks of the same index on different devices and processes, with timeout and abort:
//! `handshake.cuh`.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use super::launch::Launch;
use super::params::{MAX_BLOCKS, MAX_WORLD};
use crate::cuda::memory::Span;
use crate::sync::Pauses;

/// The position of a handshake in a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Leading = 1,
    Mid = 2,
    Trailing = 3,
    Alone = 4,
}

#[derive(Clone, Copy, Debug)]
enum Cause {
    Deadline = 1,
    Aborted = 2,
}

/// Number of polls of the flags between checks of the timeout and the abort flag.
const POLLS_PER_CHECK: usize = 64;

/// A rank's state, which persists over launches: a line per block and peer with its flag, then the numbers of completed
/// handshakes per block and peer, then a line with the status of the first failure.
pub(super) struct HandshakeState(Span);

/// A block's part in the handshakes of one launch.
pub(super) struct Handshake<'l> {
    launch: &'l Launch,
    block: usize,
    /// Number of handshakes with each rank.
    counts: [u32; MAX_WORLD],
    has_failed: bool,
}

impl HandshakeState {
    const CACHE_LINE_BYTES: usize = 128;
    /// Offsets of the counts and of the status, in words.
    const COUNTS: usize = Self::CACHE_LINE_BYTES / 4 * MAX_BLOCKS * MAX_WORLD;
    const STATUS: usize = Self::COUNTS + MAX_BLOCKS * MAX_WORLD;
    /// Size in bytes.
    pub(super) const BYTES: usize = 4 * Self::STATUS + Self::CACHE_LINE_BYTES;

    /// Wraps a span of [`Self::BYTES`] bytes. `None` if it is not aligned to a line.
    pub(super) fn new(span: Span) -> Option<Self> {
        span.address().is_multiple_of(Self::CACHE_LINE_BYTES).then_some(Self(span))
    }

    /// The memory of the state.
    pub(super) fn span(&self) -> &Span {
        &self.0
    }

    /// The number of the last handshake that a peer has reached.
    fn flag(&self, block: usize, peer: usize) -> &AtomicU32 {
        &self.0.words()[Self::CACHE_LINE_BYTES / 4 * (block * MAX_WORLD + peer)]
    }

    fn count(&self, block: usize, peer: usize) -> &AtomicU32 {
        &self.0.words()[Self::COUNTS + block * MAX_WORLD + peer]
    }

    fn status(&self) -> &AtomicU32 {
        &self.0.words()[Self::STATUS]
    }
}

impl<'l> Handshake<'l> {
    /// Continues with the counts of the last launch.
    pub(super) fn begin(launch: &'l Launch, block: usize) -> Self {
        let mut counts = [0; MAX_WORLD];
        for (peer, count) in counts.iter_mut().enumerate() {
            *count = launch.own.count(block, peer).load(Relaxed);
        }
        Self { launch, block, counts, has_failed: launch.own.status().load(Relaxed) != 0 }
    }

    /// Synchronizes with the ranks in `mask`, whose bit of this rank is ignored. Returns whether all have arrived.
    pub(super) fn meet(&mut self, phase: Phase, mask: u32) -> bool {
        if self.has_failed {
            return false;
        }
        let rank = self.launch.params.rank as usize;
        let met: Vec<_> = self.launch.states.iter().filter(|(peer, _)| mask >> *peer & 1 == 1).collect();
        for &(&peer, state) in &met {
            self.counts[peer] = self.counts[peer].wrapping_add(1);
            state.flag(self.block, rank).store(self.counts[peer], Release);
        }
        self.has_failed = !self.wait(phase, met.into_iter().map(|(&peer, _)| peer).collect());
        !self.has_failed
    }

    /// Runs the last handshake of a launch, and stores the counts.
    pub(super) fn finish(mut self, phase: Phase, mask: u32) {
        if self.meet(phase, mask) {
            for &peer in self.launch.states.keys() {
                self.launch.own.count(self.block, peer).store(self.counts[peer], Relaxed);
            }
        }
    }

    /// Waits until all peers have arrived; returns whether they have.
    fn wait(&self, phase: Phase, mut peers: Vec<usize>) -> bool {
        let own = &self.launch.own;
        let timeout = Duration::from_nanos(self.launch.params.timeout_ns);
        let (mut start, mut pauses) = (None, Pauses::default());
        loop {
            for _ in 0..POLLS_PER_CHECK {
                // Numbers wrap, and no rank is more than one ahead.
                let is_behind = |seen: u32, count: u32| (seen.wrapping_sub(count) as i32) < 0;
                peers.retain(|&peer| is_behind(own.flag(self.block, peer).load(Acquire), self.counts[peer]));
                if peers.is_empty() {
                    return true;
                }
            }
            if own.status().load(Relaxed) != 0 {
                return false;
            }
            if self.launch.abort.atomic().load(Relaxed) != 0 {
                return self.fail(Cause::Aborted, phase, peers[0]);
            }
            if start.get_or_insert_with(Instant::now).elapsed() > timeout {
                return self.fail(Cause::Deadline, phase, peers[0]);
            }
            pauses.pause();
        }
    }

    /// Reports the first failure.
    fn fail(&self, cause: Cause, phase: Phase, peer: usize) -> bool {
        let status = (cause as u32) << 24 | (phase as u32) << 16 | (peer as u32) << 8 | self.block as u32;
        if self.launch.own.status().compare_exchange(0, status, Relaxed, Relaxed).is_ok() {
            self.launch.report.atomic().store(status, Release);
        }
        false
    }
}
