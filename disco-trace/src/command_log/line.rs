//! The lines of a command log.

use std::borrow::Cow;

use disco_core::WorkerId;
use serde::{Deserialize, Serialize};

use super::{Described, FORMAT};

/// Longest text of an error in a log, in bytes.
const MAX_ERROR: usize = 4 << 10;

/// One line.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first line: the session.
    Session(Head),
    /// The session has submitted a command.
    Command(Command),
    /// Registers that the workers free before the next command, in addition to those of its own line.
    Freed(Vec<u32>),
    /// A wait for replies has ended.
    Wait(Wait),
    /// This worker has executed the calls that follow.
    Worker(Worker),
    /// A worker has executed a call.
    Call(Call),
    /// The last line.
    End(End),
}

/// The session that was recorded.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The format of the log.
    pub format: String,
    /// Name of the program.
    pub program: String,
    /// The version of Disco that has written the log.
    pub disco: String,
    /// The kind of the session: `threads`, `processes`, `nodes`.
    pub session: String,
    /// Number of workers.
    pub workers: usize,
    /// Number of groups.
    pub groups: usize,
    /// Number of machines.
    pub nodes: usize,
}

/// The kind of a command, named as the session's method.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "named as the methods of a session, which are documented")]
pub enum CommandKind {
    Function,
    Call,
    SyncWorker,
    SyncAll,
    Get,
    GetAll,
    Set,
    #[serde(rename = "copy_from_worker_0")]
    CopyFromWorker0,
    #[serde(rename = "copy_to_worker_0")]
    CopyToWorker0,
    Recover,
    Resize,
    Shutdown,
    /// A no-op, which stands for a command that could not be sent.
    Nothing,
}

/// A command.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// The number of the command in the session, from 1.
    pub number: u64,
    /// When the command was submitted.
    pub time_ns: u64,
    /// The kind of the command.
    pub kind: CommandKind,
    /// The name of the function that is looked up or called; `None` for a call of a function without a known name, such
    /// as one of a loaded library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Cow<'static, str>>,
    /// The register of the function of a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee: Option<u32>,
    /// The register that the command sets, reads or copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub register: Option<u32>,
    /// The only worker that the command concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// The arguments of a call, the value of a `set`, the host tensor of a copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Described>,
    /// Registers that the workers free before the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub freed: Vec<u32>,
}

/// The end of a wait for the replies to a command.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The command.
    pub number: u64,
    /// When the wait ended.
    pub time_ns: u64,
    /// The thread of the controller that waited, numbered in the order of their first waits.
    pub thread: u32,
    /// The replies without their content, in the order of workers; one if all replies are equal; none for syncs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replies: Vec<Described>,
    /// Why the wait failed: the first failure of a worker, or the reason why replies are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The worker that has executed the calls that follow.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// The number of the worker.
    pub worker: u32,
    /// Number of the worker's records that are missing before these calls, because later records have replaced them.
    pub replaced: u64,
    /// Why there are no calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A call on one worker.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The number of the command.
    pub number: u64,
    /// The duration; `None` if the call had not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns: Option<u64>,
    /// The worker failed in the call, or had failed before and skipped the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// The next call of this worker is the same one, with later operations and with its duration.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// The operations of communicators inside the call, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<Operation>,
}

/// An operation of a communicator.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// The kind, named as [`OpKind::name`](disco_core::OpKind::name).
    pub kind: String,
    /// The ranks that took part.
    pub scope: OperationScope,
    /// Element type; none for a barrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Number of elements of one block; of the V-forms, the number that this rank sent.
    #[serde(default)]
    pub count: u64,
    /// How elements are combined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduction: Option<String>,
    /// The root, or the peer of a send or a receive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// Time from the end of the previous operation, or from the start of the call.
    pub after_ns: u64,
    /// The duration, including the wait for other ranks; on a device, the duration of the launch.
    pub ns: u64,
    /// The operation was launched in one group with the operation before it, whose duration is that of the group.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joins: bool,
    /// The operation failed, or had not ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// The ranks of an operation.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationScope {
    /// All workers.
    World,
    /// The workers of a group.
    Group,
    /// A communicator that a worker function has split off.
    Split,
}

/// The end of a session.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// When the session had ended.
    pub time_ns: u64,
    /// Number of the session's commands.
    pub commands: u64,
    /// The failure that ended the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Head {
    /// A session of kind `session`, with `workers` workers in `groups` groups on `nodes` machines.
    pub fn new(program: impl Into<String>, session: &str, workers: usize, groups: usize, nodes: usize) -> Self {
        let (format, disco) = (FORMAT.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Self { format, program: program.into(), disco, session: session.to_owned(), workers, groups, nodes }
    }
}

impl Line {
    /// Takes values out of a line that is too long, and returns whether it is shorter: all replies of a wait but the first,
    /// then this one; all arguments of a command.
    pub(super) fn shorten(&mut self) -> bool {
        match self {
            Self::Command(command) if !command.args.is_empty() => command.args.clear(),
            Self::Wait(wait) if !wait.replies.is_empty() => wait.replies.truncate(usize::from(wait.replies.len() > 1)),
            _ => return false,
        }
        true
    }
}

impl CommandKind {
    /// The name in logs: the name of the session's method.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Call => "call",
            Self::SyncWorker => "sync_worker",
            Self::SyncAll => "sync_all",
            Self::Get => "get",
            Self::GetAll => "get_all",
            Self::Set => "set",
            Self::CopyFromWorker0 => "copy_from_worker_0",
            Self::CopyToWorker0 => "copy_to_worker_0",
            Self::Recover => "recover",
            Self::Resize => "resize",
            Self::Shutdown => "shutdown",
            Self::Nothing => "nothing",
        }
    }

    /// All kinds but calls. Workers record these commands under the name of their kind, and calls under the name of the
    /// function.
    pub(super) const ALL_BUT_CALLS: [Self; 12] = [
        Self::Function,
        Self::SyncWorker,
        Self::SyncAll,
        Self::Get,
        Self::GetAll,
        Self::Set,
        Self::CopyFromWorker0,
        Self::CopyToWorker0,
        Self::Recover,
        Self::Resize,
        Self::Shutdown,
        Self::Nothing,
    ];
}

impl Command {
    /// A command without arguments and registers; other fields are assigned.
    pub fn new(number: u64, time_ns: u64, kind: CommandKind) -> Self {
        let (function, callee, register, worker) = (None, None, None, None);
        Self { number, time_ns, kind, function, callee, register, worker, args: Vec::new(), freed: Vec::new() }
    }
}

impl Worker {
    /// A worker with its calls.
    pub(super) fn new(worker: WorkerId, replaced: u64, error: Option<String>) -> Self {
        Self { worker: worker.index() as u32, replaced, error }
    }
}

/// A text of at most [`MAX_ERROR`] bytes.
pub(super) fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_ERROR));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_written_under_their_names() {
        for kind in CommandKind::ALL_BUT_CALLS.into_iter().chain([CommandKind::Call]) {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
