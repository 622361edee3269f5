//! Commands from the controller to the workers.

use std::sync::Arc;

use crate::calling::Calling;
use crate::id::{RegisterId, WorkerId};
use crate::members::Members;
use crate::tensor::Tensor;
use crate::value::Value;

/// A command of the control plane. Every worker receives all commands in the same order; some apply to one worker only,
/// which they name by its [place](Members).
///
/// The encodings of nine commands, numbered 0 to 8, are those of TVM's Disco. Disco's own commands have numbers from 64
/// up.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Leave the loop.
    Shutdown,
    /// Free a register. Sessions of Disco free registers in batches with [`Frame::freed`](crate::Frame::freed) instead.
    KillReg {
        /// The register.
        register: RegisterId,
    },
    /// Look a worker function up.
    GetGlobalFunc {
        /// The register for the function.
        register: RegisterId,
        /// The registered name.
        name: Arc<str>,
    },
    /// Call a worker function on all workers, with the same arguments.
    CallPacked {
        /// The register for the result.
        register: RegisterId,
        /// The register with the function.
        function: RegisterId,
        /// The arguments. A [`Value::Register`] stands for the worker's object in that register.
        args: Vec<Value>,
    },
    /// Call a worker function as [`Calling`] says.
    CallWith {
        /// The register for the result.
        register: RegisterId,
        /// The register with the function.
        function: RegisterId,
        /// The arguments of all workers.
        args: Vec<Value>,
        /// Which workers, with which arguments, and how results come back.
        calling: Box<Calling>,
    },
    /// One worker waits for its device and replies.
    SyncWorker {
        /// The worker.
        worker: WorkerId,
    },
    /// Worker 0 copies a register's tensor into a host tensor of the controller.
    CopyFromWorker0 {
        /// The register with the source.
        register: RegisterId,
        /// The destination, passed by reference: worker 0 is a thread of the controller's process.
        host: Local<Tensor>,
    },
    /// Worker 0 copies a host tensor of the controller into a register's tensor.
    CopyToWorker0 {
        /// The register with the destination.
        register: RegisterId,
        /// The source, passed by reference.
        host: Local<Tensor>,
    },
    /// One worker replies with a register's value.
    DebugGet {
        /// The register.
        register: RegisterId,
        /// The worker.
        worker: WorkerId,
    },
    /// Every worker replies with a register's value: one broadcast, n replies.
    GetAll {
        /// The register.
        register: RegisterId,
    },
    /// One worker waits for its device, sets a register (a tensor is copied into the tensor there) and replies.
    DebugSet {
        /// The register.
        register: RegisterId,
        /// The worker.
        worker: WorkerId,
        /// The new value.
        value: Value,
    },
    /// Every worker waits for its device and replies: one broadcast, n replies.
    SyncAll,
    /// Every worker clears its first error, drops its communicators and starts an epoch.
    Recover {
        /// The epoch.
        epoch: u64,
    },
    /// As [`Command::Recover`], with other workers: a worker whose place is none of `members` leaves the loop, and each other
    /// one takes its number in the new world.
    Resize {
        /// The epoch.
        epoch: u64,
        /// The workers from now on.
        members: Arc<Members>,
    },
}

/// An object that exists only in the controller's process; `None` in other processes.
#[allow(clippy::exhaustive_structs, reason = "a wrapper and nothing else")]
#[derive(Clone, Debug)]
pub struct Local<T>(pub Option<T>);

/// All are equal, because the object has no encoding.
impl<T> PartialEq for Local<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Command {
    /// The values that the command carries.
    pub fn values(&self) -> &[Value] {
        match self {
            Command::CallPacked { args, .. } | Command::CallWith { args, .. } => args,
            Command::DebugSet { value, .. } => std::slice::from_ref(value),
            _ => &[],
        }
    }

    /// The register that the command is about.
    pub fn register(&self) -> Option<RegisterId> {
        match self {
            Command::KillReg { register }
            | Command::GetGlobalFunc { register, .. }
            | Command::CallPacked { register, .. }
            | Command::CallWith { register, .. }
            | Command::CopyFromWorker0 { register, .. }
            | Command::CopyToWorker0 { register, .. }
            | Command::DebugGet { register, .. }
            | Command::GetAll { register }
            | Command::DebugSet { register, .. } => Some(*register),
            Command::Shutdown
            | Command::SyncWorker { .. }
            | Command::SyncAll
            | Command::Recover { .. }
            | Command::Resize { .. } => None,
        }
    }

    /// The register with the function that the command calls.
    pub fn function(&self) -> Option<RegisterId> {
        match self {
            Command::CallPacked { function, .. } | Command::CallWith { function, .. } => Some(*function),
            _ => None,
        }
    }

    /// The place of the worker that alone replies to the command, if it is a call.
    pub fn answers(&self) -> Option<WorkerId> {
        match self {
            Command::CallWith { calling, .. } => calling.answers,
            _ => None,
        }
    }

    /// The name for messages: that of the session's method.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Shutdown => "shutdown",
            Command::KillReg { .. } => "kill_reg",
            Command::GetGlobalFunc { .. } => "function",
            Command::CallPacked { .. } | Command::CallWith { .. } => "call",
            Command::SyncWorker { .. } => "sync_worker",
            Command::CopyFromWorker0 { .. } => "copy_from_worker_0",
            Command::CopyToWorker0 { .. } => "copy_to_worker_0",
            Command::DebugGet { .. } => "get",
            Command::GetAll { .. } => "get_all",
            Command::DebugSet { .. } => "set",
            Command::SyncAll => "sync_all",
            Command::Recover { .. } => "recover",
            Command::Resize { .. } => "resize",
        }
    }

    /// The epoch that the command begins.
    pub const fn epoch(&self) -> Option<u64> {
        match self {
            Command::Recover { epoch } | Command::Resize { epoch, .. } => Some(*epoch),
            _ => None,
        }
    }

    /// The same command for the worker at another place.
    pub(crate) fn at(mut self, place: WorkerId) -> Self {
        if let Command::SyncWorker { worker } | Command::DebugGet { worker, .. } | Command::DebugSet { worker, .. } =
            &mut self
        {
            *worker = place;
        }
        self
    }
}
