//! Error types of Disco.
//!
//! A program matches errors; their texts are for people. [`Error::kind`] returns the kind of an error, wherever it
//! happened: the kind of a worker's error crosses the lane to the controller.
//!
//! ```
//! use disco_core::error::{Error, ErrorKind, LossCause, ProcessEnd};
//!
//! /// Whether a new session may succeed where this one has failed.
//! fn may_succeed_again(error: &Error) -> bool {
//!     match error {
//!         Error::Lost(loss) => {
//!             eprintln!("{} are lost", loss.workers());
//!             // Linux ends a process so if the machine is out of memory.
//!             let killed = ProcessEnd::Signaled { signal: 9, core_dumped: false };
//!             !matches!(loss.cause, LossCause::ProcessEnded { end, .. } if end == killed)
//!         }
//!         other => matches!(other.kind(), ErrorKind::Deadline { .. } | ErrorKind::Library { code: 2, .. }),
//!     }
//! }
//!
//! assert!(!may_succeed_again(&Error::invalid("no such layer")));
//! ```

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::abort_cause::AbortCause;
pub use crate::causes::causes;
pub(crate) use crate::causes::{chain, panic_text};
use crate::codec::WireError;
use crate::device::UnknownDevice;
use crate::dtype::{DType, UnknownDType};
pub use crate::error_kind::ErrorKind;
pub use crate::failure::Failure;
use crate::id::{RegisterId, WorkerId};
pub use crate::loss::{Loss, LossCause, LostPeer, Node, ProcessEnd};
pub use crate::memory::Memory;
use crate::suggestion::did_you_mean;
pub use crate::unavailable::Unavailable;
pub use crate::user_error::UserError;
use crate::worker_range::WorkerRange;

/// Result with Disco's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every failure of Disco. Cheap to clone, since a worker's first error is reported many times.
///
/// `{:?}` prints the text of the error and its causes, so that a program whose `main` returns [`Result`] ends with that
/// text. `{:#?}` prints the [kind](Error::kind) as well, and the fields of [`Error::Worker`] and [`Error::Lost`].
#[non_exhaustive]
#[derive(Clone, thiserror::Error)]
pub enum Error {
    /// A command failed on a worker; says which worker, function, command and register.
    #[error("{0}")]
    Worker(Arc<Failure>),
    /// A command was not submitted, because one before it failed on a worker.
    #[error(
        "{operation}: not submitted, because an earlier command failed: {failure}{}`recover` or \
         `init_ccl` makes the workers forget the failure",
        separator(failure)
    )]
    Earlier {
        /// The command that was refused.
        operation: String,
        /// The failure of the earlier command.
        failure: Arc<Failure>,
    },
    /// An operation ended because something else failed, or because a call was cancelled.
    #[error("aborted, because {cause}")]
    Aborted {
        /// The first cause.
        cause: AbortCause,
    },
    /// The controller has cancelled the call.
    #[error("cancelled: {cause}")]
    Cancelled {
        /// Why, as text.
        cause: Arc<str>,
    },
    /// A wait passed its deadline.
    #[error("{operation}: no end after {after:?}: {state}")]
    Deadline {
        /// The operation that waited.
        operation: String,
        /// Time that it waited.
        after: Duration,
        /// Workers or ranks that are missing, and their activity.
        state: String,
    },
    /// A worker stopped taking commands and the lane to it is full.
    #[error("{worker} took no command for {after:?} and its lane is full: {state}")]
    Stalled {
        /// The worker that made no progress.
        worker: WorkerId,
        /// Time since its last progress.
        after: Duration,
        /// The activity of the worker.
        state: String,
    },
    /// A peer is lost for good: workers, a node, the controller.
    #[error("{0}")]
    Lost(Arc<Loss>),
    /// Workers did not leave at shutdown.
    #[error("not stopped after {after:?}: {workers}")]
    Stuck {
        /// The workers, the functions that they are inside, and whether they were detached (threads) or killed
        /// (processes).
        workers: String,
        /// Time that the shutdown waited.
        after: Duration,
    },
    /// The backend can't do this; nothing was started.
    #[error("{backend} does not support {operation}{}", .dtype.map(|d| format!(" of {d}")).unwrap_or_default())]
    Unsupported {
        /// The backend or device kind.
        backend: &'static str,
        /// The operation, with its reduction where it has one.
        operation: String,
        /// The element type, where it matters.
        dtype: Option<DType>,
    },
    /// A library, backend or device is not on this machine.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A vendor library's function failed.
    #[error("{backend}: {function} returned {code}: {message}")]
    Library {
        /// The backend.
        backend: &'static str,
        /// The C function.
        function: &'static str,
        /// Its return code.
        code: i64,
        /// The library's message.
        message: String,
    },
    /// A call of the operating system failed.
    #[error("{operation}: {source}")]
    System {
        /// The operation that failed, and the consequence.
        operation: String,
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// There is not enough memory.
    #[error("no room for {bytes} bytes {memory}{}", .why.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    OutOfMemory {
        /// Size of the request.
        bytes: usize,
        /// Kind of memory.
        memory: Memory,
        /// Details, if known: a limit, the memory in use, the system's message.
        why: Option<String>,
    },
    /// Ranks called a collective with arguments that do not fit together.
    #[error("{operation}: ranks disagree: {detail}")]
    Mismatch {
        /// The collective.
        operation: String,
        /// Both sides.
        detail: String,
    },
    /// The communicator failed before and takes no more operations.
    #[error("{operation}: the communicator is broken since: {cause}")]
    Broken {
        /// The refused operation.
        operation: String,
        /// The cause that broke it.
        cause: AbortCause,
    },
    /// An argument that is invalid in every session.
    #[error("{0}")]
    Invalid(String),
    /// The machine, a device or a library lacks what the operation needs.
    #[error("{0}")]
    Missing(String),
    /// A peer broke the protocol.
    #[error("{0}")]
    Protocol(String),
    /// A peer may not join: its token, its program or its position does not match.
    #[error("{0}")]
    Refused(String),
    /// The object can't do this now: it was not started, was started before or is full.
    #[error("{0}")]
    State(String),
    /// A worker function got an argument that it does not take.
    #[error("argument {index}: expected {expected}, got {found}")]
    Argument {
        /// Position, from 0.
        index: usize,
        /// The type that the function takes.
        expected: &'static str,
        /// The type of the caller's argument.
        found: String,
    },
    /// A worker function got too few or too many arguments.
    #[error("expected {expected} argument{}, got {found}", if *expected == 1 { "" } else { "s" })]
    ArgumentCount {
        /// Number of arguments that the function takes.
        expected: usize,
        /// Number of arguments that the caller passed.
        found: usize,
    },
    /// No worker function of that name is registered in this program.
    #[error("no worker function `{name}` is registered{}", did_you_mean(similar.as_deref()))]
    UnknownFunction {
        /// The name asked for.
        name: String,
        /// A registered name with similar spelling.
        similar: Option<String>,
    },
    /// A function of the program panicked inside an operation.
    #[error("{operation} panicked: {text}")]
    Panicked {
        /// The operation, and the function.
        operation: String,
        /// The text of the panic.
        text: String,
    },
    /// A tensor's storage has another view that excludes this use.
    #[error("the tensor's storage is in use: {0}")]
    Busy(&'static str),
    /// Bytes that are not a valid packet.
    #[error("bad packet: {0}")]
    Wire(#[source] WireError),
    /// The session was shut down.
    #[error("{0}: the session is shut down")]
    Closed(String),
    /// A DRef was used in a session that did not make it.
    #[error("{0} belongs to another session")]
    ForeignRef(RegisterId),
    /// There is no such worker.
    #[error("{worker}: no such worker; the session has {workers}, numbered from 0")]
    NoSuchWorker {
        /// The worker that was asked for.
        worker: WorkerId,
        /// Number of workers of the session.
        workers: usize,
    },
    /// `init_ccl` was not called, or failed.
    #[error("no communicator on this worker: call `init_ccl` first")]
    NoCommunicator,
    /// The register is empty, because the worker has joined the session after the register was set elsewhere: it replaced a
    /// lost worker, or a resize has added it.
    #[error("{register} is empty on this worker, which is new since epoch {epoch}: set the register again")]
    NotRestored {
        /// The register.
        register: RegisterId,
        /// The epoch that began with the worker.
        epoch: u64,
    },
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        match error {
            WireError::NoMemory { bytes, is_shared, why } => {
                let memory = if is_shared { Memory::Shared } else { Memory::Host };
                Error::OutOfMemory { bytes, memory, why }
            }
            error => Error::Wire(error),
        }
    }
}

/// Separates a remedy from the failure before it, which may end with a table.
#[allow(clippy::disallowed_methods, reason = "whether a text for people has lines")]
fn separator(failure: &Failure) -> &'static str {
    if failure.to_string().contains('\n') { "\n" } else { "; " }
}

impl Error {
    /// The same error; if it is a loss of workers, then of `workers`. For lanes and sessions, which know workers by
    /// [places and numbers](crate::Members).
    #[must_use]
    pub fn of_workers(self, workers: WorkerRange) -> Self {
        match &self {
            Error::Lost(loss) if loss.workers() != workers => Error::Lost(Arc::new(loss.of_workers(workers))),
            _ => self,
        }
    }

    /// An [`Error::Invalid`] with this text.
    pub fn invalid(text: impl Into<String>) -> Self {
        Error::Invalid(text.into())
    }

    /// An [`Error::State`] with this text.
    pub fn state(text: impl Into<String>) -> Self {
        Error::State(text.into())
    }

    /// An [`Error::Missing`] with this text.
    pub fn missing(text: impl Into<String>) -> Self {
        Error::Missing(text.into())
    }

    /// An [`Error::Protocol`] with this text.
    pub fn protocol(text: impl Into<String>) -> Self {
        Error::Protocol(text.into())
    }

    /// An [`Error::Refused`] with this text.
    pub fn refused(text: impl Into<String>) -> Self {
        Error::Refused(text.into())
    }

    /// The number of the variant and the text, for errors that consist of a text. This is their encoding between
    /// processes.
    pub fn as_text(&self) -> Option<(u8, &str)> {
        Some(match self {
            Error::Invalid(text) => (0, text),
            Error::Missing(text) => (1, text),
            Error::Protocol(text) => (2, text),
            Error::Refused(text) => (3, text),
            Error::State(text) => (4, text),
            _ => return None,
        })
    }

    /// The inverse of [`Error::as_text`]; `None` for an unknown variant.
    pub fn from_text(variant: u8, text: impl Into<String>) -> Option<Self> {
        let variants = [Error::Invalid, Error::Missing, Error::Protocol, Error::Refused, Error::State];
        variants.get(usize::from(variant)).map(|variant| variant(text.into()))
    }

    /// The kind of the error, the same on the worker and on the controller. Programs match on it.
    ///
    /// The kind of an [`Error::Worker`] and of an [`Error::Earlier`] is the kind of the worker's error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Worker(failure) | Error::Earlier { failure, .. } => failure.kind.clone(),
            Error::Aborted { .. } => ErrorKind::Aborted,
            Error::Cancelled { .. } => ErrorKind::Cancelled,
            Error::Deadline { after, .. } => ErrorKind::Deadline { after: *after },
            Error::Stalled { after, .. } => ErrorKind::Stalled { after: *after },
            Error::Lost(loss) => ErrorKind::Lost { workers: loss.workers() },
            Error::Stuck { .. } => ErrorKind::Stuck,
            Error::Unsupported { backend, .. } => ErrorKind::Unsupported { backend: (*backend).into() },
            Error::Unavailable(_) | Error::Missing(_) => ErrorKind::Unavailable,
            Error::Library { backend, function, code, .. } => {
                ErrorKind::Library { backend: (*backend).into(), function: (*function).into(), code: *code }
            }
            Error::System { source, .. } => ErrorKind::System { code: source.raw_os_error() },
            Error::OutOfMemory { bytes, .. } => ErrorKind::OutOfMemory { bytes: *bytes as u64 },
            Error::Mismatch { .. } => ErrorKind::Mismatch,
            Error::Broken { .. } => ErrorKind::Broken,
            Error::Invalid(_) => ErrorKind::Invalid,
            Error::Protocol(_) | Error::Wire(_) => ErrorKind::Protocol,
            Error::Refused(_) => ErrorKind::Refused,
            Error::State(_) => ErrorKind::State,
            Error::Argument { .. } | Error::ArgumentCount { .. } => ErrorKind::Argument,
            Error::UnknownFunction { .. } => ErrorKind::UnknownFunction,
            Error::Panicked { .. } => ErrorKind::Panicked,
            Error::Busy(_) => ErrorKind::Busy,
            Error::Closed(_) => ErrorKind::Closed,
            Error::ForeignRef(_) => ErrorKind::ForeignRef,
            Error::NoSuchWorker { .. } => ErrorKind::NoSuchWorker,
            Error::NoCommunicator => ErrorKind::NoCommunicator,
            Error::NotRestored { epoch, .. } => ErrorKind::NotRestored { epoch: *epoch },
        }
    }

    /// The failure of a worker that this error reports: the command's own or an earlier one.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Error::Worker(failure) | Error::Earlier { failure, .. } => Some(failure),
            _ => None,
        }
    }

    /// The error of a worker function as a `T`, if the error or one of its causes is a `T`. `T` is a type registered
    /// with `register_error!` (feature `serde`), which shows an example.
    pub fn downcast_ref<T: 'static>(&self) -> Option<&T> {
        match self.failure() {
            Some(failure) => failure.user.as_ref()?.downcast_ref(),
            _ => None,
        }
    }

    /// An [`Error::System`]: `operation` was refused with `source`.
    pub fn system(operation: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::System { operation: operation.into(), source: Arc::new(source.into()) }
    }

    /// An [`Error::Lost`]: `peer` is lost because of `cause`.
    pub fn peer_lost(peer: LostPeer, cause: LossCause) -> Self {
        Error::Lost(Arc::new(Loss::new(peer, cause)))
    }
}

impl AbortCause {
    /// The cause that an operation with this error is for later operations, and for other ranks.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::Aborted { cause } | Error::Broken { cause, .. } => cause.clone(),
            Error::Lost(loss) => match (&loss.peer, &loss.cause) {
                (LostPeer::Rank(rank), LossCause::CommunicatorDropped) => Self::Dropped(*rank),
                _ => Self::Failed(error.to_string().into()),
            },
            _ => Self::Failed(error.to_string().into()),
        }
    }

    /// The cause if `error` or one of its sources is an abort, or a consequence of the failure of another worker as an
    /// abort is: a worker function that fails drops its communicators, which its peers may notice first.
    pub(crate) fn find(error: &(dyn StdError + 'static)) -> Option<Self> {
        chain(error).find_map(|error| match error.downcast_ref::<Error>()? {
            error @ (Error::Aborted { .. } | Error::Broken { .. }) => Some(Self::of(error)),
            error @ Error::Lost(_) => Some(Self::of(error)).filter(|cause| matches!(cause, Self::Dropped(_))),
            Error::Worker(failure) | Error::Earlier { failure, .. } if failure.aborted => {
                Some(Self::Failed(failure.message.as_str().into()))
            }
            _ => None,
        })
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            let mut fields = f.debug_struct("Error");
            fields.field("text", &self.to_string()).field("kind", &self.kind());
            match self {
                Error::Worker(failure) | Error::Earlier { failure, .. } => _ = fields.field("failure", failure),
                Error::Lost(loss) => _ = fields.field("loss", loss),
                _ => {}
            }
            return fields.finish();
        }
        write!(f, "{self}")?;
        causes(self).iter().try_for_each(|cause| write!(f, ": {cause}"))
    }
}

impl ErrorKind {
    /// The kind of any error: that of the first error of Disco or of the system among `error` and its causes, else
    /// [`ErrorKind::User`].
    pub fn of(error: &(dyn StdError + 'static)) -> Self {
        let known = |error: &(dyn StdError + 'static)| {
            let ours = error.downcast_ref::<Error>().map(Error::kind);
            let absent = || error.is::<Unavailable>().then_some(Self::Unavailable);
            let system = || error.downcast_ref::<io::Error>().map(|error| Self::System { code: error.raw_os_error() });
            ours.or_else(absent).or_else(system)
        };
        chain(error).find_map(known).unwrap_or(Self::User)
    }
}

impl From<UnknownDevice> for Error {
    fn from(error: UnknownDevice) -> Self {
        Error::invalid(error.to_string())
    }
}

impl From<UnknownDType> for Error {
    fn from(error: UnknownDType) -> Self {
        Self::invalid(error.to_string())
    }
}

#[cfg(test)]
mod tests;
