//! The workers of nodes: they meet in the store, fail, reply, and recover. And the session that waits for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use disco_core::channel::{Notice, Signal};
use disco_core::error::{ErrorKind, Failure};
use disco_core::store::{self, StoreCall};
use disco_core::wire::{self, Message};
use disco_core::{Command, Error, Result, Value, WorkerId};

use super::super::terms::{Answer, Store};
use super::end::End;
use super::plan::Job;
use super::upper::WORKER_TIME;
use super::world::{Entry, To, World};
use crate::controller::{Conn, Event};
use crate::member::upward;
use crate::pending_requests::PendingRequests;

/// Deadline of calls of the store.
const STORE_LIMIT: Duration = Duration::from_secs(300);

/// The worker of a node that carries out commands, and the node's pending calls of the store.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) epoch: u64,
    poison: Option<Arc<Failure>>,
    queue: VecDeque<(u64, Command)>,
    /// The meeting that the worker is inside.
    inside: Option<u64>,
    /// It carries out no command any more, and does not leave.
    pub(super) is_stuck: bool,
    requests: PendingRequests<Caller>,
}

/// The caller that waits for an answer of the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Caller {
    /// The worker, inside the meeting of this number.
    Own(u64, Stage),
    /// A node behind this one, with this request.
    Child(Conn, u64),
}

/// The steps of a meeting.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    Arrives,
    OpensTheGate,
    Waits,
}

/// The session's part, as `LaneSession` implements it.
#[derive(Default)]
pub(super) struct Session {
    pub(super) epoch: u64,
    /// The jobs of commands.
    pub(super) jobs: BTreeMap<u64, Job>,
    pub(super) store: Store,
    /// The root cause of this epoch's failures.
    pub(super) failure: Option<Arc<Failure>>,
}

impl World {
    /// The worker of a node gets a command.
    pub(super) fn take_up(&mut self, end: usize, seq: u64, command: &Command) {
        self.ends[end].jobs.queue.push_back((seq, command.clone()));
        self.work(end);
    }

    /// The worker carries out commands until it waits for the store.
    fn work(&mut self, end: usize) {
        while self.ends[end].jobs.inside.is_none()
            && !self.ends[end].jobs.is_stuck
            && let Some((seq, command)) = self.ends[end].jobs.queue.pop_front()
        {
            match (command, self.session.jobs.get(&seq)) {
                (Command::SyncAll, _) => {
                    let at = self.clock + WORKER_TIME;
                    self.at(at, Entry::Reply(end, seq));
                }
                (Command::Recover { epoch }, _) => self.recover(end, epoch),
                (Command::Shutdown, _) => self.own_workers_leave(end),
                _ if self.ends[end].jobs.poison.is_some() => {}
                (_, Some(Job::Meet)) => {
                    self.ends[end].jobs.inside = Some(seq);
                    self.call_store(end, seq, Stage::Arrives, StoreCall::Add(format!("arrived {seq}").into(), 1));
                }
                (_, Some(Job::Fail(who))) if *who == end => self.fail(end, seq, false, "a bug".to_owned()),
                _ => {}
            }
        }
    }

    fn recover(&mut self, end: usize, epoch: u64) {
        let End { jobs, stopped_at, .. } = &mut self.ends[end];
        (jobs.epoch, jobs.poison) = (epoch, None);
        self.stopped -= usize::from(stopped_at.take().is_some());
        self.begin_epoch(end, epoch);
    }

    fn begin_epoch(&mut self, end: usize, epoch: u64) {
        let ended = self.ends[end].jobs.requests.begin(epoch);
        ended.into_iter().for_each(|caller| self.answered(end, caller, Err(store::over())));
    }

    fn call_store(&mut self, end: usize, seq: u64, stage: Stage, call: StoreCall) {
        let epoch = self.ends[end].jobs.epoch;
        self.ask_up(end, epoch, Caller::Own(seq, stage), call);
    }

    /// Passes a call of the store on to the parent, as `RemoteStore` does.
    pub(super) fn ask_up(&mut self, end: usize, epoch: u64, caller: Caller, call: StoreCall) {
        self.begin_epoch(end, epoch);
        let now = self.instant();
        match self.ends[end].jobs.requests.ask_in(epoch, caller, STORE_LIMIT, now) {
            Ok(id) => self.say(end, &Message::StoreRequest { id, epoch, call }),
            Err((caller, error)) => self.answered(end, caller, Err(error)),
        }
    }

    /// A call of the store by a child.
    pub(super) fn child_calls_store(&mut self, end: usize, (conn, id): (Conn, u64), epoch: u64, call: StoreCall) {
        if end > 0 {
            return self.ask_up(end, epoch, Caller::Child(conn, id), call);
        }
        self.session.store.call((conn, id), epoch, call);
    }

    /// Sends the answers of the session's store.
    pub(super) fn send_answers(&mut self) {
        for Answer { conn, id, result } in self.session.store.take_answers() {
            self.answer(0, conn, id, result);
        }
    }

    fn answer(&mut self, end: usize, conn: Conn, id: u64, result: Result<Value>) {
        let link = self.ends[end].lower.as_ref().and_then(|lower| lower.conns.get(&conn).copied());
        match (link, Message::Answer { id, result }.encode()) {
            (Some(link), Ok(packet)) => self.send(link, To::Child, Some(packet.into())),
            (Some(_), Err(error)) => self.record_violation(format!("end {end} can't answer: {error}")),
            (None, _) => {}
        }
    }

    /// An answer of the parent.
    pub(super) fn gets_answer(&mut self, end: usize, id: u64, result: Result<Value>) {
        if let Some(caller) = self.ends[end].jobs.requests.end(id) {
            self.answered(end, caller, result);
        }
    }

    fn answered(&mut self, end: usize, caller: Caller, result: Result<Value>) {
        let (seq, stage) = match caller {
            Caller::Child(conn, id) => return self.answer(end, conn, id, result),
            Caller::Own(seq, stage) => (seq, stage),
        };
        if self.ends[end].jobs.inside != Some(seq) {
            return self.record_violation(format!("node {end} gets an answer in meeting {seq}, which is over"));
        }
        let all = self.ends.len() as i64 - 1;
        match (stage, result) {
            (Stage::Arrives, Ok(Value::Int(arrived))) if arrived > all => {
                self.record_violation(format!("{arrived} arrivals of {all} nodes at command {seq}"));
            }
            (Stage::Arrives, Ok(Value::Int(arrived))) if arrived == all => {
                let call = StoreCall::Set(format!("gate {seq}").into(), [1].into());
                self.call_store(end, seq, Stage::OpensTheGate, call);
            }
            (Stage::Arrives, Ok(_)) => {
                self.call_store(end, seq, Stage::Waits, StoreCall::Wait(format!("gate {seq}").into(), STORE_LIMIT));
            }
            (Stage::OpensTheGate | Stage::Waits, Ok(_)) => {
                self.ends[end].jobs.inside = None;
                self.work(end);
            }
            (_, Err(error)) => {
                self.ends[end].jobs.inside = None;
                self.fail(end, seq, true, error.to_string());
                self.work(end);
            }
        }
    }

    /// The worker's first error of its epoch.
    fn fail(&mut self, end: usize, seq: u64, aborted: bool, message: String) {
        let worker = self.ends[end].workers.first();
        let kind = if aborted { ErrorKind::Aborted } else { ErrorKind::User };
        let (operation, register, causes, user) = ("job".into(), None, Vec::new(), None);
        let failure =
            Arc::new(Failure { worker, command: seq, operation, register, message, causes, aborted, kind, user });
        let jobs = &mut self.ends[end].jobs;
        jobs.poison = Some(failure.clone());
        let notice = Notice::Failed { epoch: jobs.epoch, failure };
        self.notices(end, worker, &notice);
    }

    /// A node passes a notice on, as `Upstream` does.
    pub(super) fn notices(&mut self, end: usize, worker: WorkerId, notice: &Notice) {
        match wire::encode_notice(notice) {
            Ok(packet) => self.say(end, &upward::from(worker, Message::Notice(packet.into()))),
            Err(error) => self.record_violation(format!("node {end}: {error}")),
        }
        upward::abort_after_failure(notice, None).into_iter().for_each(|abort| self.abort(end, abort));
    }

    /// Aborts the worker of a node, the nodes behind it, and their calls of the store.
    pub(super) fn abort(&mut self, end: usize, abort: Signal) {
        self.stops(end);
        self.lower(end, Event::Signal(abort.clone()));
        if let Signal::Abort { epoch, cause } = abort {
            self.abort_calls(end, epoch, &cause);
        }
    }

    pub(super) fn abort_calls(&mut self, end: usize, epoch: u64, cause: &Arc<str>) {
        let ended = self.ends[end].jobs.requests.abort(epoch, cause);
        let aborted = || Err(Error::Aborted { cause: cause.clone().into() });
        ended.into_iter().for_each(|caller| self.answered(end, caller, aborted()));
    }

    /// The own workers of a node reply to a sync of all.
    pub(super) fn own_workers_reply(&mut self, end: usize, seq: u64) {
        if !self.ends[end].is_serving() {
            return;
        }
        let poison = self.ends[end].jobs.poison.clone();
        for (index, worker) in self.ends[end].workers.into_iter().enumerate() {
            match poison.clone().filter(|_| index == 0) {
                Some(failure) => self.replies_failure(end, worker, seq, failure),
                None => self.replied(end, worker.into(), seq),
            }
        }
    }

    /// A node passes on that a worker replies with its failure.
    pub(super) fn replies_failure(&mut self, end: usize, worker: WorkerId, seq: u64, failure: Arc<Failure>) {
        let split = self.ends[end].replies.split();
        let reply = upward::from(worker, Message::Reply { seq, reply: Err(failure) });
        split.iter().chain([&reply]).for_each(|message| self.say(end, message));
    }

    /// The session gets a notice of a worker.
    pub(super) fn controller_hears(&mut self, notice: Notice) {
        let Notice::Failed { epoch, failure } = notice else { return };
        if epoch < self.session.epoch {
            return;
        }
        let known = &mut self.session.failure;
        let is_first = known.is_none();
        if known.as_ref().is_none_or(|known| known.aborted && !failure.aborted) {
            *known = Some(failure.clone());
        }
        if is_first {
            self.abort_from_controller(Signal::Abort { epoch, cause: failure.to_string().into() });
        }
    }
}
