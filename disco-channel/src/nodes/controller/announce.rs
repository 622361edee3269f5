//! Where nodes are to connect, told to whom it concerns.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use disco_core::Result;

use super::children::NodeProcess;
use crate::nodes::addresses;

/// Takes where nodes are to connect, once somebody listens there.
#[derive(Clone)]
pub struct Announce(Arc<Tell>);

type Tell = dyn Fn(&Announcement) -> Result<Vec<NodeProcess>> + Send + Sync;

/// Where nodes are to connect.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Announcement {
    /// The address.
    pub address: SocketAddr,
    /// How many are to come.
    pub nodes: usize,
    /// How many workers each has.
    pub per_node: usize,
}

impl Announce {
    pub(super) fn tell(&self, announcement: &Announcement) -> Result<Vec<NodeProcess>> {
        (self.0)(announcement)
    }

    /// Calls this; its error ends the start.
    pub fn new(announce: impl Fn(&Announcement) -> Result<()> + Send + Sync + 'static) -> Self {
        Self::starting(move |announcement| announce(announcement).map(|()| Vec::new()))
    }

    /// Calls this, which starts all nodes, the first one first; its error ends the start. They are killed if they do not end with the
    /// session.
    pub fn starting(start: impl Fn(&Announcement) -> Result<Vec<NodeProcess>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(start))
    }
}

impl Announcement {
    /// What others may reach the address by, each as `HOST:PORT`: where it is that of all interfaces, the name of this machine and
    /// what addresses its interfaces have.
    pub fn addresses(&self) -> Vec<String> {
        let (ip, port) = (self.address.ip(), self.address.port());
        if !ip.is_unspecified() {
            return vec![self.address.to_string()];
        }
        let addresses = addresses::of_this_machine().into_iter().filter(|address| ip.is_ipv6() || address.is_ipv4());
        let addresses = addresses.map(|address: IpAddr| SocketAddr::new(address, port).to_string());
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        std::iter::once(format!("{name}:{port}")).chain(addresses).collect()
    }

    /// The command that joins on another machine, for a session of this program; `FILE` stands for the file with the token.
    pub fn command(&self) -> String {
        let host = match self.address.ip().is_unspecified() {
            true => rustix::system::uname().nodename().to_string_lossy().into_owned(),
            false => self.address.ip().to_string(),
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let program: Vec<_> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let (port, per_node) = (self.address.port(), self.per_node);
        format!(
            "disco worker --connect {host}:{port} --workers-per-node {per_node} --token-file FILE -- {}",
            program.join(" ")
        )
    }
}

impl Default for Announce {
    /// Logs it.
    fn default() -> Self {
        Self::new(|announcement| {
            tracing::info!(address = %announcement.address, nodes = announcement.nodes, "waiting for nodes");
            Ok(())
        })
    }
}

impl fmt::Debug for Announce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Announce")
    }
}
