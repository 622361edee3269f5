//! What all workers of a session are told at the start.

use std::time::Duration;

use crate::world::World;

/// How workers of a session behave; alike on all of them.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// All workers and their groups.
    pub world: World,
    /// How long one collective may take, from entry.
    pub collective_deadline: Duration,
    /// How long to wait for peers to connect.
    pub connect_deadline: Duration,
    /// Bytes of the values of one command or of one reply, together, that may cross to another process. Up to 64 KiB always may.
    pub value_limit: usize,
    /// Ranks exchange signatures through the store before each collective (`DISCO_CHECK=1`).
    pub check: bool,
}

impl WorkerConfig {
    /// Limit of the values of one command or reply, in bytes, by default: 1 GiB.
    pub const VALUE_LIMIT: usize = 1 << 30;

    /// Defaults: 5 minutes, 30 s, [`VALUE_LIMIT`](Self::VALUE_LIMIT), no checks.
    pub fn new(world: World) -> Self {
        let (collective_deadline, connect_deadline) = (Duration::from_secs(300), Duration::from_secs(30));
        Self { world, collective_deadline, connect_deadline, value_limit: Self::VALUE_LIMIT, check: false }
    }
}
