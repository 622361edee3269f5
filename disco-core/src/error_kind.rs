//! What kind of error happened, for programs.

use std::sync::Arc;
use std::time::Duration;

use crate::worker_range::WorkerRange;

/// The kind of an error, with the values that a program may decide by. It crosses lanes, so that a program matches a worker's
/// error as it matches one of its own process.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// An error of the program's own: nothing of Disco or of the system is among its causes.
    User,
    /// A worker function panicked.
    Panicked,
    /// The operation ended because something else failed.
    Aborted,
    /// The communicator failed before.
    Broken,
    /// A wait passed its deadline, which was this long.
    Deadline {
        /// The limit.
        after: Duration,
    },
    /// A worker stopped taking commands.
    Stalled {
        /// Time since its last progress.
        after: Duration,
    },
    /// A peer is lost.
    Lost {
        /// The workers that are lost; empty if the peer is no worker.
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
    /// The operating system refused something.
    System {
        /// The system's error code, if there is one.
        code: Option<i32>,
    },
    /// There is not enough memory.
    OutOfMemory {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// Ranks called a collective with arguments that do not fit together.
    Mismatch,
    /// An argument that can't be right.
    Invalid,
    /// A worker function got an argument, or a number of arguments, that it does not take.
    Argument,
    /// No worker function of that name is registered.
    UnknownFunction,
    /// A tensor's storage is in use.
    Busy,
    /// A peer broke the protocol, or bytes are no packet.
    Protocol,
    /// A peer was refused when it joined, or refuses this process.
    Refused,
    /// The object is not in a state in which it can do this: not started, started before, full.
    State,
    /// The session or the lane is closed.
    Closed,
    /// The handle belongs to another session.
    ForeignRef,
    /// There is no such worker.
    NoSuchWorker,
    /// `init_ccl` was not called, or failed.
    NoCommunicator,
}
