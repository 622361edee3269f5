//! A session in small: what `disco_core::session` does with a lane, and what it may expect of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use disco_core::channel::{Notice, Reply, SMALL_FRAME, Signal};
use disco_core::store::SharedStore;
use disco_core::{Command, Error, Frame, RegisterId, Value, WorkerId, WorkerRange};

use super::plan::{Ending, Harm, Kind};
use super::worker::{Job, answer};
use super::world::{At, SECOND, What, World};
use crate::engine::controller::Event;
use crate::engine::credit::{CAPACITY, UNREAD};

/// Time within which a loss must have been reported: the limit for silence, and what notices it.
const NOTICE_LIMIT: At = 8 * SECOND;
/// Time that ends need beyond what they are given: to notice silence, and to stop and kill.
const END_LIMIT: At = 12 * SECOND;
/// Interval at which a thread that closes the lane looks.
const LOOK_INTERVAL: At = 100_000;
/// KiB of a value that a connection does not take at once.
const LARGE: u32 = 700;
/// Replies that are waited for at a time.
const MAX_PENDING: usize = 4;

/// The session's side.
#[derive(Default)]
pub(super) struct Session {
    pub(super) seq: u64,
    steps: u64,
    /// Calls of a burst that are still to go.
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
    /// Of which worker each reply was asked; none: of all.
    asked: BTreeMap<u64, Option<WorkerId>>,
    /// Lines of each worker.
    printed: BTreeMap<String, u64>,
    /// Workers that their nodes have reported.
    reported: BTreeSet<WorkerId>,
    replied: BTreeSet<(u64, WorkerId)>,
    left: BTreeSet<WorkerId>,
    /// How each peer was reported to have ended.
    pub(super) ends: BTreeMap<WorkerId, &'static str>,
    pub(super) is_ending: bool,
    /// When it began to end, and how long workers have to leave.
    ended: At,
    closes: bool,
    close_limit: At,
    /// Sent its shutdown behind all commands.
    is_in_order: bool,
}

impl World {
    /// The lane has started or has not.
    pub(super) fn started(&mut self, result: Result<(), Error>) {
        self.show(|| format!("started: {result:?}"));
        let strange =
            |world: &Self, peer: usize| world.lead.link(peer).is_some_and(|link| world.links[link].host != peer);
        if let Some(peer) = (0..self.hosts.len()).find(|peer| strange(self, *peer)) {
            self.breach(format!("another host has the place of host {peer}"));
        }
        (self.lead.session.ended, self.lead.session.close_limit) = (self.now, 0);
        match result {
            Ok(()) => self.at(0, What::Step),
            Err(error) if self.is_calm() => {
                self.breach(format!("the start fails without a reason: {error}"));
            }
            // As the lane does.
            Err(_) => {
                self.lead.session.is_ending = true;
                self.tell_lead(Event::Dropped);
            }
        }
    }

    /// The session gives its next command, or ends.
    pub(super) fn step(&mut self) {
        let session = &self.lead.session;
        if session.is_ending || session.waits_for_room || session.waits_for_reply {
            return;
        }
        let is_done = session.steps >= self.plan.steps && session.burst == 0 && session.large.is_none();
        if is_done && self.plan.losses > 0 {
            let losses = std::mem::take(&mut self.plan.losses);
            // The session goes on once it hears of it.
            return (0..losses).for_each(|host| self.harm(Harm::Kill(host)));
        }
        if self.lead.session.lost.is_some() || is_done {
            return self.finish_session();
        }
        if self.lead.room(false) == 0 {
            if self.lead.must_take_small() {
                self.breach("the lane takes no small command while large ones are under way");
            }
            self.lead.session.waits_for_room = true;
            return;
        }
        let mut command = self.lead.session.large.take().unwrap_or_else(|| self.choose());
        let is_large = command.values().iter().map(Value::payload_len).sum::<usize>() > SMALL_FRAME;
        if is_large && self.lead.room(true) == 0 {
            self.lead.session.large = Some(command);
            if self.random.percent(30) {
                self.lead.session.waits_for_room = true;
                return;
            }
            // Another caller gives a small command meanwhile.
            command = Job::Work(0).command();
        }
        self.submit(command);
        let (session, pause) = (&mut self.lead.session, self.plan.pause);
        session.waits_for_reply =
            session.pending.len() >= MAX_PENDING || !session.pending.is_empty() && self.random.percent(50);
        let after = if session.burst > 0 { 0 } else { self.random.of(0..pause + 1) };
        if !self.lead.session.waits_for_reply {
            self.at(after, What::Step);
        }
    }

    fn choose(&mut self) -> Command {
        let (random, workers) = (&mut self.random, self.plan.workers() as u64);
        let session = &mut self.lead.session;
        if session.burst > 0 {
            session.burst -= 1;
            let is_heavy = self.plan.largest > LARGE.into();
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
            0..30 => Job::Work(random.of(0..3_000)).command(),
            30..42 => {
                session.burst = random.of(0..self.plan.burst + 1);
                Job::Work(0).command()
            }
            42..62 => Job::Meet.command(),
            62..72 => Command::SyncAll,
            72..82 => Command::SyncWorker { worker },
            number @ 82..87 => {
                let register = RegisterId::new(if random.percent(20) { LARGE } else { 2 });
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
        let session = &mut self.lead.session;
        session.seq += 1;
        let seq = session.seq;
        let from: BTreeSet<WorkerId> = match &command {
            Command::SyncAll | Command::GetAll { .. } => (0..workers).map(WorkerId::new).collect(),
            Command::SyncWorker { worker } | Command::DebugGet { worker, .. } => [*worker].into(),
            _ => BTreeSet::new(),
        };
        if !from.is_empty() {
            let is_for_all = matches!(command, Command::SyncAll | Command::GetAll { .. });
            let only = if is_for_all { None } else { from.first().copied() };
            session.asked.insert(seq, only);
            session.pending.insert(seq, from);
        }
        self.show(|| format!("command {seq}: {command:?}"));
        self.lead_sends(&Arc::new(Frame::new(seq, [], command)));
        self.check_credit();
    }

    fn check_credit(&mut self) {
        let posted = self.lead.posted;
        for index in 0..self.hosts.len() {
            let (frames, bytes) = self.hosts[index].passed;
            let first = self.hosts[index].workers[0].id;
            if !self.hosts[index].is_serving() || self.lead.session.ends.contains_key(&first) {
                continue;
            }
            if posted.0 - frames > CAPACITY || posted.1.saturating_sub(bytes) > 2 * UNREAD {
                self.breach(format!("{} frames are under way to host {index}", posted.0 - frames));
            }
        }
    }

    /// The lane has room again.
    pub(super) fn has_room(&mut self) {
        if std::mem::take(&mut self.lead.session.waits_for_room) {
            self.at(0, What::Step);
        }
    }

    pub(super) fn reply(&mut self, worker: WorkerId, seq: u64, reply: &Reply) {
        let session = &mut self.lead.session;
        if session.left.contains(&worker) {
            return self.breach(format!("{worker} replies to command {seq} after it has left"));
        }
        if !session.replied.insert((seq, worker)) {
            return self.breach(format!("{worker} replies to command {seq} twice"));
        }
        if session.asked.get(&seq).is_none_or(|only| only.is_some_and(|only| only != worker)) {
            return self.breach(format!("{worker} replies to command {seq}, and was not asked"));
        }
        let Some(missing) = session.pending.get_mut(&seq) else {
            // The wait has ended with the session.
            return;
        };
        missing.remove(&worker);
        let is_answered = missing.is_empty();
        if let Ok(Value::Bytes(bytes)) = reply
            && **bytes != *answer(worker, seq, bytes.len())
        {
            return self.breach(format!("{worker} answers command {seq} with other bytes"));
        }
        let session = &mut self.lead.session;
        if let Err(failure) = reply
            && failure.aborted
            && seq > session.recovered
            && session.failure.is_none()
            && session.lost.is_none()
            && !session.is_ending
        {
            return self.breach(format!("{worker} was aborted without a failure: {failure}"));
        }
        if is_answered {
            session.pending.remove(&seq);
            self.go_on();
        }
    }

    /// A wait has ended.
    fn go_on(&mut self) {
        if std::mem::take(&mut self.lead.session.waits_for_reply) {
            self.at(0, What::Step);
        }
    }

    pub(super) fn notice(&mut self, from: WorkerId, notice: Notice) {
        let Notice::Failed { epoch, failure } = notice else { return };
        self.show(|| format!("{from} has failed in epoch {epoch}: {failure}"));
        let session = &mut self.lead.session;
        if epoch < session.epoch {
            return;
        }
        if failure.aborted && session.failure.is_none() && session.lost.is_none() && !session.is_ending {
            return self.breach(format!("the first failure of epoch {epoch} follows from none: {failure}"));
        }
        if session.failure.is_none() {
            let cause = failure.to_string();
            session.failure = Some(cause.clone());
            // The thread that has got the notice may be overtaken by one that recovers.
            let delay = self.random.of(0..300_000);
            self.at(delay, What::Signal(Signal::Abort { epoch, cause: cause.into() }));
        }
    }

    /// A signal of the session.
    pub(super) fn signal(&mut self, signal: Signal) {
        if let Signal::Abort { epoch, cause } = &signal {
            self.lead.store.abort(*epoch, cause);
        }
        self.show(|| format!("signal {signal:?}"));
        self.tell_lead(Event::Signal(signal));
    }

    pub(super) fn left(&mut self, workers: WorkerRange) {
        self.show(|| format!("{workers} have left"));
        let ids: BTreeSet<WorkerId> = workers.iter().collect();
        self.end_peer(workers, "left");
        let session = &mut self.lead.session;
        session.left.extend(&ids);
        session.pending.retain(|_, missing| missing.is_disjoint(&ids));
        self.go_on();
    }

    pub(super) fn lost(&mut self, workers: WorkerRange, why: &Error) {
        self.show(|| format!("{why}"));
        self.end_peer(workers, "lost");
        let host = &self.hosts[workers.first().index() / self.plan.per_host];
        if !host.is_harmed && host.lost != Some(workers.first()) {
            return self.breach(format!("a loss without a reason: {why}"));
        }
        let status = format!("its process ended: {}", host.status);
        if host.tells_status && !why.to_string().contains(&status) {
            return self.breach(format!("a loss does not tell that {status}: {why}"));
        }
        let session = &mut self.lead.session;
        if session.lost.is_none() {
            session.lost = Some(why.to_string());
            session.pending.clear();
            let (epoch, cause) = (session.epoch, why.to_string().into());
            self.at(self.now % 1000, What::Signal(Signal::Abort { epoch, cause }));
            self.lead.session.waits_for_room = false;
            self.lead.session.waits_for_reply = false;
            self.at(0, What::Step);
        }
    }

    /// A node reports the end of each of its workers once, and the controller the end of each peer.
    fn end_peer(&mut self, workers: WorkerRange, how: &'static str) {
        let (first, count) = (workers.first(), workers.len());
        let peer = first.index() / self.plan.per_host;
        let session = &mut self.lead.session;
        let is_of_node = match (self.plan.kind, self.plan.per_host) {
            (Kind::Processes, _) => false,
            // Its node says that it has left, and ends then.
            (Kind::Nodes, 1) => how == "left" && !session.reported.contains(&first),
            (Kind::Nodes, per_host) => count < per_host,
        };
        let is_fine = match is_of_node {
            true => count == 1 && session.reported.insert(first),
            false => count == self.plan.per_host && session.ends.insert(first, how).is_none(),
        };
        if !is_fine {
            let ends = format!("{:?}", session.ends);
            return self.breach(format!("{workers} {how} after they were reported: {ends}"));
        }
        if !is_of_node && self.lead.ring.has(peer) {
            self.breach(format!("the ring waits for {workers}, which {how}"));
        }
    }

    /// A worker has printed a line.
    pub(super) fn output(&mut self, from: String, line: &[u8]) {
        let printed = self.lead.session.printed.entry(from.clone()).or_default();
        *printed += 1;
        if printed.to_string().as_bytes() != line {
            self.breach(format!("{from} prints line {} twice or out of order", String::from_utf8_lossy(line)));
        }
    }

    /// The session ends.
    fn finish_session(&mut self) {
        self.lead.session.is_ending = true;
        let is_lost = self.lead.session.lost.is_some();
        if !is_lost && self.lead.room(false) > 0 && self.random.percent(10) {
            // Another thread of the program still waits for a value.
            let worker = WorkerId::new(self.random.of(0..self.plan.workers() as u64) as u32);
            self.submit(Command::DebugGet { worker, register: RegisterId::new(LARGE) });
        }
        self.show(|| "the session ends".to_owned());
        self.lead.session.ended = self.now;
        let limit = match self.plan.ending {
            Ending::Shutdown => {
                if self.lead.room(false) > 0 && !self.lead.is_closed() {
                    self.lead.session.is_in_order = !is_lost;
                    self.submit(Command::Shutdown);
                } else {
                    self.signal(Signal::Shutdown);
                }
                90 * SECOND
            }
            Ending::Drop => {
                let epoch = self.lead.session.epoch;
                self.signal(Signal::Abort { epoch, cause: "the session is dropped".into() });
                self.signal(Signal::Shutdown);
                3 * SECOND
            }
            Ending::DropLane => return self.tell_lead(Event::Dropped),
        };
        self.lead.session.close_limit = limit;
        self.lead.session.closes = true;
        self.tell_lead(Event::Close(std::time::Duration::from_micros(limit)));
        self.at(LOOK_INTERVAL, What::Look);
    }

    /// A host was harmed so that it must be lost.
    pub(super) fn must_be_lost(&mut self, host: usize) {
        (self.hosts[host].is_harmed, self.hosts[host].tells_status) = (true, false);
        self.host_must_be_noticed(host);
    }

    /// The loss of a host or of one of its workers has to be reported.
    pub(super) fn host_must_be_noticed(&mut self, host: usize) {
        self.hosts[host].harmed = self.now;
        if self.hosts[host].is_taken {
            self.at(NOTICE_LIMIT, What::Noticed(host));
        }
    }

    pub(super) fn check_noticed(&mut self, host: usize) {
        // Another harm, or a freeze, may have kept it from being noticed so far.
        let due = self.hosts[host].harmed + NOTICE_LIMIT + self.frozen;
        if self.now < due {
            return self.at(due - self.now, What::Noticed(host));
        }
        let Session { ends, reported, is_ending, .. } = &self.lead.session;
        let is_noticed = ends.contains_key(&self.hosts[host].workers[0].id)
            || self.hosts[host].lost.is_some_and(|worker| reported.contains(&worker));
        if !is_noticed && !is_ending {
            self.breach(format!("the loss of host {host} was not noticed in {NOTICE_LIMIT} us"));
        }
    }

    /// The thread that closes the lane looks whether that is done.
    pub(super) fn look_at_close(&mut self) {
        self.lead_goes_on_closing();
        if !self.lead.is_closed_for_good() {
            self.at(LOOK_INTERVAL, What::Look);
        }
    }

    /// Whether the session waits for nothing any more.
    pub(super) fn has_session_ended(&self) -> bool {
        self.lead.session.is_ending && (!self.lead.session.closes || self.lead.is_closed_for_good())
    }

    /// The lane ends in limited time.
    pub(super) fn check_over(&mut self) {
        self.over = self.now;
        if self.plan.has_processes()
            && let Some(host) = self.hosts.iter().position(|host| !host.is_reaped)
        {
            return self.breach(format!("the lane is over while the process of host {host} runs"));
        }
        let Session { ended, close_limit, is_ending: true, .. } = self.lead.session else { return };
        let late = self.now.saturating_sub(ended + close_limit + self.frozen);
        if late > END_LIMIT {
            self.breach(format!("the lane is over {late} us after its limit"));
        }
    }

    /// Whether nothing was done to any end.
    pub(super) fn is_calm(&self) -> bool {
        self.hosts.iter().all(|host| !host.is_harmed && host.lost.is_none()) && !self.lead.is_harmed
    }

    /// What must hold when nothing is left.
    pub(super) fn check_session(&mut self) {
        if self.now > self.over + END_LIMIT + self.frozen {
            return self.breach("hosts are left for too long after the lane is over");
        }
        let session = &self.lead.session;
        let is_calm = self.is_calm();
        if let (true, Some(seq)) = (session.is_in_order && is_calm, session.pending.keys().next()) {
            return self.breach(format!("the wait for command {seq} has not ended"));
        }
        if session.is_in_order && is_calm && self.over < session.ended + session.close_limit {
            let seq = session.seq;
            if self.plan.ending == Ending::Shutdown
                && let Some(host) = self.hosts.iter().position(|host| host.workers.iter().any(|w| w.last != seq))
            {
                return self.breach(format!("workers of host {host} have not got all {seq} commands"));
            }
            if let Some(error) = self.hosts.iter().find_map(|host| host.result.clone()?.err()) {
                return self.breach(format!("a host that was not harmed ends with an error: {error}"));
            }
        }
        let printed: u64 = self.hosts.iter().flat_map(|host| &host.workers).map(|worker| worker.printed).sum();
        let lines: u64 = session.printed.values().sum();
        if is_calm && session.is_in_order && lines != printed {
            return self.breach(format!("{lines} of {printed} lines of workers have come"));
        }
        let open: usize = self.hosts.iter().map(|host| host.questions.len()).sum();
        if is_calm && session.is_in_order && open > 0 {
            self.breach(format!("{open} questions have no answer"));
        }
    }
}
