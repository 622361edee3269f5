//! Heartbeats and silence timeouts of both ends of a connection. Only complete packets are signs of life: bytes of a packet
//! whose length was damaged on the way would never complete it.

use std::time::{Duration, Instant};

/// The silence timeout of the other end of a connection, and the heartbeat timer of this end.
#[derive(Clone, Debug)]
pub(crate) struct Liveness {
    heartbeat: Duration,
    silence: Duration,
    /// Silence that is allowed in addition.
    extra: Duration,
    /// When a complete packet came last, or silence was excused.
    last_received: Instant,
    /// When this end sent its last heartbeat.
    last_sent: Instant,
}

impl Liveness {
    /// This end sends every `heartbeat`; the other end is lost after `silence` without a complete packet. Both count from `now`;
    /// [`Duration::MAX`] disables either.
    pub(crate) fn new(heartbeat: Duration, silence: Duration, now: Instant) -> Self {
        Self { heartbeat, silence, extra: Duration::ZERO, last_received: now, last_sent: now }
    }

    /// Sets the silence that is allowed in addition, for work of the other end during which it sends no heartbeats.
    pub(crate) fn set_extra(&mut self, extra: Duration) {
        self.extra = extra;
    }

    fn limit(&self) -> Duration {
        self.silence.saturating_add(self.extra)
    }

    /// Records that a complete packet came.
    pub(crate) fn received(&mut self, now: Instant) {
        self.last_received = self.last_received.max(now);
    }

    /// Records that a heartbeat, or a message in its place, is sent.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.last_sent = now;
    }

    /// Restarts the silence timeout: this end could not read until now.
    pub(crate) fn excuse(&mut self, now: Instant) {
        self.received(now);
    }

    /// When a complete packet came last.
    pub(crate) fn last_received(&self) -> Instant {
        self.last_received
    }

    /// Time since a complete packet came last.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_received)
    }

    /// Whether a heartbeat is due.
    pub(crate) fn must_send(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_sent) >= self.heartbeat
    }

    /// Returns the silence timeout if it has passed.
    pub(crate) fn is_silent(&self, now: Instant) -> Option<Duration> {
        (self.silence(now) >= self.limit()).then_some(self.limit())
    }

    /// When the heartbeat or the silence timeout is due next.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let times = [self.next_heartbeat(), self.last_received.checked_add(self.limit())];
        times.into_iter().flatten().min()
    }

    /// When the heartbeat is due next.
    pub(crate) fn next_heartbeat(&self) -> Option<Instant> {
        self.last_sent.checked_add(self.heartbeat)
    }
}

/// Detects that this end itself was not running. A thread that did not run for half of the silence timeout read nothing
/// meanwhile, so the silence of all other ends is excused.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    silence: Duration,
    last_check: Instant,
}

impl Attention {
    pub(crate) fn new(silence: Duration, now: Instant) -> Self {
        Self { silence, last_check: now }
    }

    /// Records that this end runs now. Returns whether it did not for more than half of the silence timeout.
    pub(crate) fn check(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.last_check);
        self.last_check = self.last_check.max(now);
        since > self.silence / 2
    }

    /// When [`Self::check`] is due next.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.last_check.checked_add(self.silence / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_silence_timeout_counts_from_the_last_packet_or_excuse() {
        let start = Instant::now();
        let mut liveness = Liveness::new(Duration::MAX, 5 * SECOND, start);
        assert_eq!(liveness.is_silent(start + 4 * SECOND), None);
        liveness.received(start + 4 * SECOND);
        assert_eq!(liveness.next_timeout(), Some(start + 9 * SECOND));
        assert_eq!(liveness.is_silent(start + 9 * SECOND), Some(5 * SECOND));
        liveness.excuse(start + 9 * SECOND);
        assert_eq!(liveness.is_silent(start + 13 * SECOND), None);
        liveness.set_extra(SECOND);
        assert_eq!(liveness.is_silent(start + 14 * SECOND), None);
        assert_eq!(liveness.next_timeout(), Some(start + 15 * SECOND));
        assert_eq!(liveness.is_silent(start + 15 * SECOND), Some(6 * SECOND));
    }

    #[test]
    fn a_heartbeat_is_due_one_interval_after_the_last_one() {
        let start = Instant::now();
        let mut liveness = Liveness::new(SECOND, 5 * SECOND, start);
        assert!(!liveness.must_send(start) && liveness.must_send(start + SECOND));
        liveness.sent(start + SECOND);
        assert_eq!(liveness.next_timeout(), Some(start + 2 * SECOND));
        assert!(!liveness.must_send(start + SECOND));
    }

    #[test]
    fn check_tells_that_this_end_did_not_run_for_half_of_the_silence_timeout() {
        let start = Instant::now();
        let mut attention = Attention::new(4 * SECOND, start);
        assert_eq!(attention.next_timeout(), Some(start + SECOND));
        assert!(!attention.check(start + 2 * SECOND));
        assert!(attention.check(start + 5 * SECOND));
        assert!(!attention.check(start + 6 * SECOND));
    }
}
