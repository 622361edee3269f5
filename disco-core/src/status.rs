//! The state of a session for operators: the activity of its nodes and workers.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::activity::Progress;
use crate::id::WorkerId;
use crate::members::Members;
use crate::worker_range::WorkerRange;

/// A program of this machine that has sessions, as it describes itself.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Its process id.
    pub process: u32,
    /// Its name: the last part of the first word of its command line.
    pub program: String,
    /// Its sessions, in the order of their start; for a process that serves as a node, its part of the session.
    pub sessions: Vec<Status>,
    /// What the program says of itself, such as the requests of a server, by name.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
}

/// A snapshot of a session: [`LaneSession::status`](crate::session::LaneSession::status), or `disco status` for a session of
/// another process. As JSON, durations are numbers of seconds.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The process id of the controller, or of the node.
    pub process: u32,
    /// The number of the node whose part of the session this is; `None` for the whole session, as its controller knows it.
    #[serde(default)]
    pub node: Option<u32>,
    /// Time since the session began to start its workers.
    #[serde(with = "seconds")]
    pub uptime: Duration,
    /// Number of groups that the workers are split in.
    pub groups: usize,
    /// Number of the controller's last command.
    pub commands: u64,
    /// The loss of the session, or the failure that it has to recover from; `None` for a session without either.
    pub failure: Option<String>,
    /// The nodes, without the controller's own.
    pub nodes: Vec<NodeStatus>,
    /// All workers, in order.
    pub workers: Vec<WorkerStatus>,
    /// Processes and nodes that wait to take the places of lost ones.
    #[serde(default)]
    pub spares: Vec<SpareStatus>,
}

/// A process or a node that waits to take the place of a lost one.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpareStatus {
    /// The process id of a process of the controller's machine.
    pub process: Option<u32>,
    /// The name of a node's machine.
    pub name: Option<String>,
    /// Whether it can take a place at once; a process that is not ready has not reached its `main` yet.
    pub is_ready: bool,
    /// The connection of a node.
    pub connection: Option<ConnectionStatus>,
}

/// The state of a node and its connection.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node's number, from 1.
    pub node: u32,
    /// Its name in messages: its number, and the name of its machine once it has joined.
    pub name: String,
    /// Its first worker.
    pub first_worker: usize,
    /// Its number of workers.
    pub workers: usize,
    /// How far it is between its start and its end.
    pub state: NodeState,
    /// Its connection, while it is open.
    pub connection: Option<ConnectionStatus>,
}

/// How far a node is between its start and its end.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It has not been assigned its workers: some node has not joined.
    Expected,
    /// It starts its workers.
    Starting,
    /// All its workers have started.
    Running,
    /// Its connection is closed, for this reason.
    Ended(String),
}

/// The state of the connection to a node. The numbers of bytes and packets are those of TCP, so they include the
/// overhead of encryption, and are 0 if the system does not know them.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// The node's address.
    pub address: Option<SocketAddr>,
    /// Whether the connection is encrypted.
    pub is_encrypted: bool,
    /// Time since bytes came last. A node sends at least one heartbeat in each interval, by default 1 s.
    #[serde(with = "seconds")]
    pub silence: Duration,
    /// Mean round-trip time of packets, as TCP measures it.
    #[serde(with = "seconds::optional")]
    pub round_trip: Option<Duration>,
    /// Bytes sent that the node's machine has acknowledged.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Packets sent again, because they were not acknowledged in time.
    pub repeated_packets: u64,
    /// Bytes that wait in the controller until the socket takes them.
    pub waiting_bytes: u64,
    /// Bytes in the socket that the node's machine has not acknowledged.
    pub unacknowledged_bytes: u64,
}

/// The state of a worker. For workers of other processes it is at most one heartbeat interval old, by default 1 s; in a
/// tree of nodes one for each level.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The worker's number.
    pub worker: usize,
    /// Where the worker runs: `threads` or `processes` of the controller's machine, `nodes`, or `other`.
    pub kind: String,
    /// The process id of a worker on the machine of [`Status::process`]; `None` if it is on another machine or not known.
    #[serde(default)]
    pub process: Option<u32>,
    /// The id of the worker's thread, as Linux numbers threads; known for the same workers as `process`.
    #[serde(default)]
    pub thread: Option<u32>,
    /// Number of the last command received.
    pub received: u64,
    /// Number of the last command finished.
    pub finished: u64,
    /// Number of commands that the controller has sent and the worker has not finished.
    pub lag: u64,
    /// The worker function that the worker is inside.
    pub function: Option<String>,
    /// The collective or point-to-point operation that the worker is inside.
    pub operation: Option<String>,
    /// Time since the controller last learned that the worker had got further: for a worker inside a function or an
    /// operation, how long it has been there. `None` for threads of the controller, which are not watched.
    #[serde(with = "seconds::optional")]
    pub unchanged: Option<Duration>,
}

/// The state of a worker as its lane knows it, for [`Status::add_workers`].
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// How far the worker is.
    pub progress: Progress,
    /// Time since the lane saw `progress` change.
    pub unchanged: Option<Duration>,
    /// Process id and thread id of a worker on this machine.
    pub place: Option<(u32, u32)>,
}

impl Known {
    /// A worker of which only its progress is known.
    pub fn new(progress: Progress) -> Self {
        Self { progress, ..Self::default() }
    }
}

/// The name of this program: the last part of the path that it was started as.
pub fn program_name() -> String {
    let command = env::args_os().next().unwrap_or_default();
    Path::new(&command).file_name().unwrap_or(&command).display().to_string()
}

impl Status {
    /// Where the workers run: the kind of the last worker, since lanes to other processes and machines come last. `none`
    /// without workers.
    pub fn kind(&self) -> &str {
        self.workers.last().map_or("none", |worker| &worker.kind)
    }

    /// Keeps the last entry of each place and node, in their order: lanes to new workers come behind those of the lost
    /// ones that they have replaced. Then gives the workers their numbers in place of their places.
    pub(crate) fn keep_last(&mut self, members: &Members) {
        self.workers.reverse();
        self.workers.sort_by_key(|worker| worker.worker);
        self.workers.dedup_by_key(|worker| worker.worker);
        self.nodes.reverse();
        // Not by number: lanes that a program has made count their nodes from 1 each.
        self.nodes.sort_by_key(|node| node.first_worker);
        self.nodes.dedup_by_key(|node| node.first_worker);
        self.workers.retain_mut(|worker| {
            let number = members.worker(WorkerId::new(worker.worker as u32));
            worker.worker = number.map_or(worker.worker, WorkerId::index);
            number.is_some()
        });
        self.nodes.retain_mut(|node| {
            let first = node.first_worker as u32;
            let workers = members.workers(WorkerRange::new(first..first + node.workers as u32));
            (node.first_worker, node.workers) = (workers.first().index(), workers.len());
            node.workers > 0
        });
    }

    /// Adds workers of kind `kind`, as [`WorkerStatus::kind`] lists them. `known` returns the lane's knowledge of a
    /// worker.
    pub fn add_workers(&mut self, kind: &str, workers: WorkerRange, known: impl Fn(WorkerId) -> Known) {
        for worker in workers {
            let Known { progress, unchanged, place } = known(worker);
            self.workers.push(WorkerStatus {
                worker: worker.index(),
                kind: kind.to_owned(),
                process: place.map(|(process, _)| process),
                thread: place.map(|(_, thread)| thread),
                received: progress.received,
                finished: progress.finished,
                lag: self.commands.saturating_sub(progress.finished),
                function: progress.inside.as_ref().map(|name| name.to_string()),
                operation: progress.collective().map(ToString::to_string),
                unchanged,
            });
        }
    }
}

impl SpareStatus {
    /// A process of this machine.
    pub const fn process(process: Option<u32>, is_ready: bool) -> Self {
        Self { process, name: None, is_ready, connection: None }
    }

    /// A node on the machine `name`.
    pub const fn node(name: String, connection: ConnectionStatus) -> Self {
        Self { process: None, name: Some(name), is_ready: true, connection: Some(connection) }
    }
}

impl NodeStatus {
    /// A node without a connection.
    pub const fn new(node: u32, name: String, workers: WorkerRange, state: NodeState) -> Self {
        Self { node, name, first_worker: workers.first().index(), workers: workers.len(), state, connection: None }
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NodeState::Expected => "expected",
            NodeState::Starting => "starting",
            NodeState::Running => "running",
            NodeState::Ended(why) => return write!(f, "ended: {why}"),
        })
    }
}

/// Durations as numbers of seconds, with microseconds.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de};

    /// A longer time is invalid. Times below can be written and read without a change: their microseconds fit in an
    /// `f64`.
    const MAX: Duration = Duration::from_secs(1 << 30);

    fn to_seconds(time: Duration) -> f64 {
        (time.min(MAX).as_secs_f64() * 1e6).round() / 1e6
    }

    fn of_seconds<E: de::Error>(seconds: f64) -> Result<Duration, E> {
        let time = Duration::try_from_secs_f64(seconds).map_err(E::custom)?;
        if time <= MAX { Ok(time) } else { Err(E::custom("a time of more than 34 years")) }
    }

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to_seconds(*time).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        of_seconds(f64::deserialize(from)?)
    }

    pub(super) mod optional {
        use super::*;

        pub(in super::super) fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
            time.map(to_seconds).serialize(to)
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
            Option::<f64>::deserialize(from)?.map(of_seconds).transpose()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_the_same_after_it_was_json() {
        let mut status = Status { uptime: Duration::from_millis(1500), commands: 7, ..Status::default() };
        let connection = ConnectionStatus {
            address: Some("[::1]:4567".parse().unwrap()),
            round_trip: Some(Duration::from_micros(250)),
            ..ConnectionStatus::default()
        };
        let state = NodeState::Ended("no message came from it for 5s".into());
        let mut node = NodeStatus::new(1, "node 1 (host)".into(), WorkerRange::new(1..2), state);
        node.connection = Some(connection);
        status.nodes.push(node);
        let (unchanged, place) = (Some(Duration::from_millis(250)), Some((10, 11)));
        let known = |_| Known { progress: Progress::new(6, 5), unchanged, place };
        status.add_workers("nodes", WorkerRange::new(1..2), known);
        assert_eq!(status.kind(), "nodes");
        let json = serde_json::to_string(&status).unwrap();
        assert!(json.contains(r#""uptime":1.5"#) && json.contains(r#""lag":2"#), "{json}");
        assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
        let long = json.replace("1.5", "1e300");
        assert!(serde_json::from_str::<Status>(&long).is_err());
    }
}
