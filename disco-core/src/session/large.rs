//! Commands with large values: size limits, and transfers to the lanes that need the values.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_lite::future;

use super::command_stream::CommandStream;
use super::lane_set::Lanes;
use super::reply_table::ReplyTable;
use super::worker_0::takes_references;
use crate::channel::{Channel, FrameSize, SMALL_FRAME};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::shared_memory::{ReusedMemory, Snapshot};
use crate::value::Value;
use crate::wire::{self, Frame, Pieces, SessionTransfers, Transfer};

/// Time without a byte of any transfer after which a transfer stops waiting for its budget, and its tensors go with
/// their command.
const QUIET_LIMIT: Duration = Duration::from_secs(1);

/// The values of one command before it takes the order ticket. `None` if they have at most [`SMALL_FRAME`] bytes.
#[derive(Debug)]
pub(super) struct Values(Option<Box<Large>>);

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
struct Ahead {
    transfer: Arc<Transfer>,
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
pub(super) struct Transfers {
    shared: Arc<SessionTransfers>,
    /// For the copies of tensors that one worker copies before it replies.
    memory: ReusedMemory,
}

impl Values {
    /// A command without large values.
    pub(super) const SMALL: Self = Self(None);

    /// The size of a frame with the values.
    pub(super) const fn size(&self) -> FrameSize {
        if self.0.is_some() { FrameSize::Large } else { FrameSize::Small }
    }

    /// Checks the size of the values of `operation`, which go to worker `to` or to all, and copies large tensors to
    /// shared memory if a lane of `lanes` requires that. The copy is made without the order ticket, so that other
    /// commands do not wait for it.
    ///
    /// # Errors
    /// The values are above a lane's limit.
    fn check(
        operation: &str,
        to: Option<WorkerId>,
        lanes: &Lanes,
        values: &[Value],
        memory: &ReusedMemory,
    ) -> Result<Self> {
        let bytes = payload_len(values);
        if bytes <= SMALL_FRAME {
            return Ok(Self::SMALL);
        }
        let place = to.and_then(|worker| lanes.members.place(worker));
        let concerned = || lanes.iter().filter(|lane| is_concerned(&***lane, place));
        let limit = concerned().map(|lane| lane.facts().value_limit).min().unwrap_or(usize::MAX);
        if bytes > limit {
            return Err(above_limit(operation, to, bytes, limit, takes_references(lanes)));
        }
        let wants_copy = concerned().map(|lane| lane.facts()).any(|lane| lane.needs_bytes && lane.shares_memory);
        let reused = || match (to, values) {
            (Some(_), [Value::Tensor(tensor)]) if wants_copy => wire::snapshot_in(memory, tensor),
            _ => None,
        };
        let snapshot = reused().or_else(|| wants_copy.then(|| wire::snapshot(values)).flatten());
        Ok(Self(Some(Box::new(Large { snapshot, ahead: None, lanes: lanes.clone() }))))
    }

    /// If the session has other lanes by now, the tensors are sent in the frame itself.
    pub(super) fn fit(&mut self, lanes: &Lanes) {
        if let Some(large) = self.0.as_mut().filter(|large| !large.lanes.is(lanes)) {
            // Withdraws the transfer.
            (large.ahead, large.snapshot) = (None, None);
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

impl CommandStream {
    /// Checks the size of the values of `operation`, which go to worker `to` or to all, and brings large tensors to the
    /// lanes of these workers: a copy in shared memory, or a transfer to the other end of the lane. The order ticket is
    /// not held meanwhile, so other commands do not wait.
    ///
    /// # Errors
    /// The values are above a lane's limit; a tensor can't leave the process; the session fails or is closed; no byte
    /// of the transfer has moved for [`Deadlines::stall`](super::Deadlines::stall).
    ///
    /// # Cancel safety
    /// Dropping the future or its result withdraws the transfer.
    pub(super) async fn prepare(
        &self,
        operation: &str,
        to: Option<WorkerId>,
        live: fn(&ReplyTable) -> Result<()>,
        values: &[Value],
    ) -> Result<Values> {
        if payload_len(values) <= SMALL_FRAME {
            return Ok(Values::SMALL);
        }
        let all = self.lanes();
        let mut prepared = Values::check(operation, to, &all, values, &self.transfers.memory)?;
        let place = to.and_then(|worker| all.members.place(worker));
        let lanes = all.iter().filter(|lane| lane.ahead().is_some() && is_concerned(&***lane, place));
        let lanes: Vec<_> = lanes.cloned().collect();
        if let Some(large) = &mut prepared.0
            && !lanes.is_empty()
            && let Some(content) = Pieces::of_tensors(values)?
        {
            let id = self.order().next_transfer();
            let transfer = Arc::new(Transfer::new(id, content.byte_len(), self.transfers.shared.clone()));
            let ahead = large.ahead.insert(Ahead { transfer, to, place, lanes, begun: 0, is_passed: false });
            if !self.send_ahead(operation, live, ahead, content, &all).await? {
                large.ahead = None;
            }
        }
        Ok(prepared)
    }

    /// Waits until all bytes have been sent over `lanes`. Returns false if the tensors must go with their command: a
    /// budget stays exhausted because other callers hold transfers without polling the futures that own them; or the
    /// session has other lanes by now.
    async fn send_ahead(
        &self,
        operation: &str,
        live: fn(&ReplyTable) -> Result<()>,
        ahead: &mut Ahead,
        content: Pieces,
        lanes: &Lanes,
    ) -> Result<bool> {
        let mut content = Some(Arc::new(content));
        let ticks = self.ticker.start();
        let (mut seen, mut since) = ((false, 0), Instant::now());
        loop {
            let (changed, tick) = (ahead.transfer.listen(), ticks.next());
            self.check(operation, live)?;
            if !self.lanes().is(lanes) {
                return Ok(false);
            }
            let has_begun = ahead.begin(&mut content)?;
            if has_begun && ahead.transfer.is_sent() {
                return Ok(true);
            }
            future::or(changed, tick).await;
            let transfer = &ahead.transfer;
            let moved = if has_begun { transfer.moved() } else { transfer.moved_in_session() };
            if seen != (has_begun, moved) {
                (seen, since) = ((has_begun, moved), Instant::now());
            } else if !has_begun && since.elapsed() >= QUIET_LIMIT {
                return Ok(false);
            } else if has_begun && since.elapsed() >= self.limits.stall {
                self.is_hung.store(true, Ordering::Relaxed);
                return Err(ahead.stalled(operation, self.limits.stall));
            }
        }
    }
}

impl Transfers {
    /// Takes memory back whose tensor the worker has copied.
    pub(super) fn take_back(&self, snapshot: &Snapshot) {
        self.memory.take_back(snapshot);
    }
}

impl Ahead {
    /// Begins the transfer, in lane order, on the lanes that have capacity now. Returns whether all lanes have begun;
    /// then `content` is `None`.
    fn begin(&mut self, content: &mut Option<Arc<Pieces>>) -> Result<bool> {
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

    fn stalled(&self, operation: &str, after: Duration) -> Error {
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

fn is_concerned(lane: &dyn Channel, place: Option<WorkerId>) -> bool {
    place.is_none_or(|place| lane.facts().workers.contains(place))
}

/// The error of values that are too large. Worker 0 takes tensors of any size if it `takes_references`.
fn above_limit(operation: &str, to: Option<WorkerId>, bytes: usize, limit: usize, takes_references: bool) -> Error {
    let (what, instead) = match to {
        Some(worker) => (format!("a value of {bytes} bytes for {worker}"), "and send it from there (`send_to_worker`)"),
        None => {
            (format!("arguments of {bytes} bytes"), "pass it on (`broadcast_from_worker0`), and call with its handle")
        }
    };
    let instead = match takes_references {
        true => format!(", or copy the tensor to worker 0 (`copy_to_worker_0`), {instead}"),
        false => String::new(),
    };
    Error::invalid(format!(
        "{operation}: {what} can't go to another process, the limit is {limit} bytes for the values of one command; raise the \
         limit (`Builder::value_limit`){instead}"
    ))
}
