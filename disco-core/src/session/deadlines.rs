//! How long a session waits.

use std::time::Duration;

/// Limits of a session's waits. `Duration::MAX` is no limit.
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
    /// For a reply of a worker that makes no progress, though it is not inside a worker function. 30 s. A value that is under way for
    /// longer needs more.
    pub reply: Duration,
    /// For one call of a worker function of the program, while somebody waits for a reply. None: user code may take its time, and
    /// the wait [warns](Self::warn).
    pub call: Option<Duration>,
    /// How often a wait warns, by `tracing`, that a worker is still inside a worker function, and a shutdown that workers have not
    /// left: which worker, which function, how long. 30 s; a shutdown warns after 2 s at the latest.
    pub warn: Duration,
    /// For a reply of a worker that is inside one collective or inside `disco.init_ccl`, which have deadlines of their own: this
    /// is for a backend that does not keep them. 6 minutes.
    pub collective: Duration,
    /// For room in a lane, while the worker that holds it up finishes no command. 5 minutes.
    pub stall: Duration,
    /// For workers to leave at shutdown. 30 s.
    pub close: Duration,
}

impl Deadlines {
    /// The same with another [`reply`](Self::reply).
    #[must_use]
    pub fn with_reply(self, reply: Duration) -> Self {
        Self { reply, ..self }
    }

    /// The same with a limit for [`call`](Self::call)s.
    #[must_use]
    pub fn with_call(self, call: Duration) -> Self {
        Self { call: Some(call), ..self }
    }

    /// The same with another time between [`warn`](Self::warn)ings.
    #[must_use]
    pub fn with_warn(self, warn: Duration) -> Self {
        Self { warn, ..self }
    }

    /// The same with another [`collective`](Self::collective).
    #[must_use]
    pub fn with_collective(self, collective: Duration) -> Self {
        Self { collective, ..self }
    }

    /// The same with another [`stall`](Self::stall).
    #[must_use]
    pub fn with_stall(self, stall: Duration) -> Self {
        Self { stall, ..self }
    }

    /// The same with another [`close`](Self::close).
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
            collective: Duration::from_secs(360),
            stall: Duration::from_secs(300),
            close: Duration::from_secs(30),
        }
    }
}
