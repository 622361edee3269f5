//! How blocks of the same number meet over devices and processes, and how that ends where a peer does not come: `handshake.cuh`.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use super::launch::Launch;
use super::params::{MAX_BLOCKS, MAX_WORLD};
use crate::cuda::memory::Span;
use crate::sync::Pauses;

/// Which handshake of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Barrier {
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

/// Looks at flags until the clock and whether all is called off are looked at.
const LOOKS: usize = 64;

/// What a rank has for each launch after the other: a line for each block's and peer's flag, then for each the number of handshakes
/// that were completed, then a line for why the first that failed did.
pub(super) struct State(Span);

/// A block's part in the handshakes of one launch.
pub(super) struct Handshake<'l> {
    launch: &'l Launch,
    block: usize,
    /// How many were made with each rank.
    counts: [u32; MAX_WORLD],
    has_failed: bool,
}

impl State {
    const LINE: usize = 128;
    /// Where counts are, and the status, in words.
    const COUNTS: usize = Self::LINE / 4 * MAX_BLOCKS * MAX_WORLD;
    const STATUS: usize = Self::COUNTS + MAX_BLOCKS * MAX_WORLD;
    /// What it is of.
    pub(super) const BYTES: usize = 4 * Self::STATUS + Self::LINE;

    /// A span of as many bytes. None: it begins inside of a line.
    pub(super) fn new(span: Span) -> Option<Self> {
        span.address().is_multiple_of(Self::LINE).then_some(Self(span))
    }

    /// Its memory.
    pub(super) fn span(&self) -> &Span {
        &self.0
    }

    /// The number of the last handshake that a peer has come to.
    fn flag(&self, block: usize, peer: usize) -> &AtomicU32 {
        &self.0.words()[Self::LINE / 4 * (block * MAX_WORLD + peer)]
    }

    fn count(&self, block: usize, peer: usize) -> &AtomicU32 {
        &self.0.words()[Self::COUNTS + block * MAX_WORLD + peer]
    }

    fn status(&self) -> &AtomicU32 {
        &self.0.words()[Self::STATUS]
    }
}

impl<'l> Handshake<'l> {
    /// Goes on where the last launch has ended.
    pub(super) fn begin(launch: &'l Launch, block: usize) -> Self {
        let mut counts = [0; MAX_WORLD];
        for (peer, count) in counts.iter_mut().enumerate() {
            *count = launch.own.count(block, peer).load(Relaxed);
        }
        Self { launch, block, counts, has_failed: launch.own.status().load(Relaxed) != 0 }
    }

    /// Meets the ranks in `mask`; this one's bit says nothing. Says whether all have come.
    pub(super) fn meet(&mut self, barrier: Barrier, mask: u32) -> bool {
        if self.has_failed {
            return false;
        }
        let rank = self.launch.params.rank as usize;
        let met: Vec<_> = self.launch.states.iter().filter(|(peer, _)| mask >> *peer & 1 == 1).collect();
        for &(&peer, state) in &met {
            self.counts[peer] = self.counts[peer].wrapping_add(1);
            state.flag(self.block, rank).store(self.counts[peer], Release);
        }
        self.has_failed = !self.wait(barrier, met.into_iter().map(|(&peer, _)| peer).collect());
        !self.has_failed
    }

    /// The last handshake of a launch: what is counted is kept.
    pub(super) fn leave(mut self, barrier: Barrier, mask: u32) {
        if self.meet(barrier, mask) {
            for &peer in self.launch.states.keys() {
                self.launch.own.count(self.block, peer).store(self.counts[peer], Relaxed);
            }
        }
    }

    /// Waits until all have come. Says whether they have.
    fn wait(&self, barrier: Barrier, mut peers: Vec<usize>) -> bool {
        let own = &self.launch.own;
        let patience = Duration::from_nanos(self.launch.params.patience);
        let (mut start, mut pauses) = (None, Pauses::default());
        loop {
            for _ in 0..LOOKS {
                // Numbers start again from 0, and nobody is more than one ahead.
                let is_before = |seen: u32, count: u32| (seen.wrapping_sub(count) as i32) < 0;
                peers.retain(|&peer| is_before(own.flag(self.block, peer).load(Acquire), self.counts[peer]));
                if peers.is_empty() {
                    return true;
                }
            }
            if own.status().load(Relaxed) != 0 {
                return false;
            }
            if self.launch.abort.atomic().load(Relaxed) != 0 {
                return self.fail(Cause::Aborted, barrier, peers[0]);
            }
            if start.get_or_insert_with(Instant::now).elapsed() > patience {
                return self.fail(Cause::Deadline, barrier, peers[0]);
            }
            pauses.pause();
        }
    }

    /// The first that fails is reported.
    fn fail(&self, cause: Cause, barrier: Barrier, peer: usize) -> bool {
        let status = (cause as u32) << 24 | (barrier as u32) << 16 | (peer as u32) << 8 | self.block as u32;
        if self.launch.own.status().compare_exchange(0, status, Relaxed, Relaxed).is_ok() {
            self.launch.report.atomic().store(status, Release);
        }
        false
    }
}
