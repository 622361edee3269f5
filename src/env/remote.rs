//! Settings of workers outside of this process.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use disco_channel::nodes::{Announce, Announcement};
use disco_core::Result;
use disco_core::env::Variable;

use super::{Launched, Settings};
use crate::remote::start_nodes::NodeLauncher;
use crate::{Builder, SessionKind};

/// Environment variable with the socket where `disco run` learns that its program has read the settings.
pub const READ_SETTINGS: &str = "DISCO_RUN_SOCKET";

/// Tells `disco run` that its program has read the settings.
pub(super) fn tell_run() {
    let socket = Variable::read(READ_SETTINGS);
    let Ok(Some(name)) = socket.text() else { return };
    let tell = || UnixDatagram::unbound()?.send_to_addr(&[0], &SocketAddr::from_abstract_name(name)?);
    // Fails if the settings were read before.
    _ = tell();
}

/// The tasks of a launcher, if this process is the first of several.
///
/// # Errors
/// Another process has the socket of the job.
pub(super) fn launched() -> Result<Option<Launched>> {
    #[cfg(feature = "mpi")]
    if let Some(tasks) = crate::remote::ranks::count() {
        // A session on several machines becomes one of nodes when it starts.
        return Ok(Some(Launched { tasks, kind: SessionKind::Processes, are_ranks: true }));
    }
    let tasks = crate::remote::tasks::tasks()?;
    Ok(tasks.map(|tasks| Launched { tasks: tasks.size(), kind: tasks.kind(), are_ranks: false }))
}

/// A builder with the settings of processes and nodes.
pub(super) fn configure(builder: Builder, settings: &Settings) -> Builder {
    let builder = builder.apart(settings.apart).process_options(|processes| {
        processes.log_dir.clone_from(&settings.log_dir);
        processes.spares = settings.spares;
    });
    if settings.session != SessionKind::Nodes {
        return builder;
    }
    builder.node_options(|nodes| {
        nodes.count = settings.nodes;
        nodes.listen.clone_from(&settings.listen);
        match &settings.node_launcher {
            Some(program) => {
                nodes.launcher = Some(NodeLauncher { program: program.clone(), hosts: settings.hosts.clone() });
            }
            None => nodes.announce = Some(Announce::new(show_command)),
        }
    })
}

/// Prints how other nodes join.
fn show_command(announcement: &Announcement) -> Result<()> {
    let (nodes, address, command) = (announcement.nodes, announcement.address, announcement.command());
    let mut text = format!("disco: waiting for {nodes} more; on each: {command}");
    if address.ip().is_loopback() {
        let everywhere = if address.is_ipv6() { "[::]" } else { "0.0.0.0" };
        text += &format!(
            "\ndisco: only this machine reaches {address}; other machines join with `--listen {everywhere}:{}`, or DISCO_LISTEN",
            address.port()
        );
    }
    disco_core::tell(text);
    Ok(())
}
