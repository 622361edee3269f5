//! Nodes that the session has started itself: they end with it.

use std::process::Child;

use disco_core::{Error, Result};

use crate::process::Process;

/// The process of a node that the session has started. Dropping it kills it.
#[derive(Debug)]
pub struct NodeProcess(pub(super) Process);

impl NodeProcess {
    /// Takes charge of a process that was just started.
    ///
    /// # Errors
    /// The system can't watch it; it is killed then.
    pub fn new(child: Child) -> Result<Self> {
        let process = Process::child(child);
        process.map(Self).map_err(|error| Error::system("the process of a node can't be watched", error))
    }
}
