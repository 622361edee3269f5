//! Configuration of the workers of a session.

use std::net::IpAddr;
use std::time::Duration;

use crate::activity::RecorderConfig;
use crate::world::World;

/// Configuration of the workers of a session, the same for all of them but for the [`Uplink`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// All workers and their groups.
    pub world: World,
    /// Limit for one collective, from its call.
    pub collective_deadline: Duration,
    /// Limit for the wait for peers to connect.
    pub connect_deadline: Duration,
    /// Largest total size, in bytes, of the values of one command or reply that is sent to another process. Up to 64
    /// KiB are always permitted.
    pub value_limit: usize,
    /// Ranks exchange signatures through the store before each collective (`DISCO_CHECK=1`).
    pub check: bool,
    /// The kinds of records that workers keep, and their number.
    pub recorder: RecorderConfig,
    /// The connection of the workers' node; none for workers on the controller's machine, and for nodes of TVM's sessions.
    pub uplink: Option<Uplink>,
}

/// The connection of a node to the session's controller, or to the node that relays for it. Its path through the network works,
/// so a backend whose ranks connect over the network tries its addresses first.
#[allow(clippy::exhaustive_structs, reason = "the two ends of a connection, and whether it is encrypted")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// The address of the node.
    pub own: IpAddr,
    /// The address of the other end.
    pub upper: IpAddr,
    /// Whether the connection is encrypted, as those between ranks are then.
    pub is_encrypted: bool,
}

impl WorkerConfig {
    /// Default limit of the values of one command or reply, in bytes: 1 GiB.
    pub const VALUE_LIMIT: usize = 1 << 30;

    /// Defaults: 5 minutes, 30 s, [`VALUE_LIMIT`](Self::VALUE_LIMIT), no checks, [`RecorderConfig::DEFAULT`].
    pub fn new(world: World) -> Self {
        let (collective_deadline, connect_deadline) = (Duration::from_secs(300), Duration::from_secs(30));
        let (value_limit, check, recorder) = (Self::VALUE_LIMIT, false, RecorderConfig::DEFAULT);
        Self { world, collective_deadline, connect_deadline, value_limit, check, recorder, uplink: None }
    }

    /// The same configuration for the workers of another world.
    #[must_use]
    pub const fn in_world(self, world: World) -> Self {
        Self { world, ..self }
    }

    /// The configuration of the workers of a subset, which keep no timeline, with a limit of its own for one collective, if it is
    /// given.
    #[must_use]
    pub fn in_subset(self, world: World, collective_deadline: Option<Duration>) -> Self {
        let collective_deadline = collective_deadline.unwrap_or(self.collective_deadline);
        Self { world, collective_deadline, recorder: RecorderConfig::DEFAULT, ..self }
    }
}
