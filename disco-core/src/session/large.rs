//! Commands with large values: their limit, and their way to the lanes that they concern.

use std::sync::Arc;

use crate::channel::{Channel, SMALL_FRAME};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::shared_memory::Snapshot;
use crate::value::Value;
use crate::wire::{self, Frame, Pieces};

/// The values of one command before it takes the order ticket.
#[derive(Debug)]
pub(super) struct Values {
    /// More than [`SMALL_FRAME`] bytes.
    pub(super) is_large: bool,
    /// A copy of the large tensors for the lanes that share memory.
    snapshot: Option<Arc<Snapshot>>,
}

impl Values {
    /// A command without large values.
    pub(super) const SMALL: Self = Self { is_large: false, snapshot: None };

    /// Checks the size of the values of `operation`, which go to worker `to` or to all, and copies large tensors to shared memory
    /// if a lane of `lanes` wants them there. The copy is made without the order ticket, so that other commands do not wait for it.
    ///
    /// # Errors
    /// The values are above a lane's limit.
    pub(super) fn prepare(
        operation: &str,
        to: Option<WorkerId>,
        lanes: &[Arc<dyn Channel>],
        values: &[Value],
    ) -> Result<Self> {
        let bytes = payload_len(values);
        if bytes <= SMALL_FRAME {
            return Ok(Self::SMALL);
        }
        let concerned = || lanes.iter().filter(|lane| is_concerned(&***lane, to));
        let limit = concerned().map(|lane| lane.value_limit()).min().unwrap_or(usize::MAX);
        if bytes > limit {
            return Err(above_limit(operation, to, bytes, limit));
        }
        let wants_copy = concerned().any(|lane| lane.crosses() && lane.shares_memory());
        Ok(Self { is_large: true, snapshot: wants_copy.then(|| wire::snapshot(values)).flatten() })
    }

    /// The frame with what was copied of it.
    pub(super) fn put_in(self, frame: &mut Frame) {
        if self.snapshot.is_some() {
            frame.set_snapshot(self.snapshot);
        }
    }
}

/// Bytes of the values together.
pub(super) fn payload_len(values: &[Value]) -> usize {
    values.iter().map(Value::payload_len).sum()
}

/// Whether the values of `frame` can go over the lanes that they concern. Where tensors are read when the frame is sent, the caller
/// keeps the result until all lanes have the frame: before that, no worker that gets the tensors themselves can write to them.
///
/// # Errors
/// A value that can't leave the process.
pub(super) fn check_crossing(lanes: &[Arc<dyn Channel>], frame: &Frame) -> Result<Option<Arc<Pieces>>> {
    let mut kept = None;
    if payload_len(frame.command().values()) <= SMALL_FRAME {
        frame.bytes()?;
        return Ok(kept);
    }
    let to = match frame.command() {
        Command::DebugSet { worker, .. } => Some(*worker),
        _ => None,
    };
    for lane in lanes.iter().filter(|lane| lane.crosses() && is_concerned(&***lane, to)) {
        if lane.shares_memory() && frame.bytes_and_snapshot().is_some() {
            continue;
        }
        kept = frame.pieces()?;
        if kept.is_none() {
            frame.bytes()?;
        }
    }
    Ok(kept)
}

fn is_concerned(lane: &dyn Channel, to: Option<WorkerId>) -> bool {
    to.is_none_or(|worker| lane.workers().contains(worker))
}

fn above_limit(operation: &str, to: Option<WorkerId>, bytes: usize, limit: usize) -> Error {
    let (what, instead) = match to {
        Some(worker) => (
            format!("a value of {bytes} bytes for {worker}"),
            "copy the tensor to worker 0 (`copy_to_worker_0`), and send it from there (`send_to_worker`)",
        ),
        None => (
            format!("arguments of {bytes} bytes"),
            "copy the tensor to worker 0 (`copy_to_worker_0`), pass it on (`broadcast_from_worker0`), and call with its handle",
        ),
    };
    Error::invalid(format!(
        "{operation}: {what} can't go to another process, the limit is {limit} bytes for the values of one command; raise the \
         limit (`Builder::value_limit`), or {instead}"
    ))
}
