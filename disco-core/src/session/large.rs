//! Commands with large values: their limit, and their way to the lanes that they concern.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use event_listener::Event;
use futures_lite::future;

use super::lanes::LaneSession;
use super::mail::Mail;
use crate::channel::{Channel, SMALL_FRAME};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::shared_memory::Snapshot;
use crate::value::Value;
use crate::wire::{self, Frame, Pieces, Transfer};

/// The values of one command before it takes the order ticket.
#[derive(Debug)]
pub(super) struct Values {
    /// More than [`SMALL_FRAME`] bytes.
    pub(super) is_large: bool,
    /// A copy of the large tensors for the lanes that share memory.
    snapshot: Option<Arc<Snapshot>>,
    /// The large tensors at the other ends of lanes that share no memory.
    ahead: Option<Ahead>,
}

/// Large tensors that went ahead of their command. Dropping it takes them back if the command has not gone.
#[derive(Debug)]
struct Ahead {
    transfer: Arc<Transfer>,
    to: Option<WorkerId>,
    /// Those over which it goes.
    lanes: Vec<Arc<dyn Channel>>,
    /// How many of the lanes have begun.
    begun: usize,
    is_passed: bool,
}

/// What the transfers of a session share.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    last: AtomicU64,
    changed: Arc<Event>,
}

impl Values {
    /// A command without large values.
    pub(super) const SMALL: Self = Self { is_large: false, snapshot: None, ahead: None };

    /// Checks the size of the values of `operation`, which go to worker `to` or to all, and copies large tensors to shared memory
    /// if a lane of `lanes` wants them there. The copy is made without the order ticket, so that other commands do not wait for it.
    ///
    /// # Errors
    /// The values are above a lane's limit.
    fn check(operation: &str, to: Option<WorkerId>, lanes: &[Arc<dyn Channel>], values: &[Value]) -> Result<Self> {
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
        let snapshot = wants_copy.then(|| wire::snapshot(values)).flatten();
        Ok(Self { is_large: true, snapshot, ahead: None })
    }

    /// Notes in the frame where its large tensors are.
    pub(super) fn put_in(&self, frame: &mut Frame) {
        if self.snapshot.is_some() {
            frame.set_snapshot(self.snapshot.clone());
        }
        if let Some(ahead) = &self.ahead {
            frame.set_transfer(&ahead.transfer);
        }
    }

    /// All lanes have the frame.
    pub(super) fn note_passed(&mut self) {
        if let Some(ahead) = &mut self.ahead {
            ahead.is_passed = true;
        }
    }
}

impl LaneSession {
    /// Checks the size of the values of `operation`, which go to worker `to` or to all, and brings large tensors to the lanes that they
    /// concern: a copy in shared memory, or a transfer to the other end of the lane. That takes no order ticket, so that other
    /// commands do not wait for it.
    ///
    /// # Errors
    /// The values are above a lane's limit; a tensor can't leave the process; the session fails or is closed; no byte of the transfer
    /// has moved for [`Deadlines::stall`](super::Deadlines::stall).
    ///
    /// # Cancel safety
    /// A transfer is taken back if the future, or its result, is dropped.
    pub(super) async fn prepare(
        &self,
        operation: &str,
        to: Option<WorkerId>,
        live: fn(&Mail) -> Result<()>,
        values: &[Value],
    ) -> Result<Values> {
        let mut prepared = Values::check(operation, to, &self.lanes, values)?;
        let lanes = self.lanes.iter().filter(|lane| lane.sends_ahead() && is_concerned(&***lane, to));
        let lanes: Vec<_> = lanes.cloned().collect();
        if prepared.is_large
            && !lanes.is_empty()
            && let Some(content) = Pieces::of_tensors(values)?
        {
            let id = self.transfers.last.fetch_add(1, Ordering::Relaxed) + 1;
            let transfer = Arc::new(Transfer::new(id, content.byte_len(), self.transfers.changed.clone()));
            let ahead = prepared.ahead.insert(Ahead { transfer, to, lanes, begun: 0, is_passed: false });
            self.send_ahead(operation, live, ahead, content).await?;
        }
        Ok(prepared)
    }

    /// Waits until all bytes have gone.
    async fn send_ahead(
        &self,
        operation: &str,
        live: fn(&Mail) -> Result<()>,
        ahead: &mut Ahead,
        content: Pieces,
    ) -> Result<()> {
        let mut content = Some(Arc::new(content));
        let ticks = self.ticker.start();
        let (mut moved, mut since) = (0, Instant::now());
        loop {
            let (changed, tick) = (ahead.transfer.listen(), ticks.next());
            self.check(operation, live)?;
            let is_begun = ahead.begin(&mut content)?;
            if is_begun && ahead.transfer.is_sent() {
                return Ok(());
            }
            future::or(changed, tick).await;
            // While other transfers use up the lane, their own limits count.
            if !is_begun || ahead.transfer.moved() != moved {
                (moved, since) = (ahead.transfer.moved(), Instant::now());
            } else if since.elapsed() >= self.limits.stall {
                self.is_hung.store(true, Ordering::Relaxed);
                return Err(ahead.stalled(operation, self.limits.stall));
            }
        }
    }
}

impl Ahead {
    /// Begins with the lanes that have room now, in their order. Returns whether all have begun; then `content` is none.
    fn begin(&mut self, content: &mut Option<Arc<Pieces>>) -> Result<bool> {
        if let Some(tensors) = content {
            while let Some(lane) = self.lanes.get(self.begun) {
                if !lane.send_ahead(self.to, &self.transfer, tensors)? {
                    return Ok(false);
                }
                self.begun += 1;
            }
            // The tensors are free once they have been read.
            *content = None;
        }
        Ok(true)
    }

    fn stalled(&self, operation: &str, after: Duration) -> Error {
        let to: Vec<String> = match self.to {
            Some(worker) => vec![worker.to_string()],
            None => self.lanes.iter().map(|lane| lane.workers().to_string()).collect(),
        };
        let (bytes, moved) = (self.transfer.byte_len(), self.transfer.moved());
        let state = format!("{} took {moved} bytes of tensors of {bytes} bytes, and then nothing more", to.join(", "));
        Error::Deadline { operation: operation.into(), after, state }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if !self.is_passed {
            self.lanes[..self.begun].iter().for_each(|lane| lane.withdraw(self.to, &self.transfer));
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
        if lane.sends_ahead() && frame.transfer().is_some() {
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
