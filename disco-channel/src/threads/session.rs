//! Starts sessions whose workers are threads, in one call; the start of a session over lanes of any kind.

use std::sync::Arc;

use disco_core::link::Shared;
use disco_core::session::{LaneSession, SessionConfig};
use disco_core::worker::WorkerConfig;
use disco_core::{Channel, Result, WorkerRange, World};

use super::ThreadLane;

/// Starts a session whose workers are threads of this process. It sets how the session grows.
///
/// # Errors
/// The world has more than [`MAX_READERS`](crate::ring::MAX_READERS) workers, or a thread can't be started.
pub fn threads(config: WorkerConfig, session: impl Into<SessionConfig>) -> Result<LaneSession> {
    let (workers, shared) = (config.world.size() as u32, Arc::default());
    let lanes = vec![lane_to_threads(config, WorkerRange::new(0..workers), workers, &shared)];
    let grow = move |new: WorkerRange, world: World| {
        Ok(lane_to_threads(config.in_world(world), new, world.size() as u32, &shared))
    };
    start(config, lanes, session.into().with_growth(grow))
}

/// Starts the session over its lanes.
pub(crate) fn start(config: WorkerConfig, lanes: Vec<Arc<dyn Channel>>, session: SessionConfig) -> Result<LaneSession> {
    // By default, the controller's deadline comes after the workers' own, so that their more precise error is reported.
    let longest = config.collective_deadline.max(config.connect_deadline);
    LaneSession::start(config.world, lanes, session.with_deadlines(|deadlines| deadlines.outlasting(longest)))
}

/// A lane to `threads`, workers that are threads, of the `here` workers on this machine.
pub(crate) fn lane_to_threads(
    config: WorkerConfig,
    threads: WorkerRange,
    here: u32,
    shared: &Arc<Shared>,
) -> Arc<dyn Channel> {
    let neighbours = (here as usize).saturating_sub(threads.len());
    Arc::new(ThreadLane::to_workers(threads, shared.clone(), config).with_neighbours(neighbours))
}
