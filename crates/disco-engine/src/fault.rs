//! Faults that tests plant in an engine, to check that the simulation finds them.

/// A violation of the protocol that a test can plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A member sends no heartbeats.
    NoHeartbeat,
    /// A member acknowledges each frame twice.
    DoubleCredit,
    /// An abort of an epoch that is over ends the requests of the current one.
    OldAbort,
    /// The message that a worker has left overtakes its last reply.
    EarlyDeparture,
    /// The controller sends no heartbeats.
    SilentController,
    /// A thread that submits a frame does not wake the reactor thread for an earlier timeout.
    MissedWake,
    /// The ring waits for a worker process that has ended.
    NotRetired,
    /// The controller ignores a node's report that a worker is lost.
    LossIgnored,
    /// A worker's line is printed twice.
    DoubleOutput,
    /// A worker process is reported as lost before its exit status can be known.
    NoStatus,
    /// The lane ends while processes of nodes that the session has started still run.
    ChildrenLeft,
    /// A worker process is reported twice as having left.
    DoubleDeparture,
    /// A reply has the number of another command.
    StrayReply,
    /// A controller that did not run for a long time counts that time as silence of its peers.
    NoExcuse,
    /// A node that waits for its workers at the end sends no heartbeats.
    SilentLeave,
    /// Small commands wait until the peers have taken the large ones.
    SmallWaits,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Plants a fault in the engines that run on this thread.
#[cfg(test)]
pub(crate) fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Whether this fault is planted on this thread.
#[cfg(test)]
pub(crate) fn is_planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Faults are planted in tests only.
#[cfg(not(test))]
pub(crate) const fn is_planted(_: Fault) -> bool {
    false
}
