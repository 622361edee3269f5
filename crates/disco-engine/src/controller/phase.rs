//! The life of a lane.

use std::time::Instant;

/// The phase of the lane between its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Peers join and start their workers, since this time.
    Starting(Instant),
    Running,
    /// The session closes the lane. Peers have until this time to leave by themselves.
    Closing(Option<Instant>),
    /// Peers were told to leave at once, and have until this time.
    Grace(Instant),
    /// The lane was dropped. Worker processes have until this time to leave.
    Dropped(Instant),
    /// Connections are closed. Remaining processes are killed at this time; `None`: they were killed, as is each that
    /// is found later.
    Ending {
        kill: Option<Instant>,
    },
    /// All peers have ended.
    Over,
}

/// Whether and how peers were told to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leave {
    /// Not told: a peer that ends is lost.
    No,
    /// By a command, in order: a peer that ends without having left properly is lost.
    InOrder,
    /// By a signal: the lane takes no more frames, and a peer that ends is not lost.
    AtOnce,
}
