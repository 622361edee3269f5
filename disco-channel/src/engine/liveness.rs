//! Heartbeats and silence, of both ends of a connection.

use std::time::{Duration, Instant};

/// Whether the other end of a connection still says something, and whether this end has to.
#[derive(Clone, Debug)]
pub(crate) struct Liveness {
    heartbeat: Duration,
    silence: Duration,
    /// When something came last, or silence was excused.
    heard: Instant,
    /// When this end said something last.
    said: Instant,
}

impl Liveness {
    /// This end says something every `heartbeat`; the other end may be silent for less than `silence`. Both count from `now`;
    /// [`Duration::MAX`] is no limit.
    pub(crate) fn new(heartbeat: Duration, silence: Duration, now: Instant) -> Self {
        Self { heartbeat, silence, heard: now, said: now }
    }

    /// Bytes came.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = self.heard.max(now);
    }

    /// A heartbeat goes, or something that serves as one.
    pub(crate) fn said(&mut self, now: Instant) {
        self.said = now;
    }

    /// This end could not listen until now: silence counts from here.
    pub(crate) fn excuse(&mut self, now: Instant) {
        self.heard(now);
    }

    /// For how long nothing has come.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }

    /// Whether a heartbeat is due.
    pub(crate) fn must_say(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.said) >= self.heartbeat
    }

    /// The limit, if the other end has been silent for as long.
    pub(crate) fn is_silent(&self, now: Instant) -> Option<Duration> {
        (self.silence(now) >= self.silence).then_some(self.silence)
    }

    /// When one of both is to be looked at next.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let times = [self.said.checked_add(self.heartbeat), self.heard.checked_add(self.silence)];
        times.into_iter().flatten().min()
    }
}

/// Whether this end was able to listen. A thread that did not run for half of the limit for silence heard nobody meanwhile, so the
/// silence of all other ends is to be excused.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    silence: Duration,
    looked: Instant,
}

impl Attention {
    pub(crate) fn new(silence: Duration, now: Instant) -> Self {
        Self { silence, looked: now }
    }

    /// This end listens now. Returns whether it did not for too long.
    pub(crate) fn look(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.looked);
        self.looked = self.looked.max(now);
        since > self.silence / 2
    }

    /// When it has to look again, for its absence not to count.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.looked.checked_add(self.silence / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_limit_for_silence_counts_from_the_last_byte_or_the_last_excuse() {
        let start = Instant::now();
        let mut liveness = Liveness::new(Duration::MAX, 5 * SECOND, start);
        assert_eq!(liveness.is_silent(start + 4 * SECOND), None);
        liveness.heard(start + 4 * SECOND);
        assert_eq!(liveness.next_timeout(), Some(start + 9 * SECOND));
        assert_eq!(liveness.is_silent(start + 9 * SECOND), Some(5 * SECOND));
        liveness.excuse(start + 9 * SECOND);
        assert_eq!(liveness.is_silent(start + 13 * SECOND), None);
    }

    #[test]
    fn a_heartbeat_is_due_once_the_last_one_is_as_old() {
        let start = Instant::now();
        let mut liveness = Liveness::new(SECOND, 5 * SECOND, start);
        assert!(!liveness.must_say(start) && liveness.must_say(start + SECOND));
        liveness.said(start + SECOND);
        assert_eq!(liveness.next_timeout(), Some(start + 2 * SECOND));
        assert!(!liveness.must_say(start + SECOND));
    }

    #[test]
    fn an_end_that_did_not_listen_for_half_of_the_limit_excuses_silence() {
        let start = Instant::now();
        let mut attention = Attention::new(4 * SECOND, start);
        assert_eq!(attention.next_timeout(), Some(start + SECOND));
        assert!(!attention.look(start + 2 * SECOND));
        assert!(attention.look(start + 5 * SECOND));
        assert!(!attention.look(start + 6 * SECOND));
    }
}
