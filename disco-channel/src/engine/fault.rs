//! Faults that tests plant in an engine, so that the simulation has to find them.

/// A rule that an engine can be told to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A member sends no heartbeats.
    NoHeartbeat,
    /// A member acknowledges each frame twice.
    DoubleCredit,
    /// An abort of an epoch that is over ends the questions of the current one.
    OldAbort,
    /// A worker's departure overtakes its last reply.
    EarlyDeparture,
    /// The controller says nothing to its peers while there are no commands.
    SilentController,
    /// A thread that brings a frame does not wake the reactor thread for an earlier timeout.
    MissedWake,
    /// The ring waits for a worker process that has ended.
    NotRetired,
    /// The controller takes no notice of a node's report that a worker is lost.
    LossIgnored,
    /// A line of a worker comes twice.
    DoubleOutput,
    /// A worker process is reported as lost before its exit status can be known.
    NoStatus,
    /// The lane is over while processes of nodes run that the session has started.
    ChildrenLeft,
    /// A worker process is reported twice as having left.
    DoubleDeparture,
    /// A reply has the number of another command.
    StrayReply,
    /// A controller that did not listen for a long time counts it as silence of its peers.
    NoExcuse,
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

/// Whether a rule is to be broken.
#[cfg(test)]
pub(crate) fn is_planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Faults are planted in tests only.
#[cfg(not(test))]
pub(crate) const fn is_planted(_: Fault) -> bool {
    false
}
