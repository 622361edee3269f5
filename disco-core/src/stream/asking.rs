//! Commands that await replies.

use std::sync::atomic::Ordering;

use super::command_stream::CommandStream;
use super::lane_set::Lanes;
use super::large::Values;
use super::order::Order;
use super::reply_table::{Expected, Replies, ReplyTable};
use super::timeline::Recorder;
use super::{Arguments, DRef};
use crate::activity::Waiting;
use crate::channel::FrameSize;
use crate::command::Command;
use crate::error::{Error, ErrorKind, Result};
use crate::id::WorkerId;
use crate::metrics;
use crate::value::Value;

/// A command that workers reply to.
pub(crate) struct Question {
    operation: &'static str,
    /// The worker that replies; `None` if all do.
    from: Option<WorkerId>,
    command: Command,
}

impl Question {
    /// The question of method `operation` to one worker or to all.
    pub(crate) const fn new(operation: &'static str, to: Option<WorkerId>, command: Command) -> Self {
        Self { operation, from: to, command }
    }
}

/// A question that was sent.
pub(crate) struct Asked<'a> {
    pub(super) operation: &'static str,
    pub(super) expected: Expected<'a>,
    /// The lanes that have the command.
    pub(super) lanes: Lanes,
    /// Whether frames can be released after the wait.
    keeps_frames: bool,
    since: Option<Waiting>,
    measured: metrics::Wait,
}

/// The result of a question that was answered at once, or the way to the result.
pub(crate) enum Answer<T, L> {
    Now(T),
    Later(L),
}

/// A session whose workers have nothing to do. Dropping it lets other callers submit commands again.
pub(crate) struct Drained<'a>(&'a CommandStream);

impl Drop for Drained<'_> {
    fn drop(&mut self) {
        self.0.order().is_drained = false;
        self.0.reply_table.has_capacity.notify(usize::MAX);
    }
}

/// The remaining steps of a question.
pub(crate) enum Rest<'a> {
    Ask(Question),
    Wait(Box<Asked<'a>>),
    Explain(Error),
}

/// Makes the result of a method from replies.
pub(crate) type Judge<T> = fn(&CommandStream, Replies) -> Result<T>;

impl CommandStream {
    /// Submits a question with small values, and polls for the replies. Works on a failed session too.
    pub(crate) fn ask<T>(&self, question: Question, judge: Judge<T>) -> Answer<T, Rest<'_>> {
        let measured = metrics::Wait::start(question.operation);
        let asked = {
            let mut order = self.order();
            if !order.is_open(FrameSize::Small) || self.check(question.operation, ReplyTable::check_lost).is_err() {
                return Answer::Later(Rest::Ask(question));
            }
            match self.send_question(&mut order, Values::SMALL, question, measured) {
                Ok(asked) => asked,
                Err(error) => return Answer::Later(Rest::Explain(error)),
            }
        };
        let Some(replies) = self.poll_for(&asked) else { return Answer::Later(Rest::Wait(Box::new(asked))) };
        match self.end_wait(asked, replies).and_then(|replies| judge(self, replies)) {
            Ok(result) => Answer::Now(result),
            Err(error) => Answer::Later(Rest::Explain(error)),
        }
    }

    /// The result of a question, by its remaining steps.
    pub(crate) async fn ask_rest<T: Send>(&self, rest: Rest<'_>, judge: Judge<T>) -> Result<T> {
        match rest {
            Rest::Ask(question) => self.ask_while(ReplyTable::check_lost, Values::SMALL, question, judge).await,
            Rest::Wait(asked) => self.answer(*asked, None, judge).await,
            Rest::Explain(error) => self.explain(Err(error)).await,
        }
    }

    /// [`Self::ask`] with any values, in a session that `live` accepts.
    pub(super) async fn ask_while<T: Send>(
        &self,
        live: fn(&ReplyTable) -> Result<()>,
        values: Values,
        question: Question,
        judge: Judge<T>,
    ) -> Result<T> {
        let operation = question.operation;
        let measured = metrics::Wait::start(operation);
        let send = |order: &mut Order, values| self.send_question(order, values, question, measured);
        let asked = self.turn_with(operation, live, values, send);
        let asked = self.explain(asked.await).await?;
        let polled = self.poll_for(&asked);
        self.answer(asked, polled, judge).await
    }

    /// Submits a call of which one worker replies with its result.
    pub(crate) async fn call_returning(
        &self,
        worker: WorkerId,
        function: &DRef,
        mut args: Arguments,
    ) -> Result<Asked<'_>> {
        const OPERATION: &str = "call";
        self.check(OPERATION, ReplyTable::check)?;
        let values = self.prepare(OPERATION, None, ReplyTable::check, &args.values).await?;
        let measured = metrics::Wait::start(OPERATION);
        let send = |order: &mut Order, values| {
            order.lanes.members.world().check(worker)?;
            args.answers = order.lanes.members.place(worker);
            let expected = self.reply_table.expect(OPERATION, order.next_seq(), worker.into());
            // The worker frees the result with the next command.
            drop(self.call(order, values, function, &mut args)?);
            Ok(self.asked(OPERATION, order, expected, measured))
        };
        self.explain(self.turn_with(OPERATION, ReplyTable::check, values, send).await).await
    }

    /// The value in the reply to a call.
    pub(crate) async fn returned(&self, mut asked: Asked<'_>) -> Result<Value> {
        // The program may have done other work since the call: the wait begins now.
        asked.since = self.recorder.as_ref().map(Recorder::start_wait);
        asked.measured = metrics::Wait::start(asked.operation);
        let polled = self.poll_for(&asked);
        self.answer(asked, polled, Self::value).await
    }

    /// The result of a question, after its replies were polled for.
    async fn answer<T: Send>(&self, asked: Asked<'_>, polled: Option<Result<Replies>>, judge: Judge<T>) -> Result<T> {
        let replies = match polled {
            Some(replies) => replies,
            None => self.replies(&asked).await,
        };
        let replies = self.end_wait(asked, replies);
        self.explain(replies.and_then(|replies| judge(self, replies))).await
    }

    /// Implements [`Session::set`] in a session that `live` accepts.
    pub(crate) async fn set_while(
        &self,
        operation: &'static str,
        live: fn(&ReplyTable) -> Result<()>,
        handle: &DRef,
        worker: WorkerId,
        value: Value,
    ) -> Result<()> {
        self.freed_ids.check(handle)?;
        self.world().check(worker)?;
        if matches!(value, Value::Register(_)) {
            return Err(Error::invalid(format!("{operation}: a register can't hold a register")));
        }
        self.check(operation, live)?;
        let values = self.prepare(operation, Some(worker), live, std::slice::from_ref(&value)).await?;
        let snapshot = values.snapshot();
        let command = Command::DebugSet { register: handle.register(), worker, value };
        let question = Question::new(operation, Some(worker), command);
        self.ask_while(live, values, question, |session, replies| session.check_replies(&replies)).await?;
        snapshot.iter().for_each(|snapshot| self.transfers.take_back(snapshot));
        Ok(())
    }

    fn send_question(
        &self,
        order: &mut Order,
        values: Values,
        question: Question,
        measured: metrics::Wait,
    ) -> Result<Asked<'_>> {
        let Question { operation, from, command } = question;
        let (from, command) = order.lanes.address(from, command)?;
        let expected = self.reply_table.expect(operation, order.next_seq(), from);
        self.send(order, values, |_| Ok(command))?;
        Ok(self.asked(operation, order, expected, measured))
    }

    fn asked<'a>(
        &'a self,
        operation: &'static str,
        order: &Order,
        expected: Expected<'a>,
        measured: metrics::Wait,
    ) -> Asked<'a> {
        let (lanes, keeps_frames, since) =
            (order.lanes.clone(), order.keeps_frames(), self.recorder.as_ref().map(Recorder::start_wait));
        Asked { operation, expected, lanes, keeps_frames, since, measured }
    }

    fn end_wait(&self, asked: Asked<'_>, replies: Result<Replies>) -> Result<Replies> {
        if asked.keeps_frames || self.recorder.is_some() {
            let mut order = self.order();
            order.release();
            if let Some((recorder, since)) = self.recorder.as_ref().zip(asked.since) {
                recorder.note_wait(since, asked.operation, asked.expected.seq);
            }
        }
        asked.measured.end(replies.is_ok());
        replies
    }

    /// Fails with the failure of a worker: the root cause if it is known.
    pub(crate) fn check_replies(&self, replies: &Replies) -> Result<()> {
        let failures = replies.iter().filter_map(|reply| reply.as_ref().err());
        match failures.min_by_key(|failure| failure.aborted) {
            None => Ok(()),
            Some(failure) if failure.aborted => {
                Err(Error::Worker(self.reply_table.root_cause().unwrap_or_else(|| failure.clone())))
            }
            Some(failure) => Err(Error::Worker(failure.clone())),
        }
    }

    /// [`Self::check_replies`] for the replies of all workers.
    pub(crate) fn check_all_replies(&self, replies: &Replies) -> Result<()> {
        self.is_hung.store(false, Ordering::Relaxed);
        self.check_replies(replies).map_err(|error| match error {
            // That of the value, whatever has failed later.
            Error::Worker(failure) if failure.kind == ErrorKind::Cancelled => Error::Worker(failure),
            // Several workers may have failed. Calls are refused with the first failure, so report the same one here.
            error => self.reply_table.root_cause().map_or(error, Error::Worker),
        })
    }

    /// Waits until all workers have executed all earlier commands, or have refused them because the session has failed, so
    /// that none of them is inside a function. From the start of the wait until the result is dropped, other callers submit
    /// no commands.
    pub(crate) async fn drain(&self, operation: &'static str) -> Result<Drained<'_>> {
        let question = Question::new(operation, None, Command::SyncAll);
        let measured = metrics::Wait::start(operation);
        let send = |order: &mut Order| {
            let asked = self.send_question(order, Values::SMALL, question, measured)?;
            order.is_drained = true;
            Ok((asked, Drained(self)))
        };
        let asked = self.turn(operation, ReplyTable::check_lost, send).await;
        let (asked, drained) = self.explain(asked).await?;
        self.answer(asked, None, |_, _| Ok(())).await?;
        Ok(drained)
    }

    /// The question for the value of a register on one worker, of which [`Self::value`] is the judge.
    pub(crate) fn question_of_get(&self, handle: &DRef, worker: WorkerId) -> Result<Question> {
        self.freed_ids.check(handle)?;
        let command = Command::DebugGet { register: handle.register(), worker };
        Ok(Question::new("get", Some(worker), command))
    }

    /// The value in the reply of a worker.
    pub(crate) fn value(&self, replies: Replies) -> Result<Value> {
        self.check_replies(&replies)?;
        Ok(replies.values().next().unwrap_or(Value::None))
    }
}
