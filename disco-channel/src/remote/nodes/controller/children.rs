//! Processes of nodes that the session has started itself.

use std::io;
use std::os::unix::net::UnixStream;
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
        Self::watched(Process::child(child))
    }

    /// As [`Self::new`], for a process that runs the node on another machine. It may write to the other end of `socket` why
    /// the node can't go on, before it ends: a phrase for the error of the session, such as "its ssh client ended". If it ends
    /// with a failure while the node is connected, the node is lost.
    ///
    /// # Errors
    /// Errors of [`Self::new`].
    pub fn launcher(child: Child, socket: UnixStream) -> Result<Self> {
        Self::watched(Process::launcher(child, socket))
    }

    fn watched(process: io::Result<Process>) -> Result<Self> {
        process.map(Self).map_err(|error| Error::system("the process of a node can't be watched", error))
    }
}
