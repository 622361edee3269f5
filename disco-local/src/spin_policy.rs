//! Polling before a rank sleeps on the futex.

use std::cell::Cell;
use std::hint;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::{env, processors};

/// How long a rank polls before it sleeps. A wait that ends in the first polls reads no clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinPolicy {
    /// Polls without giving up the processor.
    spins: u32,
    /// Polls after these, each followed by a yield.
    yields: u32,
    /// Total time of all polls, if the user has limited it.
    limit: Option<Duration>,
    /// Whether each rank can have a processor of its own.
    spacious: bool,
}

/// Yields after which a wait is still taken to have ended because the awaited rank ran on this processor meanwhile.
const HANDOVER_YIELDS: u32 = 4;
/// Successive handovers after which a rank moves to another processor.
const MAX_HANDOVERS: u32 = 3;
/// Shortest and longest time between two moves of a thread.
const MIN_MOVE_INTERVAL: Duration = Duration::from_micros(250);
const MAX_MOVE_INTERVAL: Duration = Duration::from_millis(64);

/// Evidence that a thread shares its processor with the ranks for which it waits.
#[derive(Clone, Copy)]
struct Sharing {
    /// Successive slow waits that a yield has ended.
    handovers: u32,
    /// The last move to another processor, and the least time until the next one.
    moved: Option<(Instant, Duration)>,
}

thread_local! {
    static SHARING: Cell<Sharing> = const { Cell::new(Sharing { handovers: 0, moved: None }) };
}

impl SpinPolicy {
    /// The policy for `ranks` ranks on the processors that this process may use.
    ///
    /// If each rank has a processor, peers usually answer within nanoseconds. A peer may still share the processor of
    /// this rank, so later polls yield. A yield without another runnable thread costs a fraction of a microsecond. Ranks
    /// that take turns yield at once, because one of them waits for this processor.
    pub(crate) fn new(ranks: usize) -> Self {
        let spacious = ranks <= processors();
        Self { spins: if spacious { 200 } else { 0 }, yields: 500, limit: env::spin_time(), spacious }
    }

    /// Polls `ready` until it returns a value. None after the last poll: the caller sleeps then.
    #[inline]
    pub(crate) fn poll<T>(self, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        if self.limit.is_none() {
            for _ in 0..self.spins {
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
        for yields in 0..self.yields {
            if let Some(found) = ready() {
                if self.spacious {
                    note(yields);
                }
                return Some(found);
            }
            thread::yield_now();
        }
        ready()
    }

    /// Polls for `limit`. The limit is the user's, so the number of polls does not end the wait earlier.
    fn poll_for<T>(self, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        let mut started = None;
        for polls in 0u32.. {
            if let Some(found) = ready() {
                return Some(found);
            }
            if polls < self.spins {
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

/// Records that a wait has ended after `yields` yields, and moves this thread to another processor if it seems to share its
/// processor with the ranks for which it waits.
///
/// Two ranks that yield to each other stay on one processor for many milliseconds, because Linux does not move threads
/// that have just run, even to an idle processor. Their waits end right after a yield several times in a row: the peer
/// runs only while this rank does not. The rank that sees this first moves at once, while the peer, which is about to run
/// here, waits for it and sees that the handovers have ended. If the rank moved at its next wait, the peer would follow it.
fn note(yields: u32) {
    let mut sharing = SHARING.get();
    let is_handover = (1..=HANDOVER_YIELDS).contains(&yields);
    sharing.handovers = if is_handover { sharing.handovers.saturating_add(1) } else { 0 };
    SHARING.set(sharing);
    if sharing.handovers >= MAX_HANDOVERS {
        separate(sharing);
    }
}

/// Moves this thread to another processor. If there is no idle one the move changes little, so the interval between two
/// moves grows.
fn separate(sharing: Sharing) {
    let now = Instant::now();
    let interval = match sharing.moved {
        None => MIN_MOVE_INTERVAL,
        Some((last, interval)) => match now.duration_since(last) {
            elapsed if elapsed < interval => return,
            elapsed if elapsed > 4 * interval => MIN_MOVE_INTERVAL,
            _ => (2 * interval).min(MAX_MOVE_INTERVAL),
        },
    };
    SHARING.set(Sharing { handovers: 0, moved: Some((now, interval)) });
    leave_processor();
}

/// Moves this thread to another of its processors, and allows all of them again. Does nothing if the thread has only
/// one, or if the system refuses.
fn leave_processor() {
    use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};
    let Ok(all) = sched_getaffinity(None) else { return };
    let mut others = all;
    others.unset(sched_getcpu());
    if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
        // Fails only if the administrator has meanwhile taken away these processors; Linux then replaces the mask.
        _ = sched_setaffinity(None, &all);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::*;

    #[test]
    fn leave_processor_restores_the_affinity_of_the_thread() {
        let before = sched_getaffinity(None).unwrap();
        leave_processor();
        assert!(sched_getaffinity(None).unwrap() == before);
    }

    #[test]
    fn a_limited_wait_ends_and_polls_a_last_time() {
        let policy = SpinPolicy { spins: 2, yields: 0, limit: Some(Duration::ZERO), spacious: true };
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
}
