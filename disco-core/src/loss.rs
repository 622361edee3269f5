//! Lost peers and the causes of their loss.

use std::fmt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use crate::id::Rank;
use crate::worker_range::WorkerRange;

/// A peer that is lost.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Which peer.
    pub peer: LostPeer,
    /// How the loss was noticed.
    pub cause: LossCause,
    /// The last operations of all workers as a table, if the session has compared them.
    pub records: Option<Arc<str>>,
}

/// Which peer is lost.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostPeer {
    /// The controller, as a worker process or a node sees it.
    Controller,
    /// Workers: threads or processes.
    Workers {
        /// Which workers.
        workers: WorkerRange,
        /// Their node, if it is not the controller's.
        node: Option<Node>,
    },
    /// A node with all its workers.
    Node {
        /// Which node.
        node: Node,
        /// Number of the nodes that it relayed for, which are lost with it. Their numbers follow its own.
        behind: u32,
        /// Its workers, and those of the nodes behind it.
        workers: WorkerRange,
    },
    /// A rank of a communicator.
    Rank(Rank),
}

/// A node of a session.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number, from 1: the controller is on node 0.
    pub number: u32,
    /// Its name in texts: `node 1 (host)`.
    pub name: String,
}

/// How a loss was noticed.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// The peer closed its connection without a reason.
    ConnectionClosed,
    /// The system reports that the connection failed.
    ConnectionFailed(String),
    /// The process of the peer ended.
    ProcessEnded {
        /// How it ended.
        end: ProcessEnd,
        /// Whether the process had connected to its controller before.
        connected: bool,
    },
    /// The thread of the worker ended before the session was shut down; the error that it ended with, if there is one.
    ThreadEnded(Option<String>),
    /// The thread of the worker panicked; the text of the panic.
    Panicked(String),
    /// No complete packet arrived from the peer for this time.
    Silent(Duration),
    /// The peer violated the protocol; how.
    ProtocolViolation(String),
    /// The peer left this number of bytes unread.
    Unread(usize),
    /// The peer has closed its connection, and its machine has not acknowledged about this number of bytes although the
    /// system has sent them several times: large packets do not arrive, small ones do.
    Unacknowledged(usize),
    /// The peer closed its connection and sent this reason.
    ClosedWithReason(String),
    /// The peer was refused when it joined, or it refuses this process; why.
    Refused(String),
    /// The rank dropped its communicator while other ranks waited for it.
    CommunicatorDropped,
    /// Anything else.
    Other(String),
}

/// How a process ended.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it.
    Signaled {
        /// The number of the signal.
        signal: i32,
        /// Whether the system has written a core dump.
        core_dumped: bool,
    },
    /// The process ended. Its status is unknown, because the system reports it only to the parent process.
    Unknown,
}

impl Loss {
    /// `peer` is lost because of `cause`.
    pub const fn new(peer: LostPeer, cause: LossCause) -> Self {
        Self { peer, cause, records: None }
    }

    /// The same loss, of `workers`.
    pub(crate) fn of_workers(&self, workers: WorkerRange) -> Self {
        let mut loss = self.clone();
        if let LostPeer::Workers { workers: lost, .. } | LostPeer::Node { workers: lost, .. } = &mut loss.peer {
            *lost = workers;
        }
        loss
    }

    /// The workers that are lost. Empty if the peer is the controller or a rank.
    pub const fn workers(&self) -> WorkerRange {
        match &self.peer {
            LostPeer::Workers { workers, .. } | LostPeer::Node { workers, .. } => *workers,
            LostPeer::Controller | LostPeer::Rank(_) => WorkerRange::new(0..0),
        }
    }

    /// The cause in words that fit the peer.
    pub fn why(&self) -> String {
        match (&self.peer, &self.cause) {
            (LostPeer::Controller, LossCause::ConnectionClosed) => "it closed the connection".to_owned(),
            (LostPeer::Controller, LossCause::ClosedWithReason(why)) => format!("it closed the connection: {why}"),
            (LostPeer::Controller, LossCause::Refused(why)) => format!("it refuses this node: {why}"),
            (LostPeer::Workers { node: Some(node), .. }, cause) => format!("on {}: {cause}", node.name),
            (_, cause) => cause.to_string(),
        }
    }

    /// The node that is lost, or that the lost workers are on. None for workers of the controller's node.
    pub const fn node(&self) -> Option<&Node> {
        match &self.peer {
            LostPeer::Node { node, .. } => Some(node),
            LostPeer::Workers { node, .. } => node.as_ref(),
            LostPeer::Controller | LostPeer::Rank(_) => None,
        }
    }
}

impl Node {
    /// Node `number`, called `name` in texts.
    pub fn new(number: u32, name: impl Into<String>) -> Self {
        Self { number, name: name.into() }
    }
}

impl From<ExitStatus> for ProcessEnd {
    fn from(status: ExitStatus) -> Self {
        #[cfg(unix)]
        {
            use std::os::unix::process::ExitStatusExt as _;
            if let Some(signal) = status.signal() {
                return Self::Signaled { signal, core_dumped: status.core_dumped() };
            }
        }
        status.code().map_or(Self::Unknown, Self::Exited)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lost: {}", self.peer, self.why())?;
        self.records.as_ref().map_or(Ok(()), |table| f.write_str(table))
    }
}

impl fmt::Display for LostPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LostPeer::Controller => f.write_str("the controller"),
            LostPeer::Workers { workers, .. } => workers.fmt(f),
            LostPeer::Node { node, behind: 0, workers } => write!(f, "{} with {workers}", node.name),
            LostPeer::Node { node, behind: 1, workers } => {
                write!(f, "{} with node {}, which it relayed for, and {workers}", node.name, node.number + 1)
            }
            LostPeer::Node { node, behind, workers } => {
                let (first, last) = (node.number + 1, node.number.saturating_add(*behind));
                write!(f, "{} with nodes {first} to {last}, which it relayed for, and {workers}", node.name)
            }
            LostPeer::Rank(rank) => rank.fmt(f),
        }
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossCause::ConnectionClosed => f.write_str("its connection was closed"),
            LossCause::ProcessEnded { end, connected } => {
                f.write_str("its process ended")?;
                if *end != ProcessEnd::Unknown {
                    write!(f, ": {end}")?;
                }
                match end {
                    _ if *connected => Ok(()),
                    ProcessEnd::Exited(0) | ProcessEnd::Unknown => {
                        f.write_str(" before it connected; does its `main` call `disco::init()` first?")
                    }
                    ProcessEnd::Exited(_) => {
                        f.write_str(" before it connected; its standard error may have the reason")
                    }
                    ProcessEnd::Signaled { .. } => f.write_str(" before it connected"),
                }
            }
            LossCause::ThreadEnded(None) => f.write_str("its thread ended before shutdown"),
            LossCause::ThreadEnded(Some(error)) => write!(f, "its thread ended: {error}"),
            LossCause::Panicked(text) => write!(f, "its thread panicked: {text}"),
            LossCause::Silent(limit) => write!(f, "no message came from it for {limit:?}"),
            LossCause::Unread(bytes) => write!(f, "it has left {bytes} bytes unread"),
            LossCause::Unacknowledged(bytes) => write!(
                f,
                "its machine has not acknowledged about {bytes} bytes, although its own messages arrive: packets of full \
                 size may be dropped on the way; compare the MTU of the interfaces and routers between the two machines \
                 (`ip link`, `tracepath`)"
            ),
            LossCause::CommunicatorDropped => f.write_str("its communicator was dropped while others waited for it"),
            LossCause::ConnectionFailed(text)
            | LossCause::ProtocolViolation(text)
            | LossCause::ClosedWithReason(text)
            | LossCause::Refused(text)
            | LossCause::Other(text) => f.write_str(text),
        }
    }
}

/// The format is that of the standard library for an [`ExitStatus`].
impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ProcessEnd::Exited(code) => write!(f, "exit status: {code}"),
            #[cfg(unix)]
            ProcessEnd::Signaled { signal, core_dumped } => {
                use std::os::unix::process::ExitStatusExt as _;
                ExitStatus::from_raw(signal & 0x7f | i32::from(core_dumped) << 7).fmt(f)
            }
            #[cfg(not(unix))]
            ProcessEnd::Signaled { signal, .. } => write!(f, "signal: {signal}"),
            ProcessEnd::Unknown => f.write_str("unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_names_the_peer_its_node_and_the_cause() {
        let node = || Node::new(1, "node 1 (host)");
        let text = |peer, cause| Loss::new(peer, cause).to_string();
        let workers = WorkerRange::new(2..4);
        let silent = || LossCause::Silent(Duration::from_secs(5));
        assert_eq!(
            text(LostPeer::Node { node: node(), behind: 0, workers }, silent()),
            "node 1 (host) with workers 2 to 3 lost: no message came from it for 5s"
        );
        assert_eq!(
            text(LostPeer::Node { node: node(), behind: 2, workers }, silent()),
            "node 1 (host) with nodes 2 to 3, which it relayed for, and workers 2 to 3 lost: no message came from it for 5s"
        );
        let killed =
            LossCause::ProcessEnded { end: ProcessEnd::Signaled { signal: 9, core_dumped: false }, connected: true };
        assert_eq!(
            text(LostPeer::Workers { workers: WorkerRange::new(2..3), node: Some(node()) }, killed),
            "worker 2 lost: on node 1 (host): its process ended: signal: 9 (SIGKILL)"
        );
        assert_eq!(
            text(LostPeer::Controller, LossCause::ClosedWithReason("no".into())),
            "the controller lost: it closed the connection: no"
        );
    }

    #[test]
    #[cfg(unix)]
    fn the_end_of_a_process_is_printed_as_by_the_standard_library() {
        use std::os::unix::process::ExitStatusExt as _;
        for raw in [0, 256, 3 << 8, 9, 6 | 0x80] {
            let status = ExitStatus::from_raw(raw);
            assert_eq!(ProcessEnd::from(status).to_string(), status.to_string());
        }
    }
}
