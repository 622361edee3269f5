//! Substitutes for sessions whose workers are outside of this process, on systems without them.

use disco_core::session::{LaneSession, SessionConfig};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Result, World};

use super::Builder;

/// No options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options;

/// There are no launchers.
pub(crate) fn with_launcher(builder: Builder) -> Result<Builder> {
    Ok(builder)
}

/// Attaches nothing.
pub(crate) fn attach(_: &LaneSession) -> Result<()> {
    Ok(())
}

impl Builder {
    pub(crate) fn split_into_nodes(&self, world: World) -> Result<World> {
        Ok(world)
    }

    pub(crate) fn check_remote(&self) -> Result<()> {
        Ok(())
    }

    /// # Errors
    /// Always.
    pub(crate) fn start_remote(&self, _: WorkerConfig, _: SessionConfig) -> Result<LaneSession> {
        Err(Error::invalid(format!("sessions of {} need Linux", self.kind)))
    }
}
