//! The methods of a session over lanes.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::changed::{Replaced, Resized};
use super::lane_session::LaneSession;
use super::plan::Goal;
use super::submission::Submission;
use super::{Arguments, DRef, Session};
use crate::command::Command;
use crate::error::Result;
use crate::id::WorkerId;
use crate::stream::asking::{Answer, Judge, Question, Rest};
use crate::stream::command_stream::CommandStream;
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
