//! The nodes for which a node relays: where they connect, and the lane to them.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use disco_core::link::Shared;
use disco_core::wire::Assignment;
use disco_core::{Error, Inbox, Result, WorkerRange, sync};
use disco_engine::controller::{MAX_PENDING, Missing, NodeTerms, Terms, Tree};
use disco_engine::handshake::Secret;
use disco_engine::tree::Forest;

use crate::remote::lane::{Peers, Running};
use crate::remote::nodes::addresses;
use crate::remote::nodes::controller::{self, Sink};

/// The listener of a node that relays.
#[derive(Debug)]
pub(super) struct Listener {
    listener: TcpListener,
    addresses: Vec<String>,
}

/// The children of a node, which is their controller.
pub(super) struct Children {
    /// Taken at the start.
    parts: Mutex<Option<(TcpListener, Sink)>>,
    secret: Secret,
    assignment: Assignment,
    forest: Forest,
}

impl Listener {
    /// Listens at `own`, this node's address towards its controller, on any free port. If that is a loopback address and
    /// children may be on other machines, listens on all interfaces.
    ///
    /// # Errors
    /// The system refuses the listener.
    pub(super) fn bind(mut own: SocketAddr, everywhere: bool) -> Result<Self> {
        let refused = |error| Error::system("a node can't listen for the nodes that it relays for", error);
        let is_everywhere = everywhere && own.ip().is_loopback();
        // Keeps the interface of a link-local address.
        own.set_port(0);
        let listener = if is_everywhere {
            TcpListener::bind(format!("{}:0", addresses::everywhere()))
        } else {
            TcpListener::bind(own)
        };
        let listener = listener.map_err(refused)?;
        let port = listener.local_addr().map_err(refused)?.port();
        let ips = if is_everywhere { addresses::of_this_machine() } else { vec![own.ip()] };
        let addresses = ips.into_iter().map(|ip| SocketAddr::new(ip, port).to_string()).collect();
        Ok(Self { listener, addresses })
    }

    /// The addresses at which children reach this node, each as `HOST:PORT`.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }
}

impl Children {
    /// The children in `assignment`, which connect to `listener`. Lines of their workers go to `sink`.
    ///
    /// # Errors
    /// The assignment is contradictory.
    pub(super) fn new(listener: Listener, secret: Secret, assignment: &Assignment, sink: Sink) -> Result<Self> {
        let (forest, assignment) = (Forest::new(assignment.behind.clone())?, assignment.clone());
        Ok(Self { parts: Mutex::new(Some((listener.listener, sink))), secret, assignment, forest })
    }
}

impl Peers for Children {
    const NAME: &'static str = "nodes behind this one,";

    fn value_limit(&self) -> usize {
        self.assignment.config.value_limit
    }

    fn bring_up(&self, workers: WorkerRange, shared: Arc<Shared>, inbox: Arc<dyn Inbox>) -> Result<Running> {
        let twice = || Error::state("the lane to the nodes behind this one was started before");
        let (listener, sink) = sync::lock(&self.parts).take().ok_or_else(twice)?;
        let Assignment { node, config, silence, .. } = self.assignment;
        let terms = NodeTerms {
            secret: self.secret.clone(),
            world: config.world,
            tree: Tree::Fixed { parent: node, forest: self.forest.clone() },
            names: Vec::new(),
            per_node: workers.len() / self.forest.nodes().max(1),
            silence,
            max_pending: MAX_PENDING.max(self.forest.nodes()),
            stays_open: false,
            has_standby: false,
            missing: Missing::default(),
            report: |_| {},
        };
        let terms = Terms::Nodes(terms, Assignment { workers, ..self.assignment.clone() });
        let served = controller::serve(listener, terms, 0, (shared, inbox.clone()), sink, Default::default())?;
        Ok(Running::new(served, None, inbox))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_node_listens_on_other_interfaces_than_its_own_only_if_children_are_on_other_machines() {
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 4000));
        let near = Listener::bind(own, false).unwrap();
        assert_eq!(near.addresses(), [near.listener.local_addr().unwrap().to_string()]);
        let far = Listener::bind(own, true).unwrap();
        assert!(far.listener.local_addr().unwrap().ip().is_unspecified());
        assert!(far.addresses().iter().all(|address| !address.starts_with("127.")));
    }
}
