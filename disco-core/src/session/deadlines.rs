//! How long a session waits.

use std::time::Duration;

/// Limits of a session's waits. `Duration::MAX` is no limit.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For a reply of a worker that makes no progress, though it is not inside a worker function. 30 s.
    pub reply: Duration,
    /// For one call of a worker function, while somebody waits for a reply. None: user code may take its time.
    pub call: Option<Duration>,
    /// For a reply of a worker that is inside one collective, which has a deadline of its own: this is for a backend that
    /// does not keep it. 6 minutes.
    pub collective: Duration,
    /// For room in a lane, while the worker that holds it up finishes no command. 5 minutes.
    pub stall: Duration,
    /// For workers to leave at shutdown. 30 s.
    pub close: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            reply: Duration::from_secs(30),
            call: None,
            collective: Duration::from_secs(360),
            stall: Duration::from_secs(300),
            close: Duration::from_secs(30),
        }
    }
}
