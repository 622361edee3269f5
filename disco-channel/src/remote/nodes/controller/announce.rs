//! Announces the address to which nodes connect.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use disco_core::Result;

use super::children::NodeProcess;
use crate::remote::nodes::addresses;

/// A callback that gets the address to which nodes connect, once the lane listens there.
#[derive(Clone)]
pub struct Announce {
    callback: Arc<Callback>,
    is_repeatable: bool,
}

type Callback = dyn Fn(&Announcement) -> Result<Vec<NodeProcess>> + Send + Sync;

/// The address to which nodes connect, and how many nodes the session needs.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Announcement {
    /// The address at which the controller listens.
    pub address: SocketAddr,
    /// Number of the first node that is to connect: 1, or the number of the first lost node or the first additional one.
    pub first_node: u32,
    /// Number of nodes that are to connect, besides those that stand by.
    pub nodes: usize,
    /// Number of workers of each node.
    pub per_node: usize,
}

impl Announce {
    pub(super) fn publish(&self, announcement: &Announcement) -> Result<Vec<NodeProcess>> {
        (self.callback)(announcement)
    }

    /// Whether the announcement may be repeated, for nodes in place of lost ones.
    pub(super) fn is_repeatable(&self) -> bool {
        self.is_repeatable
    }

    /// The launcher of the nodes can't start other nodes in place of lost ones.
    pub fn only_once(self) -> Self {
        Self { is_repeatable: false, ..self }
    }

    /// Calls `announce` with the address. An error of it fails the start of the lane.
    pub fn new(announce: impl Fn(&Announcement) -> Result<()> + Send + Sync + 'static) -> Self {
        Self::starting(move |announcement| announce(announcement).map(|()| Vec::new()))
    }

    /// Calls `start`, which starts all nodes and returns their processes in the order of nodes. An error of it fails
    /// the start of the lane. Processes that do not end with the session are killed.
    pub fn starting(start: impl Fn(&Announcement) -> Result<Vec<NodeProcess>> + Send + Sync + 'static) -> Self {
        Self { callback: Arc::new(start), is_repeatable: true }
    }
}

impl Announcement {
    /// The addresses by which other machines may reach the controller, each as `HOST:PORT`. If the controller listens
    /// on all interfaces, these are the name of this machine and the addresses of its interfaces.
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

    /// The command that starts a node on another machine, for a session of this program. `FILE` stands for the token
    /// file.
    pub fn command(&self) -> String {
        let host = if self.address.ip().is_unspecified() {
            rustix::system::uname().nodename().to_string_lossy().into_owned()
        } else {
            self.address.ip().to_string()
        };
        let address = addresses::host_and_port(&host, self.address.port());
        let program: Vec<_> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        format!("disco worker --connect {address} --token-file FILE -- {}", program.join(" "))
    }
}

impl Default for Announce {
    /// Logs the address.
    fn default() -> Self {
        Self::new(|announcement| {
            tracing::info!(address = %announcement.address, nodes = announcement.nodes, "waiting for nodes");
            Ok(())
        })
    }
}

disco_core::format_as!(Debug for Announce, |_| "Announce");
