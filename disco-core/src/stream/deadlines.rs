//! Deadlines of a session.

use std::time::Duration;

/// Limits of a session's waits. `Duration::MAX` means no limit.
///
/// ```
/// # use std::time::Duration;
/// use disco_core::session::Deadlines;
///
/// let deadlines = Deadlines::default().with_reply(Duration::from_secs(5)).with_close(Duration::from_secs(1));
/// assert_eq!(deadlines.stall, Duration::from_secs(300));
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Limit for a reply of a worker that is not inside a worker function and makes no progress. Default: 30 s. A value
    /// that takes longer to send needs a higher limit.
    pub reply: Duration,
    /// Limit for one call of a worker function of the program, checked while a caller awaits a reply. Default: none;
    /// the wait only [warns](Self::warn).
    pub call: Option<Duration>,
    /// Interval of the warnings, with `tracing`, of a wait for a worker inside a worker function, and of a shutdown
    /// that waits for workers. A warning names the worker, the function and the time. Default: 30 s; a shutdown warns
    /// at least every 2 s.
    pub warn: Duration,
    /// Limit for a reply of a worker inside a collective or `disco.init_ccl`. These have deadlines of their own; this
    /// limit is for a backend that does not keep them, or for a program that must not wait for them. Default: a minute
    /// more than the longer of the two, and at least 6 minutes.
    pub collective: Option<Duration>,
    /// Limit of the wait for a full lane while its slowest worker finishes no command. Default: 5 minutes.
    pub stall: Duration,
    /// Limit of the wait for workers to leave at shutdown. Default: 30 s.
    pub close: Duration,
}

impl Deadlines {
    /// The least default of [`collective`](Self::collective).
    pub(super) const COLLECTIVE: Duration = Duration::from_secs(360);

    /// Sets [`reply`](Self::reply).
    #[must_use]
    pub fn with_reply(self, reply: Duration) -> Self {
        Self { reply, ..self }
    }

    /// Sets [`call`](Self::call).
    #[must_use]
    pub fn with_call(self, call: Duration) -> Self {
        Self { call: Some(call), ..self }
    }

    /// Sets [`warn`](Self::warn).
    #[must_use]
    pub fn with_warn(self, warn: Duration) -> Self {
        Self { warn, ..self }
    }

    /// Sets [`collective`](Self::collective).
    #[must_use]
    pub fn with_collective(self, collective: Duration) -> Self {
        Self { collective: Some(collective), ..self }
    }

    /// Sets [`collective`](Self::collective), if the program has not, for workers whose collectives and `disco.init_ccl`
    /// may take up to `longest`.
    #[must_use]
    pub fn outlasting(self, longest: Duration) -> Self {
        let usual = longest.saturating_add(Duration::from_secs(60)).max(Self::COLLECTIVE);
        Self { collective: self.collective.or(Some(usual)), ..self }
    }

    /// Sets [`stall`](Self::stall).
    #[must_use]
    pub fn with_stall(self, stall: Duration) -> Self {
        Self { stall, ..self }
    }

    /// Sets [`close`](Self::close).
    #[must_use]
    pub fn with_close(self, close: Duration) -> Self {
        Self { close, ..self }
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            reply: Duration::from_secs(30),
            call: None,
            warn: Duration::from_secs(30),
            collective: None,
            stall: Duration::from_secs(300),
            close: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_waits_longer_than_a_collective_may_take_unless_the_program_says_how_long() {
        const MINUTE: Duration = Duration::from_secs(60);
        let collective = |deadlines: Deadlines, longest| deadlines.outlasting(longest).collective.unwrap();
        assert_eq!(collective(Deadlines::default(), MINUTE), 6 * MINUTE);
        assert_eq!(collective(Deadlines::default(), 20 * MINUTE), 21 * MINUTE);
        assert_eq!(collective(Deadlines::default(), Duration::MAX), Duration::MAX);
        for set in [MINUTE, 6 * MINUTE] {
            assert_eq!(collective(Deadlines::default().with_collective(set), 20 * MINUTE), set);
        }
    }
}
