//! Commands with large values: size limits, and transfers to the lanes that need the values.
//!
//! # Invariants
//! - The values of a command or reply have a limit (`WorkerConfig::value_limit`, 1 GiB), which bounds the memory that
//!   one end allocates for the other. Threads have no limit.
//! - To and from worker processes with a ring, tensors above 64 KiB are sent as a *snapshot*
//!   (`shared_memory/snapshot.rs`): a memfd that the sender fills by one copy and seals against writes, and that the
//!   receiver maps privately, so neither end can change what the other reads. The descriptor is sent over the socket
//!   right before the FRAME or REPLY (message BESIDE). A snapshot has no name and needs no release: it disappears
//!   with its last descriptor and mapping, whichever process dies. The session makes the copy before it takes the
//!   order ticket.
//! - A tensor that is `set` is copied by its worker before the reply, so its snapshot is in memory that the session
//!   takes back then (`ReusedMemory`): sealed in its size only, and kept mapped by both ends. New memory costs
//!   several times as much as a copy. A reply in such memory is refused.
//! - To nodes, and to worker processes without a ring, tensors above 64 KiB are sent ahead of their frame, outside
//!   the command stream, as a *transfer* (messages AHEAD and WITHDRAW, `wire/transfer.rs`). The controller makes no
//!   copy (`wire/pieces.rs`): it reads each part of 60 KiB from the tensor when it sends the part, and holds the
//!   tensor's borrow flag until then. About 64 KiB of frames and replies are sent with each part, and at most one
//!   part before a frame, so commands for the same node overtake a transfer.
//! - The session takes the order ticket for a transfer's command when the socket has taken all parts. The FRAME names
//!   the transfer, whose memory becomes that of the tensors. A future that is dropped before that withdraws the
//!   transfer. Transfers on one connection take turns, part by part.
//! - A lane has transfers of at most `value_limit` bytes under way, or one: a transfer counts until the socket has
//!   taken its frame, and later ones wait before their first part. If the session moves no byte for 1 s meanwhile,
//!   they stop waiting, and their tensors are sent in the FRAME: no call depends on a future that another caller does
//!   not poll. A transfer without progress for `Deadlines::stall` ends with an error. The other end refuses parts and
//!   frames that break these rules (`crates/disco-engine/src/transfers.rs`).
//! - Large `Bytes`, `Str` and `Json`, and tensors that a node passes on to processes without shared memory, are in
//!   the FRAME, which is sent in parts.
//! - Large frames have credit of their own (`FrameSize`): while a worker has not taken them, small commands for other
//!   workers are still sent. Commands for the same worker, and for all workers of one node, wait behind a FRAME that
//!   is sent in parts; aborts and heartbeats are sent between its parts.
//! - Large replies have back-pressure. A process worker encodes a reply once at most 16 MiB of its earlier replies
//!   are unsent. While a node's connection is behind, the node's lane holds large replies back, also those in shared
//!   memory (`Inbox::accepts_large_replies`), and passes on small messages of other workers.

use std::sync::Arc;
use std::time::Duration;

use super::lane_set::Lanes;
use crate::channel::{Channel, FrameSize, SMALL_FRAME};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::shared_memory::{ReusedMemory, Snapshot};
use crate::value::Value;
use crate::wire::{self, Frame, Pieces, SessionTransfers, Transfer};

/// The values of one command before it takes the order ticket. `None` if they have at most [`SMALL_FRAME`] bytes.
#[derive(Debug)]
pub(crate) struct Values(Option<Box<Large>>);

/// Values of more than [`SMALL_FRAME`] bytes.
#[derive(Debug)]
struct Large {
    /// A copy of the large tensors in shared memory, for lanes that share memory.
    snapshot: Option<Arc<Snapshot>>,
    /// The transfer of the large tensors, for lanes that share no memory.
    ahead: Option<Ahead>,
    /// The lanes that the values were prepared for.
    lanes: Lanes,
}

/// Large tensors that were sent ahead of their command. Dropping this value withdraws them if the command was not sent.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) transfer: Arc<Transfer>,
    to: Option<WorkerId>,
    /// The place of `to`.
    place: Option<WorkerId>,
    /// The lanes of the transfer.
    lanes: Vec<Arc<dyn Channel>>,
    /// Number of lanes that have begun.
    begun: usize,
    is_passed: bool,
}

/// The state that the transfers of a session share.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    shared: Arc<SessionTransfers>,
    /// For the copies of tensors that one worker copies before it replies.
    memory: ReusedMemory,
}

impl Values {
    /// A command without large values.
    pub(crate) const SMALL: Self = Self(None);

    /// The size of a frame with the values.
    pub(super) const fn size(&self) -> FrameSize {
        if self.0.is_some() { FrameSize::Large } else { FrameSize::Small }
    }

    /// If the session has other lanes by now, the tensors are sent in the frame itself.
    pub(super) fn fit(&mut self, lanes: &Lanes) {
        if let Some(large) = self.0.as_mut().filter(|large| !large.lanes.is(lanes)) {
            // Withdraws the transfer.
            (large.ahead, large.snapshot) = (None, None);
        }
    }

    /// The large tensors were sent ahead of the command.
    pub(super) fn set_ahead(&mut self, ahead: Ahead) {
        if let Some(large) = &mut self.0 {
            large.ahead = Some(ahead);
        }
    }

    /// Adds the location of the large tensors to the frame.
    pub(super) fn put_in(&self, frame: &mut Frame) {
        let Some(large) = &self.0 else { return };
        if large.snapshot.is_some() {
            frame.set_snapshot(large.snapshot.clone());
        }
        if let Some(ahead) = &large.ahead {
            frame.set_transfer(&ahead.transfer);
        }
    }

    /// The copy in shared memory.
    pub(super) fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.0.as_ref()?.snapshot.clone()
    }

    /// Records that all lanes have the frame.
    pub(super) fn note_passed(&mut self) {
        if let Some(ahead) = self.0.as_mut().and_then(|large| large.ahead.as_mut()) {
            ahead.is_passed = true;
        }
    }
}

impl Transfers {
    /// Checks the size of the values of `operation`, which go to worker `to` or to all, and copies large tensors to
    /// shared memory if a lane of `lanes` requires that. The copy is made without the order ticket, so that other
    /// commands do not wait for it.
    ///
    /// # Errors
    /// The values are above a lane's limit.
    pub(super) fn check(
        &self,
        operation: &str,
        to: Option<WorkerId>,
        lanes: &Lanes,
        values: &[Value],
    ) -> Result<Values> {
        let bytes = payload_len(values);
        if bytes <= SMALL_FRAME {
            return Ok(Values::SMALL);
        }
        let place = to.and_then(|worker| lanes.members.place(worker));
        let concerned = || lanes.iter().filter(|lane| is_concerned(&***lane, place));
        let limit = concerned().map(|lane| lane.facts().value_limit).min().unwrap_or(usize::MAX);
        if bytes > limit {
            return Err(above_limit(operation, to, bytes, limit, lanes.pass_references_to_worker_0()));
        }
        let wants_copy = concerned().map(|lane| lane.facts()).any(|lane| lane.needs_bytes && lane.shares_memory);
        let reused = || match (to, values) {
            (Some(_), [Value::Tensor(tensor)]) if wants_copy => wire::snapshot_in(&self.memory, tensor),
            _ => None,
        };
        let snapshot = reused().or_else(|| wants_copy.then(|| wire::snapshot(values)).flatten());
        Ok(Values(Some(Box::new(Large { snapshot, ahead: None, lanes: lanes.clone() }))))
    }

    /// A transfer of so many bytes.
    pub(super) fn transfer(&self, number: u64, bytes: usize) -> Arc<Transfer> {
        Arc::new(Transfer::new(number, bytes, self.shared.clone()))
    }

    /// Takes memory back whose tensor the worker has copied.
    pub(super) fn take_back(&self, snapshot: &Snapshot) {
        self.memory.take_back(snapshot);
    }
}

impl Ahead {
    pub(super) fn new(
        transfer: Arc<Transfer>,
        to: Option<WorkerId>,
        place: Option<WorkerId>,
        lanes: Vec<Arc<dyn Channel>>,
    ) -> Self {
        Self { transfer, to, place, lanes, begun: 0, is_passed: false }
    }

    /// Begins the transfer, in lane order, on the lanes that have capacity now. Returns whether all lanes have begun;
    /// then `content` is `None`.
    pub(super) fn begin(&mut self, content: &mut Option<Arc<Pieces>>) -> Result<bool> {
        if let Some(tensors) = content {
            while let Some(lane) = self.lanes.get(self.begun) {
                let ahead = lane.ahead().ok_or_else(|| Error::state("the lane sends nothing ahead of frames"))?;
                if !ahead.send_ahead(self.place, &self.transfer, tensors)? {
                    return Ok(false);
                }
                self.begun += 1;
            }
            // The tensors are released once the lanes have read them.
            *content = None;
        }
        Ok(true)
    }

    pub(super) fn stalled(&self, operation: &str, after: Duration) -> Error {
        let to: Vec<String> = match self.to {
            Some(worker) => vec![worker.to_string()],
            None => self.lanes.iter().map(|lane| lane.facts().workers.to_string()).collect(),
        };
        let (bytes, moved) = (self.transfer.byte_len(), self.transfer.moved());
        let state = format!("{} took {moved} bytes of tensors of {bytes} bytes, and then nothing more", to.join(", "));
        Error::Deadline { operation: operation.into(), after, state }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if !self.is_passed {
            let begun = self.lanes[..self.begun].iter().filter_map(|lane| lane.ahead());
            begun.for_each(|ahead| ahead.withdraw(self.place, &self.transfer));
        }
    }
}

/// Total size of the values in bytes.
pub(super) fn payload_len(values: &[Value]) -> usize {
    values.iter().map(Value::payload_len).sum()
}

/// Checks that the values of `frame` can be sent over the lanes of their workers. The caller keeps the result until all
/// lanes have the frame: until then a worker thread that gets a tensor by reference can't write to it.
///
/// # Errors
/// A value can't leave the process.
pub(super) fn check_crossing(lanes: &[Arc<dyn Channel>], frame: &Frame) -> Result<Option<Arc<Pieces>>> {
    let mut kept = None;
    if payload_len(frame.command().values()) <= SMALL_FRAME {
        frame.bytes()?;
        return Ok(kept);
    }
    let place = match frame.command() {
        Command::DebugSet { worker, .. } => Some(*worker),
        _ => None,
    };
    for lane in lanes.iter().filter(|lane| lane.facts().needs_bytes && is_concerned(&***lane, place)) {
        if lane.facts().shares_memory && frame.bytes_and_snapshot().is_some() {
            continue;
        }
        if lane.ahead().is_some() && frame.transfer().is_some() {
            frame.bytes_without_tensors()?;
            continue;
        }
        kept = frame.pieces()?;
        if kept.is_none() {
            frame.bytes()?;
        }
    }
    Ok(kept)
}

pub(super) fn is_concerned(lane: &dyn Channel, place: Option<WorkerId>) -> bool {
    place.is_none_or(|place| lane.facts().workers.contains(place))
}

/// The error of values that are too large. Worker 0 takes tensors of any size if it `takes_references`.
fn above_limit(operation: &str, to: Option<WorkerId>, bytes: usize, limit: usize, takes_references: bool) -> Error {
    let (what, instead) = match to {
        Some(worker) => (format!("a value of {bytes} bytes for {worker}"), "and send it from there (`send_to_worker`)"),
        None => (format!("arguments of {bytes} bytes"), "pass it on (`broadcast_from`), and call with its handle"),
    };
    let instead = if takes_references {
        format!(", or copy the tensor to worker 0 (`copy_to_worker_0`), {instead}")
    } else {
        String::new()
    };
    Error::invalid(format!(
        "{operation}: {what} can't go to another process, the limit is {limit} bytes for the values of one command; raise the \
         limit (`value_limit`){instead}"
    ))
}
