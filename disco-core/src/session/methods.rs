//! The methods of a session over lanes.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use futures_lite::future::Future;

use super::changed::{Replaced, Resized};
use super::lane_session::LaneSession;
use super::plan::Goal;
use super::replacement_policy::When;
use super::submission::Submission;
use super::{Arguments, DRef, Session};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::stream::asking::{Answer, Judge, Question, Rest};
use crate::stream::command_stream::CommandStream;
use crate::stream::fleet::Fleet;
use crate::stream::reply_table::{Replies, ReplyTable};
use crate::tensor::Tensor;
use crate::value::Value;
use crate::world::World;

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

impl LaneSession {
    /// The result of a question with small values, if it is answered at once; else the future of the remaining steps.
    /// A question that is answered at once takes no future of its own, which would take a third of its time.
    fn ask<T: Send + 'static>(&self, question: Question, judge: Judge<T>) -> Answer<T, Boxed<'_, T>> {
        let rest = if self.replaces_at_once() {
            Rest::Ask(question)
        } else {
            match self.stream.ask(question, judge) {
                Answer::Now(result) => return Answer::Now(result),
                Answer::Later(rest) => rest,
            }
        };
        Answer::Later(Box::pin(self.while_running(move || self.stream.ask_rest(rest, judge))))
    }

    /// Whether workers are replaced before a program asks for it.
    pub(super) fn replaces_at_once(&self) -> bool {
        self.when == When::AtOnce
    }

    /// Runs a method of the session once lost workers are replaced. If the session does not replace them at once, this is
    /// `method` alone.
    pub(super) async fn while_running<T, F>(&self, method: impl FnOnce() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.await_replacement().await?;
        method().await.inspect_err(|error| self.note_told(error))
    }

    /// If `error` is a loss or the failure of a worker, no later method returns it again that would otherwise not fail.
    pub(super) fn note_told(&self, error: &Error) {
        match error {
            Error::Lost(_) => _ = self.stream.reply_table.fleet(Fleet::take_untold),
            Error::Worker(_) | Error::Earlier { .. } => self.stream.reply_table.note_failure_told(),
            _ => {}
        }
    }

    /// Waits until lost workers are replaced, if the session does that at once.
    ///
    /// # Errors
    /// The loss, if no method has returned it yet; or the reason why workers can't be replaced.
    async fn await_replacement(&self) -> Result<()> {
        let is_due = self.replaces_at_once() && self.stream.reply_table.takes_no_commands();
        if !is_due || self.stream.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        Box::pin(self.await_replacement_at_once()).await
    }

    async fn await_replacement_at_once(&self) -> Result<()> {
        self.stream.reply_table.check_thread()?;
        if let Some(loss) = self.stream.reply_table.fleet(Fleet::take_untold) {
            return self.stream.explain(Err(loss)).await;
        }
        match self.stream.reply_table.check_lost() {
            Ok(()) => Ok(()),
            // A worker that was lost meanwhile is replaced, too.
            Err(_) => self.change(Goal::Replace).await?.untold.map_or(Ok(()), Err),
        }
    }
}

#[async_trait]
impl Session for LaneSession {
    fn world(&self) -> World {
        self.stream.world()
    }

    async fn function(&self, name: &str) -> Result<DRef> {
        self.while_running(|| self.stream.function(name)).await
    }

    fn submit<'s>(&'s self, function: &'s DRef, mut args: Arguments) -> Submission<'s> {
        match self.stream.try_submit(function, &mut args, self.replaces_at_once()) {
            Some(submitted) => Submission::Now(submitted.inspect_err(|error| self.note_told(error))),
            None => Submission::Later(Box::pin(self.while_running(move || self.stream.submit(function, args)))),
        }
    }

    fn cancel(&self, call: &DRef, why: &str) -> Result<()> {
        self.owner.check()?;
        self.stream.cancel(call, why)
    }

    async fn sync_worker(&self, worker: WorkerId) -> Result<()> {
        let question = Question::new("sync_worker", Some(worker), Command::SyncWorker { worker });
        match self.ask(question, |stream, replies| stream.check_replies(&replies)) {
            Answer::Now(()) => Ok(()),
            Answer::Later(rest) => rest.await,
        }
    }

    async fn sync_all(&self) -> Result<()> {
        let question = Question::new("sync_all", None, Command::SyncAll);
        match self.ask(question, |stream, replies| stream.check_all_replies(&replies)) {
            Answer::Now(()) => Ok(()),
            Answer::Later(rest) => rest.await,
        }
    }

    async fn value(&self, handle: &DRef, worker: WorkerId) -> Result<Value> {
        match self.ask(self.stream.question_of_get(handle, worker)?, CommandStream::value) {
            Answer::Now(value) => Ok(value),
            Answer::Later(rest) => rest.await,
        }
    }

    async fn values(&self, handle: &DRef) -> Result<Vec<Value>> {
        self.stream.freed_ids.check(handle)?;
        let command = Command::GetAll { register: handle.register() };
        let values = |stream: &CommandStream, replies: Replies| {
            stream.check_all_replies(&replies)?;
            Ok(replies.values().collect())
        };
        match self.ask(Question::new("get_all", None, command), values) {
            Answer::Now(values) => Ok(values),
            Answer::Later(rest) => rest.await,
        }
    }

    async fn set(&self, handle: &DRef, worker: WorkerId, value: Value) -> Result<()> {
        self.while_running(|| self.stream.set_while("set", ReplyTable::check_lost, handle, worker, value)).await
    }

    async fn copy_from_worker_0(&self, host: &Tensor, from: &DRef) -> Result<()> {
        self.while_running(|| self.stream.copy_from_0(host, from)).await
    }

    async fn copy_to_worker_0(&self, host: &Tensor, to: &DRef) -> Result<()> {
        self.while_running(|| self.stream.copy_to_0(host, to)).await
    }

    async fn recover(&self) -> Result<()> {
        if self.replaces_on_recovery() {
            self.change(Goal::Replace).await.map(drop)
        } else {
            self.while_running(|| self.stream.recover()).await
        }
    }

    async fn replace_lost(&self) -> Result<Replaced> {
        self.replace_and_report().await
    }

    async fn resize(&self, workers: usize) -> Result<Resized> {
        self.resize_and_report(workers).await
    }

    async fn shutdown(&self) -> Result<()> {
        self.shut_down().await
    }
}

impl fmt::Debug for LaneSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let closed = self.stream.closed.load(Ordering::Relaxed);
        f.debug_struct("LaneSession").field("world", &self.world()).field("closed", &closed).finish_non_exhaustive()
    }
}
