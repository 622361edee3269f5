//! Sessions of threads.

use std::sync::Arc;

use disco_channel::threads::ThreadLane;
use disco_core::session::{Deadlines, LaneSession};
use disco_core::worker::{self, WorkerConfig};
use disco_core::{Result, Session, WorkerRange, World};

use crate::harness::{Harness, SessionSpec};

/// The harness of a backend whose ranks are threads of the test program: worlds of 1, 2, 3 and 7 workers, and of 4 in 2
/// groups.
#[derive(Clone, Debug)]
pub struct ThreadSessions {
    backend: String,
    worlds: Vec<World>,
    is_exact: bool,
    detects_mismatches: bool,
    detects_dropped_peers: bool,
}

impl ThreadSessions {
    /// The harness of the backend with this name, which is also the name of the harness. Results are compared with a
    /// tolerance, and the backend need not detect mismatches and dropped peers.
    pub fn of(backend: impl Into<String>) -> Self {
        let worlds = [(1, 1), (2, 1), (3, 1), (4, 2), (7, 1)];
        let worlds = worlds.into_iter().filter_map(|(workers, groups)| World::new(workers, groups).ok()).collect();
        Self {
            backend: backend.into(),
            worlds,
            is_exact: false,
            detects_mismatches: false,
            detects_dropped_peers: false,
        }
    }

    /// Sets the worlds, smallest first: on a machine with two GPUs, worlds of one and two workers.
    #[must_use]
    pub fn with_worlds(self, worlds: impl IntoIterator<Item = World>) -> Self {
        Self { worlds: worlds.into_iter().collect(), ..self }
    }

    /// Expects [exact results](Harness::is_exact).
    #[must_use]
    pub fn exact(self) -> Self {
        Self { is_exact: true, ..self }
    }

    /// Expects that the backend [detects mismatches](Harness::detects_mismatches) itself.
    #[must_use]
    pub fn detecting_mismatches(self) -> Self {
        Self { detects_mismatches: true, ..self }
    }

    /// Expects that the backend [detects dropped peers](Harness::detects_dropped_peers) before the deadline.
    #[must_use]
    pub fn detecting_dropped_peers(self) -> Self {
        Self { detects_dropped_peers: true, ..self }
    }
}

impl Harness for ThreadSessions {
    fn name(&self) -> &str {
        &self.backend
    }

    fn backend(&self) -> &str {
        &self.backend
    }

    fn worlds(&self) -> Vec<World> {
        self.worlds.clone()
    }

    fn start(&self, spec: &SessionSpec) -> Result<Box<dyn Session>> {
        let mut config = WorkerConfig::new(spec.world);
        (config.check, config.collective_deadline) = (spec.check, spec.collective_deadline);
        let run = move |worker, endpoint| worker::run(worker, config, endpoint);
        let lane = ThreadLane::new(WorkerRange::new(0..spec.world.size() as u32), Arc::default(), run);
        Ok(Box::new(LaneSession::start(spec.world, vec![Arc::new(lane)], Deadlines::default())?))
    }

    fn is_exact(&self) -> bool {
        self.is_exact
    }

    fn detects_mismatches(&self) -> bool {
        self.detects_mismatches
    }

    fn detects_dropped_peers(&self) -> bool {
        self.detects_dropped_peers
    }
}
