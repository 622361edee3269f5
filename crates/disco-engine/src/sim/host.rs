//! A simulated host: a node with workers, or a worker process. Drives the member's engine.

use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use disco_core::activity::Progress;
use disco_core::channel::Signal;
use disco_core::wire::{self, Message, Received};
use disco_core::{Frame, Result, Value, WorkerId, WorkerRange};

use super::joiner::PROOF_LIMIT;
use super::link::{Arrival, Side};
use super::phase::{Action, Phase};
use super::plan::{Kind, Plan};
use super::terms::messages;
use super::worker::Worker;
use super::world::{Micros, What, World};
use crate::controller::Order;
use crate::member::serving::{self, Event};
use crate::member::upward::{self, Priority};
use crate::pending_requests::PendingRequests;

/// Capacity of a node's lane in frames.
pub(super) const LANE_ROOM: usize = 64;

/// A simulated host.
pub(super) struct Host {
    pub(super) workers: Vec<Worker>,
    pub(super) link: Option<usize>,
    /// When the host connected last.
    pub(super) connected: Micros,
    pub(super) phase: Phase,
    timer: Option<Micros>,
    pub(super) frozen: bool,
    /// Events that were deferred while the host was frozen.
    pub(super) deferred: Vec<What>,
    pub(super) requests: PendingRequests<(usize, u64)>,
    /// Replies of a node's workers that go up together.
    pub(super) replies: upward::Replies,
    /// Its workers were told to end when they next receive.
    pub(super) told_to_leave: bool,
    /// The member waits until its workers have left.
    awaits: bool,
    /// Number and bytes of frames that the member has passed on.
    pub(super) passed: (u64, u64),
    /// Frames in the ring for this host; `None` stands for a large frame, which comes over the connection.
    pub(super) ring: VecDeque<Option<Arc<Frame>>>,
    /// A disruption may have ended the host.
    pub(super) is_disrupted: bool,
    /// How long the host or the controller was frozen, and whether one of them was alone.
    pub(super) paused: Micros,
    pub(super) paused_alone: bool,
    /// The worker that was lost by itself.
    pub(super) lost: Option<WorkerId>,
    /// The exit status of the process, and whether the loss must report it.
    pub(super) status: ExitStatus,
    pub(super) has_exit_status: bool,
    /// The controller has seen the end of the process.
    pub(super) is_reaped: bool,
    /// The time of the last disruption.
    pub(super) disrupted: Micros,
    /// The controller has assigned its place.
    pub(super) is_taken: bool,
    /// The result of its end.
    pub(super) result: Option<Result<()>>,
}

impl Host {
    pub(super) fn new(plan: &Plan, index: usize) -> Self {
        let first = index * plan.per_host;
        let workers = (first..first + plan.per_host).map(|worker| Worker::new(WorkerId::new(worker as u32)));
        let all = WorkerRange::new(first as u32..(first + plan.per_host) as u32);
        Self {
            workers: workers.collect(),
            link: None,
            connected: 0,
            phase: Phase::Away,
            timer: None,
            frozen: false,
            deferred: Vec::new(),
            requests: PendingRequests::default(),
            replies: upward::Replies::new(all),
            told_to_leave: false,
            awaits: false,
            passed: (0, 0),
            ring: VecDeque::new(),
            is_disrupted: false,
            paused: 0,
            paused_alone: false,
            lost: None,
            status: ExitStatus::default(),
            has_exit_status: false,
            is_reaped: false,
            disrupted: 0,
            is_taken: false,
            result: None,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.phase.is_done()
    }

    pub(super) fn is_serving(&self) -> bool {
        self.phase.is_serving()
    }

    /// Room in the node's lane.
    fn room(&self) -> usize {
        let behind = self.workers.iter().filter(|worker| !worker.has_left).map(|worker| worker.queue.len()).max();
        LANE_ROOM.saturating_sub(behind.unwrap_or(0))
    }

    /// Ends the host and its workers with `result`.
    pub(super) fn end(&mut self, result: Result<()>) {
        self.phase = Phase::Done;
        self.result.get_or_insert(result);
        self.workers.iter_mut().for_each(Worker::end);
    }
}

impl World {
    /// Handles an arrival at a host.
    pub(super) fn member_receives(&mut self, link: usize, what: Arrival) {
        let index = self.links[link].host;
        if index >= self.hosts.len() {
            return self.intruder_receives(link, &what);
        }
        if self.hosts[index].link != Some(link) {
            return;
        }
        match what {
            Arrival::Part => self.notify_host(index, Event::PartReceived),
            Arrival::End => self.host_is_cut_off(index),
            Arrival::Bytes(bytes) => {
                if let Phase::Proving(_) = self.hosts[index].phase {
                    return self.prove(index, &bytes);
                }
                for message in messages(&bytes) {
                    match message {
                        Ok(message) => {
                            self.show(|| format!("host {index} hears {message}"));
                            self.notify_host(index, Event::Message(message));
                        }
                        Err(error) => self.notify_host(index, Event::Failed(error)),
                    }
                }
            }
        }
    }

    /// Feeds an event to a host's engine.
    pub(super) fn notify_host(&mut self, index: usize, event: Event) {
        let now = self.instant();
        self.hosts[index].phase.handle(event, now);
        self.host_acts(index);
    }

    pub(super) fn host_timer(&mut self, index: usize) {
        self.hosts[index].timer = None;
        if let Phase::Proving(_) = self.hosts[index].phase
            && self.now >= self.hosts[index].connected + PROOF_LIMIT
        {
            return self.come_again(index);
        }
        self.notify_host(index, Event::Timeout);
    }

    /// Carries out the actions of a host's engine.
    pub(super) fn host_acts(&mut self, index: usize) {
        loop {
            match self.hosts[index].phase.next_action() {
                Some(Action::Join(action)) => self.join(index, action),
                Some(Action::Serve(action)) => {
                    if let Err(error) = self.serve(index, action) {
                        self.record_violation(format!("host {index}: {error}"));
                    }
                }
                None => {
                    let (now, room) = (self.instant(), self.hosts[index].room());
                    if !self.hosts[index].phase.offer_room(room, now) {
                        break;
                    }
                }
            }
        }
        let timeout = self.hosts[index].phase.next_timeout();
        if let Some(timeout) = timeout {
            let after = self.until(timeout);
            let at = self.now + after;
            if self.hosts[index].timer.is_none_or(|timer| at < timer) {
                self.hosts[index].timer = Some(at);
                self.at(after, What::Timer(Some(index)));
            }
        }
    }

    fn serve(&mut self, index: usize, action: serving::Action) -> Result<()> {
        match action {
            serving::Action::Send(message) => self.host_sends(index, &message, Priority::Urgent),
            serving::Action::SendLast(message) => self.host_sends(index, &message, Priority::Last),
            serving::Action::Deliver { seq, bytes, received } => {
                let size = bytes.len() + received.as_ref().map_or(0, Received::byte_len);
                let frame = match received {
                    Some(received) => wire::decode_frame_after(seq, &bytes, received)?,
                    None => wire::decode_frame(seq, &bytes)?,
                };
                self.give(index, frame, size);
            }
            serving::Action::Pass(frame) => {
                let size = frame.bytes()?.len();
                if self.hosts[index].room() == 0 {
                    self.record_violation(format!("host {index} has passed a frame to a full lane"));
                }
                self.hosts[index].replies.expect(&frame);
                self.give(index, frame, size);
            }
            serving::Action::Signal(Signal::Abort { epoch, cause }) => self.abort_workers(index, epoch, &cause),
            serving::Action::Signal(Signal::Shutdown) => {
                self.hosts[index].told_to_leave = true;
                self.run_workers(index);
            }
            serving::Action::AwaitWorkers => {
                self.hosts[index].awaits = true;
                self.end_if_left(index);
            }
            serving::Action::Answer { id, result } => {
                if let Some((worker, question)) = self.hosts[index].requests.end(id) {
                    self.answer(index, worker, question, result);
                }
            }
            serving::Action::DeliverDescriptor { .. } | serving::Action::Signal(_) | serving::Action::Rest => {}
            serving::Action::ReadProgress => {
                let flushed = self.hosts[index].replies.flush();
                flushed.iter().for_each(|message| self.host_sends(index, message, Priority::Urgent));
                let workers = self.hosts[index].workers.iter();
                let progress = workers.map(|worker| Progress::new(worker.last, worker.finished)).collect();
                let now = self.instant();
                self.hosts[index].phase.handle(Event::Progress(progress), now);
            }
            serving::Action::Stop { cause, limit } => self.stop_workers(index, &cause, limit),
            serving::Action::Kill => {
                self.show(|| format!("host {index} kills itself"));
                self.kill(index);
            }
            serving::Action::End(result) => {
                self.show(|| format!("host {index} ends: {result:?}"));
                if self.plan.kind == Kind::Nodes {
                    self.leave_host(index);
                    self.hosts[index].result = Some(result);
                }
            }
        }
        Ok(())
    }

    fn stop_workers(&mut self, index: usize, cause: &Arc<str>, limit: Duration) {
        self.split_replies(index);
        self.show(|| format!("host {index} stops its workers: {cause}"));
        (self.hosts[index].told_to_leave, self.hosts[index].awaits) = (true, true);
        self.abort_workers(index, u64::MAX, cause);
        self.run_workers(index);
        self.end_if_left(index);
        if self.plan.kind == Kind::Nodes && limit < Duration::MAX {
            self.at(limit.as_micros() as u64, What::Grace(index));
        }
    }

    /// Sends the replies of a node's workers that wait for those of others.
    pub(super) fn split_replies(&mut self, index: usize) {
        let messages = self.hosts[index].replies.split();
        messages.iter().for_each(|message| self.host_sends(index, message, Priority::Urgent));
    }

    /// Delivers a frame to the workers of a host.
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

    /// Handles that workers have left.
    pub(super) fn end_if_left(&mut self, index: usize) {
        let host = &self.hosts[index];
        if !host.workers.iter().all(|worker| worker.has_left) || host.is_done() {
            return;
        }
        match self.plan.kind {
            Kind::Nodes if host.awaits => self.notify_host(index, Event::Left(String::new())),
            Kind::Nodes => {}
            Kind::Processes => {
                self.host_sends(index, &Message::Signal(Signal::Shutdown), Priority::Last);
                self.notify_host(index, Event::Left(String::new()));
                self.leave_host(index);
            }
        }
    }

    /// Ends the grace period of a node's workers.
    pub(super) fn end_grace(&mut self, index: usize) {
        let stuck = self.hosts[index].workers.iter().filter(|worker| !worker.has_left);
        let stuck: Vec<String> = stuck.map(|worker| worker.id.to_string()).collect();
        self.notify_host(index, Event::Left(stuck.join(", ")));
    }

    /// Sends a message of a host.
    pub(super) fn host_sends(&mut self, index: usize, message: &Message, priority: Priority) {
        match message.encode() {
            Ok(packet) => {
                let order = if priority == Priority::Urgent { Order::Urgent } else { Order::Last };
                self.host_writes(index, &packet.into(), order);
            }
            Err(error) => self.record_violation(format!("host {index}: {error}")),
        }
    }

    pub(super) fn host_writes(&mut self, index: usize, bytes: &Arc<[u8]>, order: Order) {
        let Some(link) = self.hosts[index].link else { return };
        if !self.write(link, Side::Controller, bytes, order) {
            let unread = self.links[link].backlog(Side::Controller);
            self.hosts[index].is_disrupted = true;
            let now = self.instant();
            self.hosts[index].phase.handle(Event::Full(unread), now);
        }
    }

    /// Ends the process of a host by itself; its packets are still sent.
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

    /// Kills the process of a host.
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

    /// Restarts the node's program, which joins as the same node.
    pub(super) fn restart(&mut self, index: usize) {
        self.kill(index);
        let mut host = Host::new(&self.plan, index);
        host.is_disrupted = true;
        self.hosts[index] = host;
        self.at(200_000, What::Connect(index));
    }

    pub(super) fn nonce(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.events.random.next() as u8)
    }

    /// Passes a worker the answer of the store, or the error of its deadline.
    pub(super) fn answer(&mut self, index: usize, worker: usize, question: u64, result: Result<Value>) {
        self.hosts[index].workers[worker].answers(question, result);
        self.run_worker(index, worker);
    }
}
