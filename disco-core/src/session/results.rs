//! The results that a call sends while it runs, on the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use event_listener::EventListener;
use futures_channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures_lite::{Stream, StreamExt};

use super::{DRef, IntoArgs, LaneSession, Session, SessionExt as _};
use crate::calling::{Calling, ResultStream};
use crate::emitted::{Sent, WINDOW, result_key, taken_key};
use crate::error::{Error, Failure, Result};
use crate::id::WorkerId;
use crate::store::{SharedStore, StoreCall};
use crate::stream::reply_table::ReplyTable;
use crate::value::Value;

/// The results of a running call, in the order of their arrival; those of one worker in the order in which it has sent
/// them. [`LaneSession::call_streaming`] makes it. If the call fails or is cancelled, its error is the last result.
///
/// Dropping it before the end cancels the call.
///
/// [`Results::next`] takes one result after the other. As a [`Stream`] of the crate `futures-core`, the value also has the
/// methods of `StreamExt` of `futures` or `futures-lite`:
///
/// ```
/// use disco_core::session::{LaneSession, Results};
/// use disco_core::{Result, Session, Value};
/// use futures_lite::StreamExt;
///
/// /// The first three losses of worker 0. Dropping the stream then cancels the call.
/// async fn first_losses(session: &LaneSession) -> Result<Vec<Value>> {
///     let train = session.function("docs.train").await?;
///     let losses: Results<'_> = session.call_streaming(&train, (10,)).await?;
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
    source: Arc<Source>,
    arrived: UnboundedReceiver<(WorkerId, Arrived)>,
    /// For each worker the number of results that were taken.
    taken: BTreeMap<WorkerId, u64>,
    /// The workers that have not ended the call.
    running: BTreeSet<WorkerId>,
    /// The first failure of a worker.
    failure: Option<Arc<Failure>>,
    end: End<'s>,
    /// Hears a failure of the session; none before the first poll and after each notification.
    changed: Option<EventListener>,
}

/// Something of a worker.
enum Arrived {
    Sent(Sent),
    /// The store of the call's epoch takes no more results.
    Closed,
}

enum End<'s> {
    Running,
    /// The session has failed: the reason is asked for.
    Failed(Pin<Box<dyn Future<Output = Result<()>> + Send + 's>>),
    /// The first error of the call, which is the last result.
    Ended(Option<Error>),
}

/// Where results come from: the store of the session.
struct Source {
    store: Arc<dyn SharedStore>,
    epoch: u64,
    stream: u64,
    sender: UnboundedSender<(WorkerId, Arrived)>,
}

impl LaneSession {
    /// Calls a worker function that [emits](crate::WorkerContext::emit) results while it runs. The stream ends when all workers
    /// have executed the call. The function's return values are the object of [`Results::call`], as of any call.
    ///
    /// ```
    /// # use disco_core::{Result, Session, session::LaneSession};
    /// # async fn example(session: &LaneSession) -> Result<()> {
    /// let train = session.function("docs.train").await?;
    /// let mut losses = session.call_streaming(&train, (10,)).await?;
    /// while let Some(loss) = losses.next().await {
    ///     let (worker, loss) = loss?;
    ///     println!("{worker}: {loss}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`SessionExt::call`](super::SessionExt::call); [`Error::State`] if the lanes of the session have no store (workers of
    /// TVM's Disco). A recovery or resize between this call and its execution makes the call fail.
    pub async fn call_streaming(&self, function: &DRef, args: impl IntoArgs + Send) -> Result<Results<'_>> {
        static STREAMS: AtomicU64 = AtomicU64::new(0);
        let number = STREAMS.fetch_add(1, Ordering::Relaxed);
        let store = self.stream.lanes().iter().find_map(|lane| lane.store());
        let store = store.ok_or_else(|| Error::state("call_streaming: the lanes of this session have no store"))?;
        let (epoch, world) = (self.stream.reply_table.epoch(), self.world());
        let stream = Some(ResultStream { number, epoch, workers: world.size() as u32 });
        let mut args = args.into_args();
        args.calling = Some(Calling { parts: None, stream }.into());
        let call = self.call(function, args).await?;
        let (sender, arrived) = mpsc::unbounded();
        let source = Arc::new(Source { store, epoch, stream: number, sender });
        world.workers().for_each(|worker| source.watch(worker, 0));
        let (taken, running) = (BTreeMap::new(), world.workers().collect());
        Ok(Results {
            session: self,
            call,
            source,
            arrived,
            taken,
            running,
            failure: None,
            end: End::Running,
            changed: None,
        })
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

    /// Notes something of a worker. Returns the value if it is a result.
    fn note(&mut self, worker: WorkerId, arrived: Arrived) -> Option<Value> {
        match arrived {
            Arrived::Sent(Sent::Value(value)) => {
                let taken = self.taken.entry(worker).or_default();
                self.source.tell(StoreCall::Set(self.source.taken(worker, *taken), [].into()));
                *taken += 1;
                return Some(value);
            }
            Arrived::Sent(Sent::End(outcome)) => {
                self.running.remove(&worker);
                self.failure = self.failure.take().or(outcome.err());
                if self.running.is_empty() {
                    self.note_end();
                }
            }
            Arrived::Closed => self.note_end(),
        }
        None
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
        let stream = &this.session.stream;
        loop {
            match &mut this.end {
                End::Ended(error) => return Poll::Ready(error.take().map(Err)),
                End::Failed(reason) => {
                    let reason = ready!(reason.as_mut().poll(context));
                    let other = || Error::state("call_streaming: the session has failed and recovered meanwhile");
                    this.end = End::Ended(Some(reason.err().unwrap_or_else(other)));
                }
                End::Running => {
                    // Listens before it looks, so that no failure is missed.
                    let changed = this.changed.get_or_insert_with(|| stream.reply_table.has_capacity.listen());
                    let has_failed = stream.check("call_streaming", ReplyTable::check).is_err();
                    // Results that have arrived come before a failure of the session.
                    match this.arrived.poll_next(context) {
                        Poll::Ready(Some((worker, arrived))) => {
                            if let Some(value) = this.note(worker, arrived) {
                                return Poll::Ready(Some(Ok((worker, value))));
                            }
                        }
                        _ if has_failed => this.note_end(),
                        _ => {
                            ready!(Pin::new(changed).poll(context));
                            this.changed = None;
                        }
                    }
                }
            }
        }
    }
}

impl Source {
    fn result(&self, worker: WorkerId, number: u64) -> Arc<str> {
        result_key(self.stream, worker, number).into()
    }

    fn taken(&self, worker: WorkerId, number: u64) -> Arc<str> {
        taken_key(self.stream, worker, number).into()
    }

    /// Passes on result `number` of a worker once it is there, without a thread, and then the later ones. Each leaves the
    /// store at its arrival, also if nobody takes it any more.
    fn watch(self: &Arc<Self>, worker: WorkerId, number: u64) {
        let this = self.clone();
        let arrive = move |result: Result<Value>| {
            let sent = match result {
                Ok(Value::Bytes(bytes)) => Sent::decode(&bytes).map_or(Arrived::Closed, Arrived::Sent),
                _ => Arrived::Closed,
            };
            this.tell(StoreCall::Delete(this.result(worker, number)));
            // The worker has read the marks before these.
            let is_value = matches!(sent, Arrived::Sent(Sent::Value(_)));
            let read =
                number.saturating_sub(WINDOW)..if is_value { (number + 1).saturating_sub(WINDOW) } else { number };
            read.for_each(|read| this.tell(StoreCall::Delete(this.taken(worker, read))));
            // `Results` may be dropped.
            _ = this.sender.unbounded_send((worker, sent));
            if is_value {
                this.watch(worker, number + 1);
            }
        };
        self.store.call(self.epoch, StoreCall::Wait(self.result(worker, number), Duration::MAX), Box::new(arrive));
    }

    fn tell(&self, call: StoreCall) {
        self.store.call(self.epoch, call, Box::new(|_| ()));
    }
}

impl Drop for Results<'_> {
    /// Cancels the call if it runs.
    fn drop(&mut self) {
        if let End::Running = self.end
            && let Err(error) = self.session.cancel(&self.call, "the stream of its results is dropped")
        {
            tracing::debug!(%error, "a call could not be cancelled");
        }
    }
}

impl fmt::Debug for Results<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results").field("call", &self.call).field("taken", &self.taken).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryStore, Store as _, View};

    #[test]
    fn results_leave_the_store_whether_they_are_taken_or_not() {
        for is_dropped in [false, true] {
            let store: Arc<dyn SharedStore> = Arc::new(MemoryStore::default());
            let (sender, mut arrived) = mpsc::unbounded();
            let source = Arc::new(Source { store: store.clone(), epoch: 0, stream: 7, sender });
            let (worker, view) = (WorkerId::new(1), View::new(store.clone(), 0));
            source.watch(worker, 0);
            if is_dropped {
                arrived.close();
            }
            let send = |number: u64, sent: Sent| {
                view.set(&result_key(7, worker, number), &sent.encode(worker).unwrap()).unwrap();
            };
            for number in 0..40 {
                send(number, Sent::Value(Value::Int(number as i64)));
                source.tell(StoreCall::Set(source.taken(worker, number), [].into()));
            }
            send(40, Sent::End(Ok(Value::None)));
            assert!(format!("{store:?}").contains("values: {}"), "{store:?}");
            let mut numbers = Vec::new();
            while let Ok((_, Arrived::Sent(Sent::Value(Value::Int(number))))) = arrived.try_recv() {
                numbers.push(number);
            }
            assert!(numbers.into_iter().eq(0..if is_dropped { 0 } else { 40 }));
        }
    }
}
