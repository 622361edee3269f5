//! The results that a call sends while it runs, on the controller.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{self, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures_lite::Stream as _;

use super::{Arguments, DRef, IntoArgs, LaneSession, Session, SessionExt as _};
use crate::error::{Error, Result};
use crate::function::{CALL_STREAMING, WINDOW, result_key, taken_key};
use crate::id::WorkerId;
use crate::store::{SharedStore, StoreCall};
use crate::value::Value;
use crate::wire::{self, Packet};

/// The results of a running call, in the order of their arrival; those of one worker in the order in which it has sent
/// them. [`LaneSession::call_streaming`] makes it.
///
/// Dropping it before the end cancels the call.
pub struct Results<'s> {
    session: &'s LaneSession,
    store: Arc<dyn SharedStore>,
    epoch: u64,
    stream: u64,
    call: DRef,
    arrived: UnboundedReceiver<Arrived>,
    sender: UnboundedSender<Arrived>,
    /// For each worker the number of its next result.
    next: BTreeMap<WorkerId, u64>,
    end: End<'s>,
}

/// A result as bytes.
type Arrived = (WorkerId, Vec<u8>);

enum End<'s> {
    /// The wait until all workers have executed the call.
    Running(Pin<Box<dyn Future<Output = Result<()>> + Send + 's>>),
    Ended(Result<()>),
    Told,
}

impl LaneSession {
    /// Calls a worker function that [emits](crate::WorkerContext::emit) results while it runs. The stream ends when all workers
    /// have executed the call; what they return is the object of [`Results::call`], as of any call.
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
    /// As [`SessionExt::call_named`](super::SessionExt::call_named); [`Error::State`] if the lanes of the session have no store
    /// (workers of TVM's Disco).
    pub async fn call_streaming(&self, function: &str, args: impl IntoArgs + Send) -> Result<Results<'_>> {
        static STREAMS: AtomicU64 = AtomicU64::new(0);
        let stream = STREAMS.fetch_add(1, Ordering::Relaxed);
        let store = self.stream.lanes().iter().find_map(|lane| lane.store());
        let store = store.ok_or_else(|| Error::state("call_streaming: the lanes of this session have no store"))?;
        let function = self.function(function).await?;
        let mut all = Arguments::with_capacity(2);
        all.push(&function);
        all.push(stream.cast_signed());
        all.append(args.into_args());
        let (epoch, world) = (self.stream.reply_table.epoch(), self.world());
        let call = self.call_named(CALL_STREAMING, all).await?;
        let (sender, arrived) = mpsc::unbounded();
        let (next, end) =
            (world.workers().map(|worker| (worker, 0)).collect(), End::Running(Box::pin(self.sync_all())));
        let results = Results { session: self, store, epoch, stream, call, arrived, sender, next, end };
        results.next.keys().for_each(|worker| results.watch(*worker));
        Ok(results)
    }
}

impl Results<'_> {
    /// The handle of the call.
    pub fn call(&self) -> &DRef {
        &self.call
    }

    /// The next result, with its worker; `None` at the end. If the call fails, its error is the last result.
    ///
    /// # Cancel safety
    /// If the future is dropped, no result is lost.
    pub async fn next(&mut self) -> Option<Result<(WorkerId, Value)>> {
        future::poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(WorkerId, Value)>>> {
        if let End::Running(end) = &mut self.end
            && let Poll::Ready(ended) = end.as_mut().poll(context)
        {
            self.end = End::Ended(ended);
        }
        // Polled after the end: all results have arrived by then.
        if let Poll::Ready(Some((worker, bytes))) = Pin::new(&mut self.arrived).poll_next(context) {
            self.note_taken(worker);
            return Poll::Ready(Some(decode(&bytes).map(|value| (worker, value))));
        }
        match std::mem::replace(&mut self.end, End::Told) {
            running @ End::Running(_) => {
                self.end = running;
                Poll::Pending
            }
            End::Ended(Err(error)) => Poll::Ready(Some(Err(error))),
            End::Ended(Ok(())) | End::Told => Poll::Ready(None),
        }
    }

    /// Waits for the next result of a worker without a thread.
    fn watch(&self, worker: WorkerId) {
        let (sender, number) = (self.sender.clone(), self.next.get(&worker).copied().unwrap_or_default());
        let tell = move |result| {
            // An abort ends the call, whose error is the last result.
            if let Ok(Value::Bytes(bytes)) = result {
                _ = sender.unbounded_send((worker, bytes.to_vec()));
            }
        };
        let wait = StoreCall::Wait(result_key(self.stream, worker, number).into(), Duration::MAX);
        self.store.call(self.epoch, wait, Box::new(tell));
    }

    /// Lets the worker send one more result, and waits for its next one.
    fn note_taken(&mut self, worker: WorkerId) {
        let Some(next) = self.next.get_mut(&worker) else { return };
        let number = *next;
        *next += 1;
        self.tell(StoreCall::Delete(result_key(self.stream, worker, number).into()));
        self.tell(StoreCall::Set(taken_key(self.stream, worker, number).into(), [].into()));
        if let Some(read) = number.checked_sub(WINDOW) {
            self.tell(StoreCall::Delete(taken_key(self.stream, worker, read).into()));
        }
        self.watch(worker);
    }

    fn tell(&self, call: StoreCall) {
        self.store.call(self.epoch, call, Box::new(|_| ()));
    }
}

fn decode(bytes: &[u8]) -> Result<Value> {
    let (packet, _) = Packet::split(bytes)?;
    wire::decode_reply(packet)?.map_err(Error::Worker)
}

impl Drop for Results<'_> {
    /// Cancels the call if it runs, and removes its keys from the store.
    fn drop(&mut self) {
        if let End::Running(_) = self.end
            && let Err(error) = self.session.cancel(&self.call, "the stream of its results is dropped")
        {
            tracing::debug!(%error, "a call could not be cancelled");
        }
        for (worker, next) in &self.next {
            for number in next.saturating_sub(WINDOW)..*next {
                self.tell(StoreCall::Delete(taken_key(self.stream, *worker, number).into()));
            }
            // Setting the key ends the wait for it.
            self.tell(StoreCall::Set(result_key(self.stream, *worker, *next).into(), [].into()));
            for number in *next..=next + WINDOW {
                self.tell(StoreCall::Delete(result_key(self.stream, *worker, number).into()));
            }
        }
    }
}

impl fmt::Debug for Results<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results").field("call", &self.call).field("taken", &self.next).finish_non_exhaustive()
    }
}
