//! The worker's end of a streaming call.

use super::WorkerContext;
use crate::emitted::{Sent, WINDOW, result_key, taken_key};
use crate::error::{Error, Result};
use crate::signal::Reply;
use crate::tensor::Tensor;
use crate::value::Value;

/// The stream of the call that the worker runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Emitting {
    stream: u64,
    /// Number of results so far.
    sent: u64,
}

impl WorkerContext {
    /// Sends a result of the [streaming call](crate::session::LaneSession::call_streaming) that the worker runs. Results
    /// of one worker arrive in order; a tensor arrives as a copy. Once the controller has left 16 results of this worker
    /// untaken, the next one waits for it, for at most [`WorkerContext::deadline`].
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
    /// [`Error::Cancelled`] once the controller has dropped the stream or cancelled the call. In a streaming call also
    /// [`Error::Invalid`] if the value can't leave the process; [`Error::Deadline`]; errors of the store.
    pub fn emit(&mut self, value: impl Into<Value>) -> Result<()> {
        let Some(Emitting { stream, sent: number }) = self.emitting else { return self.check_cancelled() };
        let value = value.into().map_tensors(&mut |tensor| self.on_host(tensor))?;
        let worker = self.worker();
        if let Some(first) = number.checked_sub(WINDOW) {
            let taken = taken_key(stream, worker, first);
            self.link.await_key(&*self.link.store(), &taken, self.deadline(), || Ok(())).map_err(
                |error| match error {
                    Error::Deadline { after, .. } => Error::Deadline {
                        operation: format!("emit of result {number}"),
                        after,
                        state: format!("the controller has not taken result {first}"),
                    },
                    other => other,
                },
            )?;
        }
        self.check_cancelled()?;
        self.link.store().set(&result_key(stream, worker, number), &Sent::Value(value).encode(worker)?)?;
        if let Some(emitting) = &mut self.emitting {
            emitting.sent += 1;
        }
        Ok(())
    }

    fn check_cancelled(&self) -> Result<()> {
        self.link.cancelled_now().map_or(Ok(()), |cause| Err(Error::Cancelled { cause }))
    }

    /// Begins a streaming call.
    pub(crate) fn begin_stream(&mut self, stream: u64) {
        self.emitting = Some(Emitting { stream, sent: 0 });
    }

    /// Ends the streaming call, and tells the controller.
    pub(crate) fn end_stream(&mut self, outcome: Reply) {
        let (worker, Some(Emitting { stream, sent })) = (self.worker(), self.emitting.take()) else { return };
        let end = Sent::End(outcome.map(|_| Value::None)).encode(worker);
        let end = end.and_then(|end| self.link.store().set(&result_key(stream, worker, sent), &end));
        if let Err(error) = end {
            // The session has failed, and the controller knows that.
            tracing::debug!(%error, "the end of a stream was not sent");
        }
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
