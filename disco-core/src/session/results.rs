//! The results that a call sends while it runs, on the controller.

use std::collections::BTreeSet;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_channel::mpsc::{self, UnboundedReceiver};
use futures_lite::{Stream, StreamExt};

use super::{Callee, DRef, IntoArgs, LaneSession};
use crate::calling::Sent;
use crate::error::{Error, Failure, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::value::Value;

/// The results of a running call, in the order of their arrival; those of one worker in the order in which it has sent
/// them. [`LaneSession::call_streaming`] makes it. If the call fails or is cancelled, its error is the last result.
///
/// Dropping it before the end cancels the call, and so does a shutdown of the session.
///
/// [`Results::next`] takes one result after the other. As a [`Stream`] of the crate `futures-core`, the value also has the
/// methods of `StreamExt` of `futures` or `futures-lite`:
///
/// ```
/// use disco_core::session::{LaneSession, Results};
/// use disco_core::{Result, Value};
/// use futures_lite::StreamExt;
///
/// /// The first three losses of worker 0. Dropping the stream then cancels the call.
/// async fn first_losses(session: &LaneSession) -> Result<Vec<Value>> {
///     let losses: Results<'_> = session.call_streaming("docs.train", (10,)).await?;
///     let mut of_worker_0 = losses.filter(|result| result.as_ref().map_or(true, |(worker, _)| worker.index() == 0)).take(3);
///     of_worker_0.try_fold(Vec::new(), |mut all, (_, loss)| {
///         all.push(loss);
///         Ok(all)
///     }).await
/// }
/// ```
pub struct Results<'s> {
    session: &'s LaneSession,
    call: DRef,
    /// The workers at the call.
    members: Members,
    arrived: UnboundedReceiver<(WorkerId, Sent)>,
    /// The places of the workers that have not ended the call.
    running: BTreeSet<WorkerId>,
    /// The first failure of a worker.
    failure: Option<Arc<Failure>>,
    end: End<'s>,
}

enum End<'s> {
    Running,
    /// The session has failed: the reason is asked for.
    Failed(Pin<Box<dyn Future<Output = Result<()>> + Send + 's>>),
    /// The first error of the call, which is the last result.
    Ended(Option<Error>),
}

impl LaneSession {
    /// Calls a worker function that [emits](crate::WorkerContext::emit) results while it runs. The stream ends when all workers
    /// have executed the call. The function's return values are the object of [`Results::call`], as of any call.
    ///
    /// ```
    /// # use disco_core::{Result, session::LaneSession};
    /// # async fn example(session: &LaneSession) -> Result<()> {
    /// let mut losses = session.call_streaming("docs.train", (10,)).await?;
    /// while let Some(loss) = losses.next().await {
    ///     let (worker, loss) = loss?;
    ///     println!("{worker}: {loss}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`call`](super::Session#method.call). Workers of TVM's Disco refuse such calls.
    pub async fn call_streaming<'f>(
        &self,
        function: impl Into<Callee<'f>> + Send,
        args: impl IntoArgs + Send,
    ) -> Result<Results<'_>> {
        let (sender, arrived) = mpsc::unbounded();
        let mut args = args.into_args();
        args.results = Some(sender);
        let call = self.call(function, args).await?;
        // Once workers are lost, no result comes any more.
        let table = &self.stream.reply_table;
        let members = table.members_of_stream(call.command()).unwrap_or_else(|| table.members());
        let (running, failure) = (members.places().collect(), None);
        Ok(Results { session: self, call, members, arrived, running, failure, end: End::Running })
    }
}

impl Results<'_> {
    /// The handle of the call.
    pub fn call(&self) -> &DRef {
        &self.call
    }

    /// The next result, with its worker; `None` at the end. If the call fails or is cancelled, its error is the last result.
    ///
    /// # Cancel safety
    /// If the future is dropped, no result is lost.
    pub async fn next(&mut self) -> Option<Result<(WorkerId, Value)>> {
        StreamExt::next(self).await
    }

    /// Notes something of the worker with this place. Returns a result with the number of its worker.
    fn note(&mut self, place: WorkerId, sent: Sent) -> Option<(WorkerId, Value)> {
        match sent {
            Sent::Value(value, bytes) => {
                self.session.stream.reply_table.note_taken(place, self.call.command(), bytes);
                return Some((self.members.worker(place).unwrap_or(place), value));
            }
            Sent::Unreadable(error) => {
                self.cancel("one of its results can't be read");
                self.end = End::Ended(Some(error.into()));
            }
            Sent::End(outcome) => {
                self.running.remove(&place);
                // A worker that was aborted has a failure, too; the cause is better.
                let known = self.failure.take();
                self.failure = match known {
                    Some(known) if known.aborted => outcome.err().or(Some(known)),
                    None => outcome.err(),
                    known => known,
                };
                if self.running.is_empty() {
                    self.note_end();
                }
            }
        }
        None
    }

    /// Cancels the call, also while the session is shut down.
    fn cancel(&self, why: &str) {
        let table = &self.session.stream.reply_table;
        let cancelled = table.check_lost().and_then(|()| table.cancel(self.call.command(), &why.into()));
        if let Err(error) = cancelled {
            tracing::debug!(%error, "a call could not be cancelled");
        }
    }

    /// No more results come.
    fn note_end(&mut self) {
        self.end = match self.failure.take() {
            Some(failure) if !failure.aborted => End::Ended(Some(Error::Worker(failure))),
            None if self.running.is_empty() => End::Ended(None),
            // The session knows the root cause.
            _ => End::Failed(Box::pin(self.session.sync_all())),
        };
    }
}

impl Stream for Results<'_> {
    type Item = Result<(WorkerId, Value)>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Err(error) = this.session.owner.check() {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            match &mut this.end {
                End::Ended(error) => return Poll::Ready(error.take().map(Err)),
                End::Failed(reason) => {
                    let reason = ready!(reason.as_mut().poll(context));
                    let other = || Error::state("call_streaming: the session has failed and recovered meanwhile");
                    this.end = End::Ended(Some(reason.err().unwrap_or_else(other)));
                }
                End::Running => match ready!(this.arrived.poll_next(context)) {
                    Some((place, sent)) => {
                        if let Some(result) = this.note(place, sent) {
                            return Poll::Ready(Some(Ok(result)));
                        }
                    }
                    None => this.note_end(),
                },
            }
        }
    }
}

impl Drop for Results<'_> {
    /// Cancels the call if it runs.
    fn drop(&mut self) {
        if self.session.owner.check().is_err() {
            // In a fork's copy, a thread that does not exist may hold a lock, or be about to add a result.
            mem::forget(mem::replace(&mut self.arrived, mpsc::unbounded().1));
            return;
        }
        self.session.stream.reply_table.end_stream(self.call.command());
        if !self.running.is_empty() {
            self.cancel("the stream of its results is dropped");
        }
    }
}

crate::format_as!(Debug for Results<'_>, |it| "Results {{ call: {:?}, running: {:?}, .. }}", it.call, it.running);
