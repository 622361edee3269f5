//! Results that a worker function sends while it runs.

use std::sync::Arc;
use std::time::Instant;

use super::WorkerContext;
use super::emitting::Emitting;
use crate::error::{Error, Failure, Result};
use crate::signal::Notice;
use crate::tensor::Tensor;
use crate::value::Value;
use crate::wire;

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
        let (start, command) = (Instant::now(), emitting.command());
        emitting.note_taken(self.link.taken(command));
        while emitting.is_full() {
            let left = self.deadline().saturating_sub(start.elapsed());
            self.link.await_taken(command, emitting.taken(), left).map_err(|error| match error {
                Error::Deadline { state, .. } => {
                    let operation = format!("emit of result {}", emitting.sent());
                    Error::Deadline { operation, after: self.deadline(), state }
                }
                other => other,
            })?;
            emitting.note_taken(self.link.taken(command));
        }
        let number = emitting.send(value.len() as u64);
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
        self.emitting = Some(Emitting::new(command));
    }

    /// Ends the streaming call, and tells the controller.
    pub(crate) fn end_stream(&mut self, command: u64, outcome: Result<(), Arc<Failure>>) {
        let count = self.emitting.take().map_or(0, |emitting| emitting.sent());
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
