//! Processes of nodes that the session has started itself.

use std::process::Child;

use disco_core::{Error, Result};

use crate::remote::process::Process;

/// The process of a node that the session has started. Dropping this value kills the process.
#[derive(Debug)]
pub struct NodeProcess(pub(super) Process);

impl NodeProcess {
    /// Takes ownership of a process that was just started.
    ///
    /// # Errors
    /// The process can't be watched; it is killed.
    pub fn new(child: Child) -> Result<Self> {
        let process = Process::child(child);
        process.map(Self).map_err(|error| Error::system("the process of a node can't be watched", error))
    }
}
