//! Starts the nodes of a session: on this machine, or on other machines by a launcher.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::Duration;

use disco_channel::nodes::{Announcement, NodeProcess, Token};
use disco_core::{Error, Result};

use super::log_files;
use super::node::{CONNECT, JOIN_SECONDS, NODE_ID, SPARE, STARTER};

/// The argument of a launcher that makes it start a node.
pub const START_NODE: &str = "start-node";

/// A program that starts each node on its host. It is executed with the argument [`START_NODE`] for each node, and gets the
/// variables of the node (`DISCO_CONNECT` with all addresses of the controller, `DISCO_NODE_ID`, `DISCO_JOIN_SECONDS`,
/// `DISCO_TOKEN`) to pass on. It ends with the node. Its standard input is a socket that nothing is written to, and whose other
/// end is closed when the session ends, or this process. It may write there why the node can't go on, before it ends.
#[derive(Clone, Debug)]
pub(crate) struct NodeLauncher {
    pub(crate) program: PathBuf,
    /// The hosts of the nodes from 1 on.
    pub(crate) hosts: Vec<String>,
}

impl NodeLauncher {
    /// The names of the nodes in messages.
    pub(crate) fn names(&self) -> Vec<String> {
        self.hosts.iter().enumerate().map(|(index, host)| format!("node {} ({host})", index + 1)).collect()
    }

    /// The prefixes of lines that the workers of the nodes print.
    pub(crate) fn prefixes(&self) -> Vec<String> {
        self.hosts.iter().map(|host| format!("host {host}")).collect()
    }

    fn command(&self, announcement: &Announcement, id: u32) -> Result<Command> {
        if id as usize > self.hosts.len() {
            let count = self.hosts.len();
            return Err(Error::invalid(format!("node {id} has no host: DISCO_HOSTS names the hosts of {count} nodes")));
        }
        let mut command = Command::new(&self.program);
        // A terminal sends Ctrl-C to this program, which decides what becomes of its session.
        command.arg(START_NODE).process_group(0);
        command.env(CONNECT, announcement.addresses().join(","));
        Ok(command)
    }
}

/// Starts all nodes: by `launcher`, or else on this machine by executing this program once per node. Each node tries to reach
/// the controller for `start`, in whole seconds, at least 1; a node of a launcher for two thirds of that, so that its error
/// comes before that of the controller.
pub(crate) fn start_nodes(
    announcement: &Announcement,
    launcher: Option<&NodeLauncher>,
    token: &Token,
    encrypts: Option<bool>,
    start: Duration,
    log_dir: Option<&Path>,
) -> Result<Vec<NodeProcess>> {
    let start = if launcher.is_some() { start.saturating_mul(2) / 3 } else { start };
    let seconds = u32::try_from(start.as_secs()).unwrap_or(u32::MAX).max(1);
    let start = |id: u32| {
        let refused = |error: std::io::Error| Error::system(format!("node {id} can't be started"), error);
        let (mut command, socket) = match launcher {
            Some(launcher) => {
                let (ours, theirs) = UnixStream::pair().map_err(refused)?;
                let mut command = launcher.command(announcement, id)?;
                command.stdin(OwnedFd::from(theirs));
                (command, Some(ours))
            }
            None => (here(announcement), None),
        };
        command.env(NODE_ID, id.to_string()).env(JOIN_SECONDS, seconds.to_string()).env_remove(SPARE);
        command.env(STARTER, process::id().to_string());
        token.pass_on(&mut command);
        encrypts.map(|encrypts| command.env("DISCO_ENCRYPT", if encrypts { "1" } else { "0" }));
        log_dir.map(|folder| command.env(log_files::VARIABLE, folder));
        let child = command.spawn().map_err(refused)?;
        match socket {
            Some(socket) => NodeProcess::launcher(child, socket),
            None => NodeProcess::new(child),
        }
    };
    (announcement.first_node..).take(announcement.nodes).map(start).collect()
}

fn here(announcement: &Announcement) -> Command {
    let mut command = super::role::command();
    command.stdin(Stdio::null()).env(CONNECT, announcement.address.to_string());
    command
}
