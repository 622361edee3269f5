//! Sessions from parts.

use std::sync::Arc;
use std::time::Duration;

use disco_channel::threads::ThreadLane;
use disco_core::session::{Deadlines, LaneSession};
use disco_core::worker::{self, WorkerConfig};
use disco_core::{Result, WorkerId, World};

/// What a session is made of.
///
/// ```
/// use disco::{Builder, Session};
///
/// # fn main() -> disco::Result<()> {
/// let session = Builder::threads(4).groups(2).start()?;
/// assert_eq!(session.world().group_size(), 2);
/// disco::block_on(session.shutdown())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Builder {
    workers: usize,
    groups: usize,
    check: bool,
    collective_deadline: Option<Duration>,
    connect_deadline: Option<Duration>,
    deadlines: Deadlines,
}

impl Builder {
    /// A session of `workers` threads of this process.
    pub fn threads(workers: usize) -> Self {
        Self {
            workers,
            groups: 1,
            check: std::env::var("DISCO_CHECK").is_ok_and(|value| value == "1"),
            collective_deadline: None,
            connect_deadline: None,
            deadlines: Deadlines::default(),
        }
    }

    /// Splits the workers in equal groups. Default: 1.
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Whether ranks compare what they call before each collective. Default: `DISCO_CHECK=1`.
    pub fn check(mut self, check: bool) -> Self {
        self.check = check;
        self
    }

    /// How long one collective may take, from entry. Default: 5 minutes.
    pub fn collective_deadline(mut self, deadline: Duration) -> Self {
        self.collective_deadline = Some(deadline);
        self
    }

    /// How long `init_ccl` waits on a worker for the others to come. Default: 30 s.
    pub fn connect_deadline(mut self, deadline: Duration) -> Self {
        self.connect_deadline = Some(deadline);
        self
    }

    /// How long one call of a worker function may take while somebody waits for a reply. Default: no limit.
    pub fn call_deadline(mut self, deadline: Duration) -> Self {
        self.deadlines.call = Some(deadline);
        self
    }

    /// All limits of the session's own waits.
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// No workers, groups that do not divide them, or threads that can't be made.
    pub fn start(self) -> Result<LaneSession> {
        let world = World::new(self.workers, self.groups)?;
        let mut config = WorkerConfig::new(world);
        config.check = self.check;
        config.collective_deadline = self.collective_deadline.unwrap_or(config.collective_deadline);
        config.connect_deadline = self.connect_deadline.unwrap_or(config.connect_deadline);
        // Behind the collective's own.
        let mut deadlines = self.deadlines;
        deadlines.collective = deadlines.collective.max(config.collective_deadline + deadlines.reply);
        let workers = WorkerId::new(0)..WorkerId::new(world.size() as u32);
        let run = move |worker, endpoint| worker::run(worker, config, endpoint);
        let lane = ThreadLane::new(workers, Arc::default(), run);
        LaneSession::start(world, vec![Arc::new(lane)], deadlines)
    }
}
