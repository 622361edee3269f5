//! Starts sessions whose workers are processes, here or on nodes, in one call.

use std::sync::Arc;

use disco_core::link::Shared;
use disco_core::session::{LaneSession, SessionConfig};
use disco_core::shared_memory::Arena;
use disco_core::{Channel, Error, Result, WorkerRange};

use super::nodes::{self, NodeLane};
use super::processes::{self, ProcessLane};
use crate::threads::session::{lane_to_threads, start};

/// Starts a session whose workers are processes of this machine, except worker 0, which is a thread of this process unless
/// [`processes::Options::apart`] is set. Blocks until they have started, for at most [`processes::Options::start`]. It sets how
/// the session grows.
///
/// # Errors
/// A worker's process can't be started, ends, or does not connect in time. The error names the worker and the reason.
pub fn processes(options: processes::Options, session: impl Into<SessionConfig>) -> Result<LaneSession> {
    let config = options.config;
    let shared = shared_with_processes(config.world.per_node())?;
    let (spares, launch) = (options.spares.clone(), options.launch.clone());
    if spares.is_some() && !launch.starts_processes() {
        return Err(Error::invalid("spares need workers that the session starts, but a launcher starts these"));
    }
    let lanes = lanes_to_processes(options.clone(), config.world.size() as u32, &shared);
    let grow = move |new, world| {
        let mut options = options.clone().more(new)?;
        options.config = config.in_world(world);
        Ok(Arc::new(ProcessLane::new(new, shared.clone(), options)) as Arc<dyn Channel>)
    };
    let session = start(config, lanes, session.into().with_growth(grow))?;
    if let Some(spares) = spares {
        spares.start(&launch)?;
        session.attach(End(spares));
    }
    Ok(session)
}

/// Ends the spares with the session.
struct End(processes::Spares);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Starts a session whose first `here` workers are on this machine, and whose other workers are on `options.nodes`
/// nodes. Worker 0 is a thread of this process unless `local.apart` is set. The other local workers are processes, started as
/// `local` says, if `options.processes` is set, else threads; `local.config` is ignored in favour of `options.config`. Blocks
/// until all nodes have joined and started their workers, for at most [`nodes::Options::start`]. It sets how the session
/// grows, and the workers per node.
///
/// # Errors
/// This program is built without the feature `nodes`; a process can't be started, or a node does not join in time or is refused (the error names it and the reason); the
/// address is in use; `here` exceeds the number of workers, or is 0 and `local.apart` is not set; `local.apart` is set and
/// there are threads.
pub fn nodes(
    options: nodes::Options,
    here: u32,
    mut local: processes::Options,
    session: impl Into<SessionConfig>,
) -> Result<LaneSession> {
    nodes::check("a session of nodes")?;
    let config = options.config;
    local.config = config;
    let (workers, least) = (config.world.size(), u32::from(!local.apart));
    if !(least..=workers as u32).contains(&here) {
        return Err(Error::invalid(format!(
            "{here} of {workers} workers on this machine: the number must be {least} to {workers}"
        )));
    }
    if local.apart && here > 0 && !options.processes {
        return Err(Error::invalid("`apart` makes worker 0 a process, but the workers on this machine are threads"));
    }
    let arena = Arena::new(config.world.per_node())?;
    let shared = Arc::new(match config.world.nodes() {
        1 => Shared::with_arena(arena),
        _ => Shared::default().among_nodes(arena),
    });
    let mut lanes = if options.processes {
        lanes_to_processes(local, here, &shared)
    } else if here == 0 {
        Vec::new()
    } else {
        vec![lane_to_threads(config, WorkerRange::new(0..here), here, &shared)]
    };
    if options.nodes > 0 {
        let others = WorkerRange::new(here..config.world.size() as u32);
        lanes.push(Arc::new(NodeLane::new(others, shared.clone(), options.clone())));
    }
    let session = session.into();
    if config.world.per_node() != here as usize {
        // More nodes would not have as many workers as this machine.
        return start(config, lanes, session);
    }
    let grow = move |new, world| {
        let options = options.more(new, world)?;
        Ok(Arc::new(NodeLane::new(new, shared.clone(), options)) as Arc<dyn Channel>)
    };
    start(config, lanes, session.with_growth(grow).with_workers_per_node(here as usize))
}

/// Lanes to the first `workers` workers, which are processes, except worker 0 unless it is a process of its own.
fn lanes_to_processes(options: processes::Options, workers: u32, shared: &Arc<Shared>) -> Vec<Arc<dyn Channel>> {
    let first_process = u32::from(!options.apart);
    let (threads, processes) = (WorkerRange::new(0..first_process), WorkerRange::new(first_process..workers));
    let mut lanes = Vec::new();
    if !threads.is_empty() {
        lanes.push(lane_to_threads(options.config, threads, workers, shared));
    }
    if !processes.is_empty() {
        lanes.push(Arc::new(ProcessLane::new(processes, shared.clone(), options)));
    }
    lanes
}

/// The state that this process shares with workers, with an arena for the tensors of worker 0, on a machine with `ranks` ranks.
fn shared_with_processes(ranks: usize) -> Result<Arc<Shared>> {
    Ok(Arc::new(Shared::with_arena(Arena::new(ranks)?)))
}
