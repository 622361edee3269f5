//! A model of a worker: counts commands, works for some time, runs collectives over the store, fails as planned, and
//! replies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use disco_core::abort::PerEpoch;
use disco_core::channel::Notice;
use disco_core::error::{ErrorKind, Failure};
use disco_core::store;
use disco_core::wire::{self, Message, StoreCall};
use disco_core::{Calling, Command, Error, Frame, RegisterId, Result, Tensor, Value, WorkerId};

use super::plan::Kind;
use super::world::{Micros, What, World};
use crate::credit::Taken;
use crate::member::upward::{self, Priority};
use crate::reply;

/// Deadline of a collective.
const COLLECTIVE_LIMIT: Duration = Duration::from_secs(300);
/// Deadline of other requests.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A simulated worker.
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) queue: VecDeque<Arc<Frame>>,
    /// The number of the last command.
    pub(super) last: u64,
    pub(super) finished: u64,
    pub(super) epoch: PerEpoch<()>,
    poison: Option<Arc<Failure>>,
    doing: Doing,
    /// Whether the call that it executes ends with its reply.
    returns: bool,
    pub(super) has_left: bool,
    question: u64,
    taken: Taken,
    /// Number of printed lines.
    pub(super) printed: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Doing {
    Nothing,
    /// Inside user code, until [`What::Free`].
    Work,
    /// Waits for an answer of the store inside collective `seq`.
    Meets {
        seq: u64,
        question: u64,
        stage: Stage,
    },
    /// The answer.
    Answered {
        seq: u64,
        stage: Stage,
        result: Result<Value, String>,
        aborted: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Arrives,
    OpensTheGate,
    Waits,
}

/// The work of a call: the first argument, with a second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Works for this many microseconds.
    Work(Micros),
    /// A worker fails.
    Fail(u64),
    /// Runs a collective.
    Meet,
    /// One worker works for a minute.
    Hang(u64),
    /// All workers print a line.
    Print,
    /// Checks an argument of this many KiB of bytes.
    Load(u64),
    /// Checks an argument that is a tensor of this many KiB.
    Weights(u64),
}

/// Bytes in which each part differs from its neighbours, and from a value with another seed.
pub(super) fn content(bytes: usize, seed: u64) -> Vec<u8> {
    let mut content = vec![0; bytes];
    for (block, part) in content.chunks_mut(1 << 10).enumerate() {
        part.fill((seed.wrapping_mul(31) + block as u64 * 7) as u8);
    }
    content
}

/// The value of `get` with this many bytes.
pub(super) fn answer(worker: WorkerId, seq: u64, bytes: usize) -> Vec<u8> {
    content(bytes, seq + 101 * worker.index() as u64)
}

fn has_content(value: Option<&Value>, kib: u64) -> bool {
    let expected = content((kib as usize) << 10, kib);
    match value {
        Some(Value::Bytes(bytes)) => **bytes == *expected,
        Some(Value::Tensor(tensor)) => tensor.bytes().is_ok_and(|bytes| *bytes == *expected),
        _ => false,
    }
}

impl Job {
    pub(super) fn command(self) -> Command {
        Command::CallPacked { register: RegisterId::new(1), function: RegisterId::new(2), args: self.args() }
    }

    /// A call at whose end this worker replies.
    pub(super) fn returned_by(self, worker: WorkerId) -> Command {
        let calling = Box::new(Calling { answers: Some(worker), ..Calling::default() });
        let (register, function) = (RegisterId::new(1), RegisterId::new(2));
        Command::CallWith { register, function, args: self.args(), calling }
    }

    fn args(self) -> Vec<Value> {
        let (number, arg) = match self {
            Job::Work(time) => (0, time),
            Job::Fail(worker) => (1, worker),
            Job::Meet => (2, 0),
            Job::Hang(worker) => (3, worker),
            Job::Print => (4, 0),
            Job::Load(kib) => (5, kib),
            Job::Weights(kib) => (6, kib),
        };
        let mut args = vec![Value::Int(number), Value::Int(arg as i64)];
        match self {
            Job::Load(kib) => args.push(content((kib as usize) << 10, kib).into()),
            Job::Weights(kib) => {
                let bytes = content((kib as usize) << 10, kib);
                let shape = [bytes.len()];
                args.push(Tensor::from_vec(bytes, shape).expect("one element a byte").into());
            }
            _ => {}
        }
        args
    }

    fn of(args: &[Value]) -> Option<Self> {
        let [Value::Int(number), Value::Int(arg), ..] = args else { return None };
        let arg = *arg as u64;
        Some(match number {
            0 => Job::Work(arg),
            1 => Job::Fail(arg),
            2 => Job::Meet,
            3 => Job::Hang(arg),
            4 => Job::Print,
            5 => Job::Load(arg),
            _ => Job::Weights(arg),
        })
    }
}

impl Worker {
    pub(super) fn new(id: WorkerId) -> Self {
        Self {
            id,
            queue: VecDeque::new(),
            last: 0,
            finished: 0,
            epoch: PerEpoch::default(),
            poison: None,
            doing: Doing::Nothing,
            returns: false,
            has_left: false,
            question: 0,
            taken: Taken::default(),
            printed: 0,
        }
    }

    /// Ends the worker with its process.
    pub(super) fn end(&mut self) {
        (self.has_left, self.doing) = (true, Doing::Nothing);
        self.queue = VecDeque::new();
    }

    /// Handles an answer of the store, if the worker still waits for it.
    pub(super) fn answers(&mut self, question: u64, result: Result<Value>) {
        match self.doing {
            Doing::Meets { seq, question: asked, stage } if asked == question => {
                let aborted = matches!(result, Err(Error::Aborted { .. }));
                let result = result.map_err(|error| error.to_string());
                self.doing = Doing::Answered { seq, stage, result, aborted };
            }
            _ => {}
        }
    }
}

impl World {
    pub(super) fn run_workers(&mut self, index: usize) {
        (0..self.hosts[index].workers.len()).for_each(|worker| self.run_worker(index, worker));
    }

    /// Runs a worker until it has to wait.
    pub(super) fn run_worker(&mut self, index: usize, at: usize) {
        loop {
            let told_to_leave = self.hosts[index].told_to_leave;
            let worker = &mut self.hosts[index].workers[at];
            if worker.has_left {
                return;
            }
            match std::mem::replace(&mut worker.doing, Doing::Nothing) {
                Doing::Nothing if told_to_leave => return self.leave_lane(index, at),
                Doing::Nothing => match self.next_frame(index, at) {
                    Some(frame) => self.execute(index, at, &frame),
                    None => return,
                },
                Doing::Answered { seq, stage, result, aborted } => match result {
                    Ok(value) => self.meet(index, at, seq, stage, &value),
                    Err(why) => {
                        self.check_cause(index, at, &why);
                        self.fail(index, at, seq, aborted, why);
                    }
                },
                waits => {
                    worker.doing = waits;
                    return;
                }
            }
        }
    }

    /// Takes the next frame of a worker, from the ring or the connection.
    fn next_frame(&mut self, index: usize, at: usize) -> Option<Arc<Frame>> {
        let host = &mut self.hosts[index];
        if !self.plan.has_ring {
            return host.workers[at].queue.pop_front();
        }
        let frame = match host.ring.front()? {
            Some(frame) => frame.clone(),
            None => host.workers[at].queue.pop_front()?,
        };
        host.ring.pop_front();
        if self.controller.ring.advance(index) {
            let (frames, bytes) = self.hosts[index].workers[at].taken.acknowledge();
            self.host_sends(index, &Message::Credit { frames, bytes }, Priority::Urgent);
        }
        Some(frame)
    }

    fn execute(&mut self, index: usize, at: usize, frame: &Frame) {
        let seq = frame.seq();
        let worker = &mut self.hosts[index].workers[at];
        let (id, due) = (worker.id, worker.last + 1);
        worker.last = seq;
        if seq != due {
            return self.record_violation(format!("{id} has received command {seq}, expected {due}"));
        }
        let is_poisoned = worker.poison.is_some();
        worker.returns = frame.command().answers() == Some(id);
        match frame.command() {
            Command::CallPacked { args, .. } | Command::CallWith { args, .. } if !is_poisoned => match Job::of(args) {
                Some(Job::Work(0)) => {}
                Some(Job::Work(time)) => return self.work(index, at, time),
                Some(Job::Hang(who)) if who == id.index() as u64 => return self.work(index, at, 60_000_000),
                Some(Job::Fail(who)) if who == id.index() as u64 => {
                    let epoch = worker.epoch.epoch();
                    return self.fail(index, at, seq, false, format!("{id} fails in epoch {epoch};"));
                }
                // The output of processes goes through pipes, which are not simulated.
                Some(Job::Print) if self.plan.kind == Kind::Nodes => {
                    worker.printed += 1;
                    let line = worker.printed.to_string().into_bytes().into();
                    self.worker_sends(index, at, Message::Output { is_err: false, line }, Priority::Last);
                }
                Some(Job::Meet) => {
                    let call = StoreCall::Add(format!("arrived {seq}").into(), 1);
                    return self.ask(index, at, seq, Stage::Arrives, call);
                }
                Some(Job::Load(kib) | Job::Weights(kib)) if !has_content(args.get(2), kib) => {
                    return self
                        .record_violation(format!("{id} has received wrong bytes as an argument of command {seq}"));
                }
                _ => {}
            },
            Command::SyncAll => self.reply_to(index, at, seq, 0),
            Command::SyncWorker { worker } if *worker == id => self.reply_to(index, at, seq, 0),
            Command::DebugGet { worker, register } if *worker == id => {
                self.reply_to(index, at, seq, register.index() << 10);
            }
            Command::GetAll { register } => self.reply_to(index, at, seq, register.index() << 10),
            Command::Recover { epoch } => {
                (worker.poison, _) = (None, worker.epoch.begin(*epoch));
                self.begin_questions(index, *epoch);
            }
            Command::Shutdown => return self.leave_lane(index, at),
            _ => {}
        }
        self.finish(index, at, seq);
    }

    fn finish(&mut self, index: usize, at: usize, seq: u64) {
        let worker = &mut self.hosts[index].workers[at];
        (worker.finished, worker.doing) = (seq, Doing::Nothing);
        if std::mem::take(&mut worker.returns) {
            // Results of 1 to 256 KiB.
            self.reply_to(index, at, seq, 1 << (10 + seq % 9));
        }
    }

    fn work(&mut self, index: usize, at: usize, time: Micros) {
        self.hosts[index].workers[at].doing = Doing::Work;
        self.at(time, What::Free(index, at));
    }

    /// Continues a worker after user code.
    pub(super) fn free(&mut self, index: usize, at: usize) {
        let worker = &mut self.hosts[index].workers[at];
        if worker.doing == Doing::Work {
            let seq = worker.last;
            self.finish(index, at, seq);
        }
        self.run_worker(index, at);
        self.host_acts(index);
    }

    /// Continues a collective after one of its steps.
    fn meet(&mut self, index: usize, at: usize, seq: u64, stage: Stage, value: &Value) {
        let all = self.plan.workers() as i64;
        let (stage, call) = match (stage, value) {
            (Stage::Arrives, Value::Int(arrived)) if *arrived == all => {
                (Stage::OpensTheGate, StoreCall::Set(format!("gate {seq}").into(), [1].into()))
            }
            (Stage::Arrives, Value::Int(arrived)) if *arrived > all => {
                return self.record_violation(format!("{arrived} arrivals of {all} workers at command {seq}"));
            }
            (Stage::Arrives, _) => (Stage::Waits, StoreCall::Wait(format!("gate {seq}").into(), COLLECTIVE_LIMIT)),
            (Stage::OpensTheGate | Stage::Waits, _) => return self.finish(index, at, seq),
        };
        self.ask(index, at, seq, stage, call);
    }

    fn ask(&mut self, index: usize, at: usize, seq: u64, stage: Stage, call: StoreCall) {
        let now = self.instant();
        let limit = if let StoreCall::Wait(_, limit) = &call { *limit } else { ANSWER_LIMIT };
        let worker = &mut self.hosts[index].workers[at];
        worker.question += 1;
        let (question, epoch) = (worker.question, worker.epoch.epoch());
        worker.doing = Doing::Meets { seq, question, stage };
        self.begin_questions(index, epoch);
        match self.hosts[index].requests.ask_in(epoch, (at, question), limit, now) {
            Ok(id) => {
                self.host_sends(index, &Message::StoreRequest { id, epoch, call }, Priority::Urgent);
                self.at(limit.as_micros() as u64, What::Deadline(index, at, question));
            }
            Err((_, error)) => self.hosts[index].workers[at].answers(question, Err(error)),
        }
    }

    fn begin_questions(&mut self, index: usize, epoch: u64) {
        for (worker, question) in self.hosts[index].requests.begin(epoch) {
            self.hosts[index].workers[worker].answers(question, Err(store::over()));
            self.at(0, What::Free(index, worker));
        }
    }

    pub(super) fn abort_workers(&mut self, index: usize, epoch: u64, cause: &Arc<str>) {
        for worker in &mut self.hosts[index].workers {
            worker.epoch.abort(epoch, &cause.clone().into());
        }
        for (worker, question) in self.hosts[index].requests.abort(epoch, cause) {
            self.answer(index, worker, question, Err(Error::Aborted { cause: cause.clone().into() }));
        }
    }

    /// Handles the deadline of a request.
    pub(super) fn expire(&mut self, index: usize, at: usize, question: u64) {
        let late = Error::Deadline { operation: "meet".into(), after: ANSWER_LIMIT, state: "nobody came".into() };
        self.answer(index, at, question, Err(late));
    }

    /// Records a worker's first error of its epoch.
    fn fail(&mut self, index: usize, at: usize, seq: u64, aborted: bool, message: String) {
        let worker = &mut self.hosts[index].workers[at];
        let (id, epoch) = (worker.id, worker.epoch.epoch());
        let failure = Arc::new(Failure {
            worker: id,
            command: seq,
            operation: "job".into(),
            register: None,
            message,
            causes: Vec::new(),
            aborted,
            kind: if aborted { ErrorKind::Aborted } else { ErrorKind::User },
            user: None,
        });
        worker.poison = Some(failure.clone());
        match wire::encode_notice(&Notice::Failed { epoch, failure }) {
            Ok(packet) => self.worker_sends(index, at, Message::Notice(packet.into()), Priority::Urgent),
            Err(error) => self.record_violation(format!("{id}: {error}")),
        }
        self.finish(index, at, seq);
    }

    /// Replies to a command, with a value of `bytes` bytes unless the worker has failed.
    fn reply_to(&mut self, index: usize, at: usize, seq: u64, bytes: usize) {
        let worker = &self.hosts[index].workers[at];
        let (id, is_node) = (worker.id, self.plan.kind == Kind::Nodes);
        let reply = match &worker.poison {
            Some(failure) => Err(failure.clone()),
            None if bytes == 0 => Ok(Value::None),
            None => Ok(answer(id, seq, bytes).into()),
        };
        match &reply {
            Ok(Value::None) if is_node => {
                let messages = self.hosts[index].replies.add(id.into(), seq);
                return messages.iter().for_each(|message| self.host_sends(index, message, Priority::Urgent));
            }
            Err(_) => self.split_replies(index),
            Ok(_) => {}
        }
        let wrap = |message| if is_node { upward::from(id, message) } else { message };
        match reply::encode(id, seq, reply, wrap) {
            Ok(packet) => self.host_writes(index, &packet.into(), crate::controller::Order::Urgent),
            Err(error) => self.record_violation(format!("{id}: {error}")),
        }
    }

    /// Handles that a worker leaves its lane.
    fn leave_lane(&mut self, index: usize, at: usize) {
        let id = self.hosts[index].workers[at].id;
        self.hosts[index].workers[at].end();
        if self.plan.kind == Kind::Nodes {
            self.split_replies(index);
            let (message, priority) = upward::left(id.into());
            self.host_sends(index, &message, priority);
        }
        self.end_if_left(index);
    }

    fn worker_sends(&mut self, index: usize, at: usize, message: Message, priority: Priority) {
        let id = self.hosts[index].workers[at].id;
        let message = if self.plan.kind == Kind::Nodes { upward::from(id, message) } else { message };
        self.host_sends(index, &message, priority);
    }

    /// Acknowledges a frame that a worker process has read.
    pub(super) fn acknowledge(&mut self, index: usize, size: usize) {
        let taken = &mut self.hosts[index].workers[0].taken;
        if taken.take(size) {
            let (frames, bytes) = taken.acknowledge();
            self.host_sends(index, &Message::Credit { frames, bytes }, Priority::Urgent);
        }
    }

    /// A failure of an epoch that is over does nothing. One of a later epoch may overtake the command that begins it.
    fn check_cause(&mut self, index: usize, at: usize, why: &str) {
        let Worker { id, epoch, .. } = &self.hosts[index].workers[at];
        let number = epoch.epoch();
        let other = why.split("in epoch ").nth(1).and_then(|rest| rest.split(';').next()?.parse::<u64>().ok());
        if other.is_some_and(|other| other < number) {
            let rule = format!("{id} in epoch {number} was aborted by a failure of an earlier epoch: {why}");
            self.record_violation(rule);
        }
    }
}
