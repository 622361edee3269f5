//! Starts sessions whose workers are TVM's, in one call.

use std::sync::Arc;

use disco_core::session::{LaneSession, SessionConfig};
use disco_core::{Result, WorkerRange};

use super::{Lane, NodeOptions, Options};
use crate::threads::session::start;

/// Starts a session whose workers are processes of TVM's Disco, each started as `options` say. Blocks until they have
/// answered, for at most [`Options::start`].
///
/// # Errors
/// A process can't be started, or ends before it answers; the error has the last line of its standard error.
pub fn processes(options: Options, session: impl Into<SessionConfig>) -> Result<LaneSession> {
    let config = options.config;
    let lane = Lane::processes(WorkerRange::new(0..config.world.size() as u32), options);
    start(config, vec![Arc::new(lane)], session.into())
}

/// Starts a session whose workers are on nodes of TVM's Disco (`python3 -m tvm.exec.disco_remote_socket_session`), which
/// connect to this program. Blocks until the workers have answered, for at most [`NodeOptions::start`].
///
/// # Errors
/// The address is not permitted or in use; a node does not connect in time; the workers can't be divided into the nodes.
pub fn nodes(options: NodeOptions, session: impl Into<SessionConfig>) -> Result<LaneSession> {
    let config = options.config;
    let lane = Lane::nodes(WorkerRange::new(0..config.world.size() as u32), options);
    start(config, vec![Arc::new(lane)], session.into())
}
