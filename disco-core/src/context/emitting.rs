//! The worker's end of a streaming call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::WorkerContext;
use crate::error::{Error, Failure, Result};
use crate::signal::Notice;
use crate::tensor::Tensor;
use crate::value::Value;
use crate::wire;

/// Results of one worker that the controller has not taken, at most. The next one waits.
pub(crate) const WINDOW: u64 = 16;
/// Their bytes, after which the next result waits, too.
pub(crate) const WINDOW_BYTES: u64 = 1 << 20;

/// The streaming call that the worker runs.
#[derive(Clone, Debug)]
pub(crate) struct Emitting {
    command: u64,
    /// Number of results so far.
    sent: u64,
    /// The sizes of the last results in bytes: those that the controller may not have taken.
    untaken: VecDeque<u64>,
}

impl Emitting {
    /// Notes that the controller has taken `count` results.
    fn note_taken(&mut self, count: u64) {
        let untaken = self.sent.saturating_sub(count) as usize;
        self.untaken.drain(..self.untaken.len().saturating_sub(untaken));
    }

    fn is_full(&self) -> bool {
        self.untaken.len() as u64 >= WINDOW || self.untaken.iter().sum::<u64>() >= WINDOW_BYTES
    }
}

impl WorkerContext {
    /// Sends a result of the [streaming call](crate::session::LaneSession::call_streaming) that the worker runs. Results
    /// of one worker arrive in order; a tensor arrives as a copy. Once the controller has left 16 results of this worker, or
    /// 1 MiB of them, untaken, the next one waits for it, for at most [`WorkerContext::deadline`].
    ///
    /// In any other call, which has no stream, the value is dropped, so that one function serves all kinds of calls.
    ///
    /// ```
    /// use disco_core::{Result, WorkerContext};
    ///
    /// /// Trains, and tells the loss of each epoch.
    /// fn train(ctx: &mut WorkerContext, epochs: usize) -> Result<f64> {
    ///     let mut loss = 1.0;
    ///     for _ in 0..epochs {
    ///         loss *= 0.5;
    ///         if ctx.worker().index() == 0 {
    ///             ctx.emit(loss)?;
    ///         }
    ///     }
    ///     Ok(loss)
    /// }
    /// # disco_core::register_function!("docs.train", train);
    /// ```
    ///
    /// # Errors
    /// [`Error::Cancelled`] once the controller has dropped the stream, cancelled the call or begun its shutdown;
    /// [`Error::Aborted`]. In a streaming call also [`Error::Invalid`] if the value can't leave the process;
    /// [`Error::Deadline`].
    pub fn emit(&mut self, value: impl Into<Value>) -> Result<()> {
        self.check_cancelled()?;
        let Some(mut emitting) = self.emitting.take() else { return Ok(()) };
        let emitted = self.emit_in(&mut emitting, value.into());
        self.emitting = Some(emitting);
        emitted
    }

    fn emit_in(&mut self, emitting: &mut Emitting, value: Value) -> Result<()> {
        let value = wire::encode_value(&value.map_tensors(&mut |tensor| self.on_host(tensor))?)?;
        let (start, command) = (Instant::now(), emitting.command);
        emitting.note_taken(self.link.taken(command));
        while emitting.is_full() {
            let oldest = emitting.sent - emitting.untaken.len() as u64;
            let left = self.deadline().saturating_sub(start.elapsed());
            self.link.await_taken(command, oldest, left).map_err(|error| match error {
                Error::Deadline { state, .. } => {
                    let operation = format!("emit of result {}", emitting.sent);
                    Error::Deadline { operation, after: self.deadline(), state }
                }
                other => other,
            })?;
            emitting.note_taken(self.link.taken(command));
        }
        let number = emitting.sent;
        emitting.sent += 1;
        emitting.untaken.push_back(value.len() as u64);
        self.link.notify(Notice::Result { command, number, value: value.into() });
        Ok(())
    }

    fn check_cancelled(&self) -> Result<()> {
        if let Some(cause) = self.link.cancelled_now() {
            return Err(Error::Cancelled { cause });
        }
        self.link.check_aborted()
    }

    /// Begins a streaming call.
    pub(crate) fn begin_stream(&mut self, command: u64) {
        self.emitting = Some(Emitting { command, sent: 0, untaken: VecDeque::new() });
    }

    /// Ends the streaming call, and tells the controller.
    pub(crate) fn end_stream(&mut self, command: u64, outcome: Result<(), Arc<Failure>>) {
        let count = self.emitting.take().map_or(0, |emitting| emitting.sent);
        self.link.notify(Notice::ResultsEnd { command, count, outcome });
    }

    /// A tensor of the host with the elements of `tensor`.
    pub(crate) fn on_host(&mut self, tensor: &Tensor) -> Result<Tensor> {
        if tensor.device().is_host() {
            if tensor.storage().is_written() {
                // By a started operation.
                self.synchronize()?;
            }
            return Ok(tensor.clone());
        }
        let host = Tensor::zeros(tensor.dtype(), tensor.shape().clone())?;
        self.queue().copy_out(&host, tensor)?;
        self.synchronize()?;
        Ok(host)
    }
}
