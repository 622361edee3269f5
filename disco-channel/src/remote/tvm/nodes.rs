//! Nodes of TVM (`tvm.exec.disco_remote_socket_session`), which connect to this program.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::wire::tvm::Metadata;
use disco_core::{Error, Result, WorkerConfig, WorkerRange};
use rustix::event::{PollFd, PollFlags};

use super::address::{self, Authentication};
use super::connection::Connection;
use super::opened::Opened;
use crate::remote::nodes::loopback;
use crate::remote::reactor::poll;

/// Options of a [`Lane`](super::Lane) to nodes.
#[non_exhaustive]
#[derive(Clone)]
pub struct NodeOptions {
    /// Where this program listens: `HOST:PORT`, port 0 for any free port.
    pub listen: String,
    /// Number of nodes. Each has the same number of workers.
    pub nodes: usize,
    /// The world, and the limit of values.
    pub config: WorkerConfig,
    /// Whether addresses other than the loopback's are permitted.
    pub authentication: Authentication,
    /// Timeout for the nodes to connect and for their workers to answer.
    pub start: Duration,
    /// Called with the address once this program listens.
    pub announce: Arc<dyn Fn(SocketAddr) + Send + Sync>,
}

impl NodeOptions {
    /// `nodes` nodes. Defaults: a free port of the loopback, start timeout 60 s.
    pub fn new(nodes: usize, config: WorkerConfig) -> Self {
        let announce = Arc::new(|address: SocketAddr| tracing::info!(%address, "waits for nodes of TVM"));
        let (listen, start) = (format!("{}:0", loopback()), Duration::from_secs(60));
        Self { listen, nodes, config, authentication: Authentication::Required, start, announce }
    }
}

impl std::fmt::Debug for NodeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeOptions").field("listen", &self.listen).field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

/// Waits for the nodes of `workers`, in the order in which they connect.
///
/// # Errors
/// The address is not permitted or in use; the workers can't be divided; a node does not connect in time.
pub(super) fn open(workers: WorkerRange, options: &NodeOptions) -> Result<Opened> {
    let NodeOptions { listen, nodes, config, start, .. } = options;
    if *nodes == 0 || workers.is_empty() || !workers.len().is_multiple_of(*nodes) {
        return Err(Error::invalid(format!("{workers} can't be divided into {nodes} nodes of TVM")));
    }
    let per_node = workers.len() / nodes;
    let first = workers.first().index();
    if !first.is_multiple_of(per_node) || !config.world.size().is_multiple_of(per_node) {
        return Err(Error::invalid(format!(
            "{workers} of a world of {} workers: with {per_node} on each node, TVM's numbers of nodes don't fit",
            config.world.size()
        )));
    }
    let begun = Instant::now();
    let addresses = address::resolve("the controller of TVM's nodes", listen, options.authentication)?;
    let refused = |error| Error::system(format!("{listen} can't be listened at for nodes of TVM"), error);
    let listener = TcpListener::bind(&addresses[..]).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    (options.announce)(listener.local_addr().map_err(refused)?);
    let mut connections = Vec::new();
    for (index, workers) in workers.chunks(per_node).enumerate() {
        let stream = accept(&listener, *start, begun).map_err(|error| {
            error.unwrap_or_else(|| Error::Deadline {
                operation: "start of TVM's nodes".into(),
                after: *start,
                state: format!("{index} of {nodes} nodes have connected"),
            })
        })?;
        let metadata = Metadata {
            nodes: (config.world.size() / per_node) as u32,
            workers_per_node: per_node as u32,
            groups: config.world.groups() as u32,
            node: (first / per_node + index) as u32,
        };
        connections.push(connection(workers, stream, metadata, config.value_limit));
    }
    Ok(Opened { connections, output: None, last_lines: Arc::default() })
}

/// Accepts a connection. The error is none at the deadline.
fn accept(listener: &TcpListener, limit: Duration, begun: Instant) -> Result<TcpStream, Option<Error>> {
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        match listener.accept() {
            Ok((stream, address)) => {
                tracing::info!(%address, "a node of TVM has connected");
                return Ok(stream);
            }
            Err(_) if left.is_zero() => return Err(None),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(listener, PollFlags::IN)], left);
            }
            // The node has closed its connection before it was accepted.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(Some(Error::system("a connection of a node of TVM", error))),
        }
    }
}

fn connection(workers: WorkerRange, stream: TcpStream, metadata: Metadata, value_limit: usize) -> Connection {
    // Each command is a small packet of its own.
    _ = stream.set_nodelay(true);
    let mut connection = Connection::new(workers, stream.into(), None, true, value_limit);
    connection.introduce(metadata.encode());
    connection
}
