//! A model of the session: uses a lane as `disco_core::session` does, and checks the lane's guarantees.

use std::collections::{BTreeMap, BTreeSet};

use disco_core::channel::{Notice, Reply, SMALL_FRAME, Signal};
use disco_core::store::SharedStore;
use disco_core::{Command, Error, Frame, RegisterId, Value, WorkerId, WorkerRange};

use super::plan::{Disruption, Ending, Kind};
use super::worker::{Job, answer};
use super::world::{Micros, SECOND, What, World};
use crate::controller::Event;
use crate::credit::{MAX_UNREAD_BYTES, MAX_UNREAD_FRAMES};

/// Time within which a loss must be reported: the silence timeout, and the time to notice it.
const NOTICE_LIMIT: Micros = 8 * SECOND;
/// Time that ends may take beyond their limits: to notice silence, to stop and to kill.
const END_LIMIT: Micros = 12 * SECOND;
/// Poll interval of a thread that closes the lane.
const CLOSE_POLL_INTERVAL: Micros = 100_000;
/// KiB of a value that exceeds the socket buffer.
const LARGE_REGISTER: u32 = 700;
/// Maximum number of pending replies.
const MAX_PENDING: usize = 4;

/// The session model.
#[derive(Default)]
pub(super) struct Session {
    pub(super) seq: u64,
    steps: u64,
    /// Calls of a burst that were not submitted yet.
    burst: u64,
    waits_for_room: bool,
    /// A command with a large value that waits for room.
    large: Option<Command>,
    waits_for_reply: bool,
    epoch: u64,
    /// The number of the command that began the epoch.
    recovered: u64,
    failure: Option<String>,
    lost: Option<String>,
    pending: BTreeMap<u64, BTreeSet<WorkerId>>,
    /// The worker whose reply is pending; `None`: all workers.
    asked: BTreeMap<u64, Option<WorkerId>>,
    /// Number of lines of each worker.
    printed: BTreeMap<String, u64>,
    /// Workers whose end their nodes have reported.
    reported: BTreeSet<WorkerId>,
    replied: BTreeSet<(u64, WorkerId)>,
    left: BTreeSet<WorkerId>,
    /// The reported end of each peer.
    pub(super) ends: BTreeMap<WorkerId, &'static str>,
    pub(super) is_ending: bool,
    /// When the close began, and the limit for workers to leave.
    ended: Micros,
    closes: bool,
    close_limit: Micros,
    /// The shutdown was sent in order, after all commands.
    is_in_order: bool,
}

impl World {
    /// Handles the result of the lane's start.
    pub(super) fn started(&mut self, result: Result<(), Error>) {
        self.show(|| format!("started: {result:?}"));
        let strange =
            |world: &Self, peer: usize| world.controller.link(peer).is_some_and(|link| world.links[link].host != peer);
        if let Some(peer) = (0..self.hosts.len()).find(|peer| strange(self, *peer)) {
            self.record_violation(format!("peer {peer} is connected to another host than host {peer}"));
        }
        (self.controller.session.ended, self.controller.session.close_limit) = (self.now, 0);
        match result {
            Ok(()) => self.at(0, What::Step),
            Err(error) if self.is_calm() => {
                self.record_violation(format!("the start failed without a disruption: {error}"));
            }
            // The lane closes itself after a failed start.
            Err(_) => {
                self.controller.session.is_ending = true;
                self.notify_controller(Event::Dropped);
            }
        }
    }

    /// Submits the next command, or ends the session.
    pub(super) fn step(&mut self) {
        let session = &self.controller.session;
        if session.is_ending || session.waits_for_room || session.waits_for_reply {
            return;
        }
        let is_done = session.steps >= self.plan.steps && session.burst == 0 && session.large.is_none();
        if is_done && self.plan.losses > 0 {
            let losses = std::mem::take(&mut self.plan.losses);
            // The session continues when the loss is reported.
            return (0..losses).for_each(|host| self.disrupt(Disruption::Kill(host)));
        }
        if self.controller.session.lost.is_some() || is_done {
            return self.finish_session();
        }
        if self.controller.room(false) == 0 {
            if self.controller.must_take_small() {
                self.record_violation("the lane has no room for a small command while large ones are in flight");
            }
            self.controller.session.waits_for_room = true;
            return;
        }
        let mut command = self.controller.session.large.take().unwrap_or_else(|| self.choose());
        let is_large = command.values().iter().map(Value::payload_len).sum::<usize>() > SMALL_FRAME;
        if is_large && self.controller.room(true) == 0 {
            self.controller.session.large = Some(command);
            if self.events.random.percent(30) {
                self.controller.session.waits_for_room = true;
                return;
            }
            // Another caller submits a small command meanwhile.
            command = Job::Work(0).command();
        }
        self.submit(command);
        let (session, pause) = (&mut self.controller.session, self.plan.pause);
        session.waits_for_reply =
            session.pending.len() >= MAX_PENDING || !session.pending.is_empty() && self.events.random.percent(50);
        let after = if session.burst > 0 { 0 } else { self.events.random.of(0..pause + 1) };
        if !self.controller.session.waits_for_reply {
            self.at(after, What::Step);
        }
    }

    fn choose(&mut self) -> Command {
        let (random, workers) = (&mut self.events.random, self.plan.workers() as u64);
        let session = &mut self.controller.session;
        if session.burst > 0 {
            session.burst -= 1;
            let is_heavy = self.plan.largest > LARGE_REGISTER.into();
            return if is_heavy { Job::Load(self.plan.largest) } else { Job::Work(0) }.command();
        }
        session.steps += 1;
        if self.plan.losses > 0 {
            session.burst = self.plan.burst - 2;
            session.steps += session.burst;
            return Command::SyncAll;
        }
        if session.failure.is_some() && random.percent(60) {
            (session.failure, session.epoch, session.recovered) = (None, session.epoch + 1, session.seq + 1);
            return Command::Recover { epoch: session.epoch };
        }
        let worker = WorkerId::new(random.of(0..workers) as u32);
        match random.of(0..100) {
            0..20 => Job::Work(random.of(0..3_000)).command(),
            20..30 => {
                let job = match random.of(0..10) {
                    0..5 => Job::Work(random.of(0..3_000)),
                    5 if self.plan.failures => Job::Fail(worker.index() as u64),
                    6 if self.plan.failures => Job::Fail(random.of(0..workers)),
                    _ => Job::Meet,
                };
                job.returned_by(worker)
            }
            30..42 => {
                session.burst = random.of(0..self.plan.burst + 1);
                Job::Work(0).command()
            }
            42..62 => Job::Meet.command(),
            62..72 => Command::SyncAll,
            72..82 => Command::SyncWorker { worker },
            number @ 82..87 => {
                let register = RegisterId::new(if random.percent(20) { LARGE_REGISTER } else { 2 });
                if number < 85 { Command::DebugGet { worker, register } } else { Command::GetAll { register } }
            }
            92..99 if self.plan.failures => Job::Fail(worker.index() as u64).command(),
            99 if self.plan.failures => Job::Hang(worker.index() as u64).command(),
            87..90 => Job::Print.command(),
            90..92 => {
                let kib = random.of(10..self.plan.largest);
                if random.percent(50) { Job::Load(kib).command() } else { Job::Weights(kib).command() }
            }
            _ => Job::Work(0).command(),
        }
    }

    fn submit(&mut self, command: Command) {
        let workers = self.plan.workers() as u32;
        let session = &mut self.controller.session;
        session.seq += 1;
        let seq = session.seq;
        let from: BTreeSet<WorkerId> = match &command {
            Command::SyncAll | Command::GetAll { .. } => (0..workers).map(WorkerId::new).collect(),
            Command::SyncWorker { worker } | Command::DebugGet { worker, .. } => [*worker].into(),
            command => command.answers().into_iter().collect(),
        };
        if !from.is_empty() {
            let is_for_all = matches!(command, Command::SyncAll | Command::GetAll { .. });
            let only = if is_for_all { None } else { from.first().copied() };
            session.asked.insert(seq, only);
            session.pending.insert(seq, from);
        }
        self.show(|| format!("command {seq}: {command:?}"));
        self.controller_sends(Frame::new(seq, [], command));
        self.check_credit();
    }

    fn check_credit(&mut self) {
        let posted = self.controller.posted;
        for index in 0..self.hosts.len() {
            let (frames, bytes) = self.hosts[index].passed;
            let first = self.hosts[index].workers[0].id;
            if !self.hosts[index].is_serving() || self.controller.session.ends.contains_key(&first) {
                continue;
            }
            if posted.0 - frames > MAX_UNREAD_FRAMES || posted.1.saturating_sub(bytes) > 2 * MAX_UNREAD_BYTES {
                self.record_violation(format!(
                    "{} frames are in flight to host {index}, more than the limit",
                    posted.0 - frames
                ));
            }
        }
    }

    /// Handles that the lane has room again.
    pub(super) fn has_room(&mut self) {
        if std::mem::take(&mut self.controller.session.waits_for_room) {
            self.at(0, What::Step);
        }
    }

    pub(super) fn reply(&mut self, worker: WorkerId, seq: u64, reply: &Reply) {
        let session = &mut self.controller.session;
        if session.left.contains(&worker) {
            return self.record_violation(format!("{worker} has replied to command {seq} after it has left"));
        }
        if !session.replied.insert((seq, worker)) {
            return self.record_violation(format!("{worker} has replied to command {seq} twice"));
        }
        if session.asked.get(&seq).is_none_or(|only| only.is_some_and(|only| only != worker)) {
            return self.record_violation(format!("{worker} has replied to command {seq}, which is not pending"));
        }
        let Some(missing) = session.pending.get_mut(&seq) else {
            // The session has ended, and with it the wait.
            return;
        };
        missing.remove(&worker);
        let is_answered = missing.is_empty();
        if let Ok(Value::Bytes(bytes)) = reply
            && **bytes != *answer(worker, seq, bytes.len())
        {
            return self.record_violation(format!("the reply of {worker} to command {seq} has wrong bytes"));
        }
        let session = &mut self.controller.session;
        if let Err(failure) = reply
            && failure.aborted
            && seq > session.recovered
            && session.failure.is_none()
            && session.lost.is_none()
            && !session.is_ending
        {
            return self.record_violation(format!("{worker} was aborted without a failure: {failure}"));
        }
        if is_answered {
            session.pending.remove(&seq);
            self.go_on();
        }
    }

    /// Ends a wait.
    fn go_on(&mut self) {
        if std::mem::take(&mut self.controller.session.waits_for_reply) {
            self.at(0, What::Step);
        }
    }

    pub(super) fn notice(&mut self, from: WorkerId, notice: Notice) {
        let Notice::Failed { epoch, failure } = notice else { return };
        self.show(|| format!("{from} has failed in epoch {epoch}: {failure}"));
        let session = &mut self.controller.session;
        if epoch < session.epoch {
            return;
        }
        if failure.aborted && session.failure.is_none() && session.lost.is_none() && !session.is_ending {
            return self.record_violation(format!("the first failure of epoch {epoch} is not a root cause: {failure}"));
        }
        if session.failure.is_none() {
            let cause = failure.to_string();
            session.failure = Some(cause.clone());
            // A recovery on another thread may overtake the handling of the notice.
            let delay = self.events.random.of(0..300_000);
            self.at(delay, What::Signal(Signal::Abort { epoch, cause: cause.into() }));
        }
    }

    /// Sends a signal of the session.
    pub(super) fn signal(&mut self, signal: Signal) {
        if let Signal::Abort { epoch, cause } = &signal {
            self.controller.store.memory.abort(*epoch, cause);
        }
        self.show(|| format!("signal {signal:?}"));
        self.notify_controller(Event::Signal(signal));
    }

    pub(super) fn left(&mut self, workers: WorkerRange) {
        self.show(|| format!("{workers} have left"));
        let ids: BTreeSet<WorkerId> = workers.iter().collect();
        self.end_peer(workers, "left");
        let session = &mut self.controller.session;
        session.left.extend(&ids);
        session.pending.retain(|_, missing| missing.is_disjoint(&ids));
        self.go_on();
    }

    pub(super) fn lost(&mut self, workers: WorkerRange, why: &Error) {
        self.show(|| format!("{why}"));
        self.end_peer(workers, "lost");
        let host = &self.hosts[workers.first().index() / self.plan.per_host];
        if !host.is_disrupted && host.lost != Some(workers.first()) {
            return self.record_violation(format!("a peer was reported as lost without a disruption: {why}"));
        }
        let status = format!("its process ended: {}", host.status);
        if host.has_exit_status && !why.to_string().contains(&status) {
            return self
                .record_violation(format!("the error about a lost process does not state that {status}: {why}"));
        }
        let session = &mut self.controller.session;
        if session.lost.is_none() {
            session.lost = Some(why.to_string());
            session.pending.clear();
            let (epoch, cause) = (session.epoch, why.to_string().into());
            self.at(self.now % 1000, What::Signal(Signal::Abort { epoch, cause }));
            self.controller.session.waits_for_room = false;
            self.controller.session.waits_for_reply = false;
            self.at(0, What::Step);
        }
    }

    /// Checks that a node reports the end of each of its workers once, and the controller the end of each peer once.
    fn end_peer(&mut self, workers: WorkerRange, how: &'static str) {
        let (first, count) = (workers.first(), workers.len());
        let peer = first.index() / self.plan.per_host;
        let session = &mut self.controller.session;
        let is_of_node = match (self.plan.kind, self.plan.per_host) {
            (Kind::Processes, _) => false,
            // The node reports that the worker has left, and ends afterwards.
            (Kind::Nodes, 1) => how == "left" && !session.reported.contains(&first),
            (Kind::Nodes, per_host) => count < per_host,
        };
        let is_fine = if is_of_node {
            count == 1 && session.reported.insert(first)
        } else {
            count == self.plan.per_host && session.ends.insert(first, how).is_none()
        };
        if !is_fine {
            let ends = format!("{:?}", session.ends);
            return self.record_violation(format!("{workers} {how} after their end was reported: {ends}"));
        }
        if !is_of_node && self.controller.ring.has(peer) {
            self.record_violation(format!("the ring still waits for {workers}, which {how}"));
        }
    }

    /// Checks a worker's printed line.
    pub(super) fn output(&mut self, from: String, line: &[u8]) {
        let printed = self.controller.session.printed.entry(from.clone()).or_default();
        *printed += 1;
        if printed.to_string().as_bytes() != line {
            self.record_violation(format!(
                "line {} of {from} arrived twice or out of order",
                String::from_utf8_lossy(line)
            ));
        }
    }

    /// Ends the session.
    fn finish_session(&mut self) {
        self.controller.session.is_ending = true;
        let is_lost = self.controller.session.lost.is_some();
        if !is_lost && self.controller.room(false) > 0 && self.events.random.percent(10) {
            // Another thread of the program still waits for a value.
            let worker = WorkerId::new(self.events.random.of(0..self.plan.workers() as u64) as u32);
            self.submit(Command::DebugGet { worker, register: RegisterId::new(LARGE_REGISTER) });
        }
        self.show(|| "the session ends".to_owned());
        self.controller.session.ended = self.now;
        let limit = match self.plan.ending {
            Ending::Shutdown => {
                if self.controller.room(false) > 0 && !self.controller.is_closed() {
                    self.controller.session.is_in_order = !is_lost;
                    self.submit(Command::Shutdown);
                } else {
                    self.signal(Signal::Shutdown);
                }
                90 * SECOND
            }
            Ending::Drop => {
                let epoch = self.controller.session.epoch;
                self.signal(Signal::Abort { epoch, cause: "the session is dropped".into() });
                self.signal(Signal::Shutdown);
                3 * SECOND
            }
            Ending::DropLane => return self.notify_controller(Event::Dropped),
        };
        self.controller.session.close_limit = limit;
        self.controller.session.closes = true;
        self.notify_controller(Event::Close(std::time::Duration::from_micros(limit)));
        self.at(CLOSE_POLL_INTERVAL, What::PollClose);
    }

    /// Records that a disrupted host must be lost.
    pub(super) fn must_be_lost(&mut self, host: usize) {
        (self.hosts[host].is_disrupted, self.hosts[host].has_exit_status) = (true, false);
        self.host_must_be_noticed(host);
    }

    /// Schedules the deadline for the report of a loss.
    pub(super) fn host_must_be_noticed(&mut self, host: usize) {
        self.hosts[host].disrupted = self.now;
        if self.hosts[host].is_taken {
            self.at(NOTICE_LIMIT, What::Noticed(host));
        }
    }

    pub(super) fn check_noticed(&mut self, host: usize) {
        // Another disruption or a freeze may have delayed the report.
        let due = self.hosts[host].disrupted + NOTICE_LIMIT + self.frozen;
        if self.now < due {
            return self.at(due - self.now, What::Noticed(host));
        }
        let Session { ends, reported, is_ending, .. } = &self.controller.session;
        let is_noticed = ends.contains_key(&self.hosts[host].workers[0].id)
            || self.hosts[host].lost.is_some_and(|worker| reported.contains(&worker));
        if !is_noticed && !is_ending {
            self.record_violation(format!("the loss of host {host} was not noticed in {NOTICE_LIMIT} us"));
        }
    }

    /// Polls the close of the lane.
    pub(super) fn poll_close(&mut self) {
        self.controller_continues_closing();
        if !self.controller.is_closed_for_good() {
            self.at(CLOSE_POLL_INTERVAL, What::PollClose);
        }
    }

    /// Whether all waits of the session have ended.
    pub(super) fn has_session_ended(&self) -> bool {
        self.controller.session.is_ending && (!self.controller.session.closes || self.controller.is_closed_for_good())
    }

    /// Checks that the lane ends within its limit.
    pub(super) fn check_over(&mut self) {
        self.over = self.now;
        if self.plan.has_processes()
            && let Some(host) = self.hosts.iter().position(|host| !host.is_reaped)
        {
            return self.record_violation(format!("the lane has ended while the process of host {host} runs"));
        }
        let Session { ended, close_limit, is_ending: true, .. } = self.controller.session else { return };
        let late = self.now.saturating_sub(ended + close_limit + self.frozen);
        if late > END_LIMIT {
            self.record_violation(format!("the lane has ended {late} us after its limit"));
        }
    }

    /// Whether no end was disrupted.
    pub(super) fn is_calm(&self) -> bool {
        self.hosts.iter().all(|host| !host.is_disrupted && host.lost.is_none()) && !self.controller.is_disrupted
    }

    /// Checks the invariants at the end of the run.
    pub(super) fn check_session(&mut self) {
        if self.now > self.over + END_LIMIT + self.frozen {
            return self.record_violation("hosts have not ended in time after the end of the lane");
        }
        let session = &self.controller.session;
        let is_calm = self.is_calm();
        if let (true, Some(seq)) = (session.is_in_order && is_calm, session.pending.keys().next()) {
            return self.record_violation(format!("the wait for command {seq} has not ended"));
        }
        if session.is_in_order && is_calm && self.over < session.ended + session.close_limit {
            let seq = session.seq;
            if self.plan.ending == Ending::Shutdown
                && let Some(host) = self.hosts.iter().position(|host| host.workers.iter().any(|w| w.last != seq))
            {
                return self.record_violation(format!("workers of host {host} have not received all {seq} commands"));
            }
            if let Some(error) = self.hosts.iter().find_map(|host| host.result.clone()?.err()) {
                return self
                    .record_violation(format!("a host that was not disrupted has ended with an error: {error}"));
            }
        }
        let printed: u64 = self.hosts.iter().flat_map(|host| &host.workers).map(|worker| worker.printed).sum();
        let lines: u64 = session.printed.values().sum();
        if is_calm && session.is_in_order && lines != printed {
            return self.record_violation(format!("{lines} of {printed} printed lines have arrived"));
        }
        let open: usize = self.hosts.iter().map(|host| host.requests.count()).sum();
        if is_calm && session.is_in_order && open > 0 {
            self.record_violation(format!("{open} requests of workers were not answered"));
        }
    }
}
