//! A machine with a member's engine: a node with workers, or a worker process. This is the driver of the engine.

use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use disco_core::activity::Progress;
use disco_core::wire::{self, Message, Received};
use disco_core::{Frame, Result, Value, WorkerId};

use super::joiner::PROOF_LIMIT;
use super::lead;
use super::link::{Arrival, Side};
use super::plan::{Kind, Plan};
use super::worker::Worker;
use super::world::{At, What, World};
use crate::engine::controller::Order;
use crate::engine::member::joining::Joining;
use crate::engine::member::serving::{Action, Event, Member};
use crate::engine::member::upward::Priority;
use crate::engine::questions::Questions;
use crate::handshake::Guest;

/// Frames that the lane of a node takes.
pub(super) const LANE_ROOM: usize = 64;

/// One machine.
pub(super) struct Host {
    pub(super) workers: Vec<Worker>,
    pub(super) link: Option<usize>,
    /// When it connected last.
    pub(super) connected: At,
    pub(super) phase: Phase,
    timer: Option<At>,
    pub(super) frozen: bool,
    /// What came to its threads while it was frozen.
    pub(super) deferred: Vec<What>,
    pub(super) questions: Questions<(usize, u64)>,
    /// Its workers were told to leave at the next opportunity.
    pub(super) told_to_leave: bool,
    /// The member wants to know when they have left.
    awaits: bool,
    /// Frames that the member has passed on, and their bytes.
    pub(super) passed: (u64, u64),
    /// Frames in the ring, for this host to read; none: a large frame that comes over the connection.
    pub(super) ring: VecDeque<Option<Arc<Frame>>>,
    /// The plan has done something to it that may end it.
    pub(super) is_harmed: bool,
    /// For how long it or the controller did nothing, and whether either did so alone.
    pub(super) paused: At,
    pub(super) paused_alone: bool,
    /// Its worker that ended alone.
    pub(super) lost: Option<WorkerId>,
    /// How its process ends, and whether the loss of the worker tells so.
    pub(super) status: ExitStatus,
    pub(super) tells_status: bool,
    /// The controller knows that its process has ended.
    pub(super) is_reaped: bool,
    /// When that was, the last time.
    pub(super) harmed: At,
    /// It was told what it is to be.
    pub(super) is_taken: bool,
    /// How it ended.
    pub(super) result: Option<Result<()>>,
}

#[derive(Default)]
pub(super) enum Phase {
    #[default]
    Away,
    /// Waits for the greeting, or for the verdict.
    Proving(Option<Guest>),
    Joining(Joining),
    Serving(Box<Member>),
    Done,
}

impl Host {
    pub(super) fn new(plan: &Plan, index: usize) -> Self {
        let first = index * plan.per_host;
        let workers = (first..first + plan.per_host).map(|worker| Worker::new(WorkerId::new(worker as u32)));
        Self {
            workers: workers.collect(),
            link: None,
            connected: 0,
            phase: Phase::Away,
            timer: None,
            frozen: false,
            deferred: Vec::new(),
            questions: Questions::default(),
            told_to_leave: false,
            awaits: false,
            passed: (0, 0),
            ring: VecDeque::new(),
            is_harmed: false,
            paused: 0,
            paused_alone: false,
            lost: None,
            status: ExitStatus::default(),
            tells_status: false,
            is_reaped: false,
            harmed: 0,
            is_taken: false,
            result: None,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    pub(super) fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving(_))
    }

    /// The lane's room.
    fn room(&self) -> usize {
        let behind = self.workers.iter().filter(|worker| !worker.has_left).map(|worker| worker.queue.len()).max();
        LANE_ROOM.saturating_sub(behind.unwrap_or(0))
    }

    /// The thing has ended, with everything that it was.
    pub(super) fn end(&mut self, result: Result<()>) {
        self.phase = Phase::Done;
        self.result.get_or_insert(result);
        self.workers.iter_mut().for_each(Worker::end);
    }
}

impl World {
    /// Something of the controller arrives at a host.
    pub(super) fn member_receives(&mut self, link: usize, what: Arrival) {
        let index = self.links[link].host;
        if index >= self.hosts.len() {
            return self.stranger_receives(link, &what);
        }
        if self.hosts[index].link != Some(link) {
            return;
        }
        match what {
            Arrival::Part => self.tell_host(index, Event::Heard),
            Arrival::End => self.host_is_cut_off(index),
            Arrival::Bytes(bytes) => {
                if let Phase::Proving(guest) = &mut self.hosts[index].phase {
                    let guest = guest.take();
                    return self.prove(index, guest, &bytes);
                }
                for message in lead::messages(&bytes) {
                    match message {
                        Ok(message) => {
                            self.show(|| format!("host {index} hears {message}"));
                            self.tell_host(index, Event::Said(message));
                        }
                        Err(error) => self.tell_host(index, Event::Failed(error)),
                    }
                }
            }
        }
    }

    /// The engine of a host takes something in.
    pub(super) fn tell_host(&mut self, index: usize, event: Event) {
        let now = self.instant();
        match &mut self.hosts[index].phase {
            Phase::Joining(joining) => joining.handle(event, now),
            Phase::Serving(member) => member.handle(event, now),
            _ => return,
        }
        self.host_acts(index);
    }

    pub(super) fn host_timer(&mut self, index: usize) {
        self.hosts[index].timer = None;
        if let Phase::Proving(_) = self.hosts[index].phase
            && self.now >= self.hosts[index].connected + PROOF_LIMIT
        {
            return self.come_again(index);
        }
        self.tell_host(index, Event::Timeout);
    }

    /// Does what the engine of a host wants.
    pub(super) fn host_acts(&mut self, index: usize) {
        loop {
            if let Phase::Joining(joining) = &mut self.hosts[index].phase
                && let Some(action) = joining.next_action()
            {
                self.join(index, action);
            } else if let Phase::Serving(member) = &mut self.hosts[index].phase
                && let Some(action) = member.next_action()
            {
                if let Err(error) = self.serve(index, action) {
                    self.breach(format!("host {index}: {error}"));
                }
            } else if !self.offer_room(index) {
                break;
            }
        }
        let timeout = match &self.hosts[index].phase {
            Phase::Joining(joining) => joining.next_timeout(),
            Phase::Serving(member) => member.next_timeout(),
            _ => None,
        };
        if let Some(timeout) = timeout {
            let after = self.until(timeout);
            let at = self.now + after;
            if self.hosts[index].timer.is_none_or(|timer| at < timer) {
                self.hosts[index].timer = Some(at);
                self.at(after, What::Timer(Some(index)));
            }
        }
    }

    /// Tells the member of the lane's room, if it wants some.
    fn offer_room(&mut self, index: usize) -> bool {
        let (now, room) = (self.instant(), self.hosts[index].room());
        match &mut self.hosts[index].phase {
            Phase::Serving(member) if room > 0 && member.wants_room() => {
                member.handle(Event::Room(room), now);
                true
            }
            _ => false,
        }
    }

    fn serve(&mut self, index: usize, action: Action) -> Result<()> {
        match action {
            Action::Send(message) => self.host_says(index, &message, Priority::Urgent),
            Action::SendLast(message) => self.host_says(index, &message, Priority::Last),
            Action::Deliver { seq, bytes, received } => {
                let size = bytes.len() + received.as_ref().map_or(0, Received::byte_len);
                let frame = match received {
                    Some(received) => wire::decode_frame_after(seq, &bytes, received)?,
                    None => wire::decode_frame(seq, &bytes)?,
                };
                self.give(index, frame, size);
            }
            Action::Pass(frame) => {
                let size = frame.bytes()?.len();
                if self.hosts[index].room() == 0 {
                    self.breach(format!("host {index} passes a frame to a full lane"));
                }
                self.give(index, frame, size);
            }
            Action::Abort { epoch, cause } => self.abort_workers(index, epoch, &cause),
            Action::Shutdown => {
                self.hosts[index].told_to_leave = true;
                self.run_workers(index);
            }
            Action::AwaitWorkers => {
                self.hosts[index].awaits = true;
                self.end_if_left(index);
            }
            Action::Answer { id, result } => {
                if let Some((worker, question)) = self.hosts[index].questions.end(id) {
                    self.answer(index, worker, question, result);
                }
            }
            Action::Hand { .. } => {}
            Action::Look => {
                for worker in 0..self.hosts[index].workers.len() {
                    let Worker { last, finished, .. } = self.hosts[index].workers[worker];
                    let progress = Progress::new(last, finished);
                    let now = self.instant();
                    if let Phase::Serving(member) = &mut self.hosts[index].phase {
                        member.handle(Event::Progress(worker, progress), now);
                    }
                }
            }
            Action::Stop { cause, limit } => {
                self.show(|| format!("host {index} stops its workers: {cause}"));
                (self.hosts[index].told_to_leave, self.hosts[index].awaits) = (true, true);
                self.abort_workers(index, u64::MAX, &cause);
                self.run_workers(index);
                self.end_if_left(index);
                if self.plan.kind == Kind::Nodes && limit < Duration::MAX {
                    self.at(limit.as_micros() as u64, What::Grace(index));
                }
            }
            Action::Kill => {
                self.show(|| format!("host {index} kills itself"));
                self.kill(index);
            }
            Action::End(result) => {
                self.show(|| format!("host {index} ends: {result:?}"));
                if self.plan.kind == Kind::Nodes {
                    self.leave_host(index);
                    self.hosts[index].result = Some(result);
                }
            }
        }
        Ok(())
    }

    /// A frame reaches the workers of a host.
    fn give(&mut self, index: usize, frame: Frame, size: usize) {
        let host = &mut self.hosts[index];
        host.passed = (host.passed.0 + 1, host.passed.1 + size as u64);
        let frame = Arc::new(frame);
        for worker in host.workers.iter_mut().filter(|worker| !worker.has_left) {
            worker.queue.push_back(frame.clone());
        }
        if self.plan.kind == Kind::Processes {
            self.acknowledge(index, size);
        }
        self.run_workers(index);
    }

    /// Workers have left.
    pub(super) fn end_if_left(&mut self, index: usize) {
        let host = &self.hosts[index];
        if !host.workers.iter().all(|worker| worker.has_left) || host.is_done() {
            return;
        }
        match self.plan.kind {
            Kind::Nodes if host.awaits => self.tell_host(index, Event::Left(String::new())),
            Kind::Nodes => {}
            Kind::Processes => {
                self.host_says(index, &Message::Shutdown, Priority::Last);
                self.tell_host(index, Event::Left(String::new()));
                self.leave_host(index);
            }
        }
    }

    /// The workers of a node had their time to leave.
    pub(super) fn end_grace(&mut self, index: usize) {
        let stuck = self.hosts[index].workers.iter().filter(|worker| !worker.has_left);
        let stuck: Vec<String> = stuck.map(|worker| worker.id.to_string()).collect();
        self.tell_host(index, Event::Left(stuck.join(", ")));
    }

    /// A host says something.
    pub(super) fn host_says(&mut self, index: usize, message: &Message, priority: Priority) {
        match message.encode() {
            Ok(packet) => {
                let order = if priority == Priority::Urgent { Order::Urgent } else { Order::Last };
                self.host_writes(index, &packet.into(), order);
            }
            Err(error) => self.breach(format!("host {index}: {error}")),
        }
    }

    pub(super) fn host_writes(&mut self, index: usize, bytes: &Arc<[u8]>, order: Order) {
        let Some(link) = self.hosts[index].link else { return };
        if !self.write(link, Side::Controller, bytes, order) {
            let unread = self.links[link].backlog(Side::Controller);
            self.hosts[index].is_harmed = true;
            let now = self.instant();
            if let Phase::Serving(member) = &mut self.hosts[index].phase {
                member.handle(Event::Full(unread), now);
            }
        }
    }

    /// The process of a host ends by itself: what it has said still goes.
    pub(super) fn leave_host(&mut self, index: usize) {
        if let Some(link) = self.hosts[index].link.take() {
            self.close_link(link, Side::Member, false);
        }
        self.end_host(index, Ok(()));
    }

    fn end_host(&mut self, index: usize, result: Result<()>) {
        self.hosts[index].end(result);
        if self.plan.has_processes() {
            self.at(2_000, What::Ended(index));
        }
    }

    /// The process of a host is killed.
    pub(super) fn kill(&mut self, index: usize) {
        if self.hosts[index].is_done() {
            return;
        }
        if let Some(link) = self.hosts[index].link.take() {
            self.close_link(link, Side::Member, true);
        }
        self.hosts[index].status = ExitStatus::from_raw(9);
        self.end_host(index, Err(disco_core::Error::invalid("killed")));
    }

    /// The node's program is started again, and joins as the same node.
    pub(super) fn restart(&mut self, index: usize) {
        self.kill(index);
        let mut host = Host::new(&self.plan, index);
        host.is_harmed = true;
        self.hosts[index] = host;
        self.at(200_000, What::Connect(index));
    }

    pub(super) fn nonce(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.random.next() as u8)
    }

    /// What a worker asks of the store was answered, or was not in time.
    pub(super) fn answer(&mut self, index: usize, worker: usize, question: u64, result: Result<Value>) {
        self.hosts[index].workers[worker].answers(question, result);
        self.run_worker(index, worker);
    }
}
