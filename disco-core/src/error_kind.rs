//! Kinds of errors, for programs to match.

use std::sync::Arc;
use std::time::Duration;

use crate::worker_range::WorkerRange;

/// The kind of an error, with the values that a program may decide by. The kind crosses lanes, so a program matches the
/// errors of a worker like those of its own process.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// An error of the program: none of its causes is an error of Disco or of the system.
    User,
    /// A worker function, or a [reduction](crate::register_reduction), panicked.
    Panicked,
    /// The operation ended because something else failed.
    Aborted,
    /// The controller has cancelled the call.
    Cancelled,
    /// The communicator failed in an earlier operation.
    Broken,
    /// A wait passed its deadline.
    Deadline {
        /// The length of the deadline.
        after: Duration,
    },
    /// A worker stopped taking commands.
    Stalled {
        /// Time since its last progress.
        after: Duration,
    },
    /// A peer is lost.
    Lost {
        /// The workers that are lost; empty if the peer is not a worker.
        workers: WorkerRange,
    },
    /// Workers did not leave at shutdown.
    Stuck,
    /// The backend or device can't do this.
    Unsupported {
        /// The backend or the device kind.
        backend: Arc<str>,
    },
    /// A library, backend or device is not on the machine, or lacks what the operation needs.
    Unavailable,
    /// A function of a vendor's library failed.
    Library {
        /// The backend.
        backend: Arc<str>,
        /// The C function.
        function: Arc<str>,
        /// Its return code.
        code: i64,
    },
    /// A call of the operating system failed.
    System {
        /// The system's error code, if there is one.
        code: Option<i32>,
    },
    /// There is not enough memory.
    OutOfMemory {
        /// Size of the request in bytes.
        bytes: u64,
    },
    /// Ranks called a collective with arguments that do not fit together.
    Mismatch,
    /// An argument is invalid.
    Invalid,
    /// A worker function got an argument, or a number of arguments, that it does not take.
    Argument,
    /// No worker function of that name is registered.
    UnknownFunction,
    /// A tensor's storage is in use.
    Busy,
    /// A peer broke the protocol, or bytes do not form a packet.
    Protocol,
    /// A peer was refused when it joined, or a peer refused this process.
    Refused,
    /// The state of the object does not permit the operation: not started, already started, full.
    State,
    /// The session or the lane is closed.
    Closed,
    /// The handle belongs to another session.
    ForeignRef,
    /// There is no such worker.
    NoSuchWorker,
    /// `init_ccl` was not called, or failed.
    NoCommunicator,
    /// The register is empty on a worker that replaced a lost worker, or that a resize has added.
    NotRestored {
        /// The epoch that began with the worker.
        epoch: u64,
    },
}
