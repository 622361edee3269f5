//! The worker's end.

use std::fmt;
use std::sync::Arc;

use disco_core::channel::Reply;
use disco_core::{Endpoint, Frame, Link, Result, WorkerId};

use super::commands::Commands;
use super::link::ProcessLink;

use crate::connection::Connection;
use crate::hearing;

/// The end of a worker that is a process of its own.
pub struct ProcessEndpoint {
    pub(super) worker: WorkerId,
    pub(super) connection: Arc<Connection>,
    pub(super) commands: Commands,
    pub(super) link: Arc<ProcessLink>,
}

impl Endpoint for ProcessEndpoint {
    fn recv(&mut self) -> Result<Arc<Frame>> {
        self.commands.next().map(Arc::new)
    }

    fn reply(&mut self, seq: u64, reply: Reply) -> Result<()> {
        let packet = hearing::encode_reply(self.worker, seq, reply, |message| message)?;
        self.connection.send(packet, None)
    }

    fn link(&self) -> Arc<dyn Link> {
        self.link.clone()
    }
}

impl fmt::Debug for ProcessEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessEndpoint").field("worker", &self.worker).finish_non_exhaustive()
    }
}
