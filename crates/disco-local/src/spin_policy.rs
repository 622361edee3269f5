//! Polling before a rank sleeps on the futex.

use std::hint;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::{env, processors};

use crate::placement;

/// How long a rank polls before it sleeps. A wait that ends in the first polls reads no clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinPolicy {
    /// Total time of all polls, if the user has limited it.
    limit: Option<Duration>,
    /// Whether each rank can have a processor of its own.
    spacious: bool,
}

/// Polls without giving up the processor, by a rank that has it to itself.
const SPINS: u32 = 200;
/// Polls after these, each followed by a yield.
const YIELDS: u32 = 500;
/// Longest time of these polls: on a busy machine a yield takes milliseconds, and the deadline of a wait starts only after
/// the polls.
const MAX_YIELD_TIME: Duration = Duration::from_millis(100);
/// Yields for each reading of the clock.
const YIELDS_PER_READING: u32 = 4;

impl SpinPolicy {
    /// The policy for `ranks` ranks on the processors that this process may use.
    ///
    /// If each rank has a processor, peers usually answer within nanoseconds. A peer may still share the processor of
    /// this rank, so later polls yield. A yield without another runnable thread costs a fraction of a microsecond. Ranks
    /// that take turns yield at once, because one of them waits for this processor.
    pub(crate) fn new(ranks: usize) -> Self {
        Self { limit: env::spin_time(), spacious: ranks <= processors() }
    }

    /// Whether ranks take turns on the processors, and spread over them. They do not if the user has limited the polls.
    pub(crate) fn takes_turns(self) -> bool {
        !self.spacious && self.limit.is_none()
    }

    fn spins(self) -> u32 {
        if self.spacious || placement::is_alone() { SPINS } else { 0 }
    }

    /// Polls `ready` until it returns a value. None after the last poll: the caller sleeps then.
    #[inline]
    pub(crate) fn poll<T>(self, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        if self.limit.is_none() {
            for _ in 0..self.spins() {
                if let Some(found) = ready() {
                    return Some(found);
                }
                hint::spin_loop();
            }
        }
        self.poll_longer(ready)
    }

    #[cold]
    fn poll_longer<T>(self, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(limit) = self.limit {
            return self.poll_for(limit, ready);
        }
        let mut started = None;
        for yields in 0..YIELDS {
            if let Some(found) = ready() {
                if self.spacious {
                    placement::note_wait(yields);
                }
                return Some(found);
            }
            thread::yield_now();
            if yields % YIELDS_PER_READING == YIELDS_PER_READING - 1
                && started.get_or_insert_with(Instant::now).elapsed() >= MAX_YIELD_TIME
            {
                break;
            }
        }
        ready()
    }

    /// Polls for `limit`. The limit is the user's, so the number of polls does not end the wait earlier.
    fn poll_for<T>(self, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        let (mut started, spins) = (None, self.spins());
        for polls in 0u32.. {
            if let Some(found) = ready() {
                return Some(found);
            }
            if polls < spins {
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
            // The clock is read every 16 polls.
            if polls % 16 == 0 && started.get_or_insert_with(Instant::now).elapsed() >= limit {
                break;
            }
        }
        ready()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_limited_wait_ends_and_polls_a_last_time() {
        let policy = SpinPolicy { limit: Some(Duration::ZERO), spacious: true };
        let mut polls = 0;
        assert!(
            policy
                .poll(|| {
                    polls += 1;
                    None::<()>
                })
                .is_none()
        );
        assert_eq!(polls, 2);
        assert_eq!(policy.poll(|| Some(1)), Some(1));
    }

    #[test]
    fn polls_end_early_if_each_yield_is_long() {
        let policy = SpinPolicy { limit: None, spacious: false };
        let mut polls = 0;
        let slow = || {
            polls += 1;
            thread::sleep(MAX_YIELD_TIME / YIELDS_PER_READING);
            None::<()>
        };
        assert!(policy.poll(slow).is_none());
        assert_eq!(polls, 2 * YIELDS_PER_READING + 1, "until the second reading of the clock, and a last time");
    }
}
