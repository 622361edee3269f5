//! What the controller tells all workers.

use crate::id::{RegisterId, WorkerId};
use crate::tensor::Tensor;
use crate::value::Value;

/// One command of the control plane. Every worker receives every command, in one order; some concern one worker only.
///
/// The first nine are TVM's Disco, byte for byte; the others are numbered from 64 up.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Leave the loop.
    Shutdown,
    /// Forget a register's object. Disco frees registers by [`Frame::freed`](crate::Frame::freed) instead, in batches.
    KillReg {
        /// Whose.
        register: RegisterId,
    },
    /// Look a worker function up.
    GetGlobalFunc {
        /// Where to put it.
        register: RegisterId,
        /// Its registered name.
        name: std::sync::Arc<str>,
    },
    /// Call a worker function.
    CallPacked {
        /// Where to put the result.
        register: RegisterId,
        /// Where the function is.
        function: RegisterId,
        /// Its arguments; a [`Value::Register`] stands for the object that the worker has there.
        args: Vec<Value>,
    },
    /// One worker waits for its device and replies.
    SyncWorker {
        /// Who.
        worker: WorkerId,
    },
    /// Worker 0 copies a register's tensor into a host tensor of the controller.
    CopyFromWorker0 {
        /// From where.
        register: RegisterId,
        /// Into what. Travels by reference: worker 0 is a thread of the controller's process.
        host: Local<Tensor>,
    },
    /// Worker 0 copies a host tensor of the controller into a register's tensor.
    CopyToWorker0 {
        /// To where.
        register: RegisterId,
        /// From what, by reference.
        host: Local<Tensor>,
    },
    /// One worker replies with a register's value.
    DebugGet {
        /// Which register.
        register: RegisterId,
        /// Who.
        worker: WorkerId,
    },
    /// Every worker replies with a register's value: one broadcast, n replies.
    GetAll {
        /// Which register.
        register: RegisterId,
    },
    /// One worker waits for its device, sets a register (a tensor is copied into the tensor there) and replies.
    DebugSet {
        /// Which register.
        register: RegisterId,
        /// Who.
        worker: WorkerId,
        /// To what.
        value: Value,
    },
    /// Every worker waits for its device and replies: one broadcast, n replies.
    SyncAll,
    /// Every worker forgets its first error and what its communicators were, and starts an epoch.
    Recover {
        /// Which.
        epoch: u64,
    },
}

/// Something that stays in the controller's process, and is absent elsewhere.
#[allow(clippy::exhaustive_structs, reason = "a wrapper and nothing else")]
#[derive(Clone, Debug)]
pub struct Local<T>(pub Option<T>);

/// A part that does not go over the wire does not count for equality.
impl<T> PartialEq for Local<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Command {
    /// The values in it.
    pub fn values(&self) -> &[Value] {
        match self {
            Command::CallPacked { args, .. } => args,
            Command::DebugSet { value, .. } => std::slice::from_ref(value),
            _ => &[],
        }
    }

    /// The name for messages: that of the session's method.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Shutdown => "shutdown",
            Command::KillReg { .. } => "kill_reg",
            Command::GetGlobalFunc { .. } => "function",
            Command::CallPacked { .. } => "call",
            Command::SyncWorker { .. } => "sync_worker",
            Command::CopyFromWorker0 { .. } => "copy_from_worker_0",
            Command::CopyToWorker0 { .. } => "copy_to_worker_0",
            Command::DebugGet { .. } => "get",
            Command::GetAll { .. } => "get_all",
            Command::DebugSet { .. } => "set",
            Command::SyncAll => "sync_all",
            Command::Recover { .. } => "recover",
        }
    }
}
