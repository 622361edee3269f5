//! The simulated controller: the driver of its engine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use disco_core::wire::{Message, RingPlace, Welcome};
use disco_core::worker::WorkerConfig;
use disco_core::{Result, Value, WorkerRange, World as Size};

use super::link::{Arrival, Link, Side};
use super::plan::{Kind, Plan};
use super::session::Session;
use super::terms::{Answer, HEARTBEAT, SECRET, SILENCE, Store, assignment, messages, node_terms};
use super::world::{Micros, What, World};
use crate::controller::{Action, Conn, Controller, Event, NodeTerms, Order, Origin, Terms, Tree};
use crate::credit::{MAX_UNREAD_BYTES, MAX_UNREAD_FRAMES};

const START: Duration = Duration::from_secs(30);

/// Capacity of the ring in records.
const RECORDS: usize = 64;
/// The simulated controller.
pub(super) struct SimController {
    pub(super) engine: Controller,
    pub(super) conns: BTreeMap<Conn, usize>,
    /// Connections that carry messages.
    listens: BTreeSet<Conn>,
    accepts: bool,
    timer: Option<Micros>,
    pub(super) frozen: bool,
    /// The reactor thread is stalled.
    pub(super) stalled: bool,
    pub(super) ring: Ring,
    pub(super) deferred: Vec<What>,
    pub(super) store: Store,
    pub(super) session: Session,
    /// A disruption of the controller may lose any host.
    pub(super) is_disrupted: bool,
    /// The reactor thread carries out actions, and computes its timeout afterwards.
    is_acting: bool,
    pub(super) is_over: bool,
    /// The program has dropped the lane.
    is_dropped: bool,
    /// Number and bytes of frames sent to all hosts.
    pub(super) posted: (u64, u64),
    /// Bytes of frames that are not large, of those in `posted`.
    pub(super) posted_small: u64,
}

/// The ring to worker processes: the numbers of records written, and read by each reader that is not retired.
pub(super) struct Ring {
    pub(super) written: u64,
    readers: Vec<Option<u64>>,
}

impl Ring {
    fn room(&self) -> usize {
        let slowest = self.readers.iter().flatten().min();
        slowest.map_or(usize::MAX, |slowest| RECORDS - (self.written - slowest) as usize)
    }

    /// Whether a reader is not retired.
    pub(super) fn has(&self, reader: usize) -> bool {
        self.readers.get(reader).is_some_and(Option::is_some)
    }

    /// Advances a reader. Returns whether it has to tell the writer of room.
    pub(super) fn advance(&mut self, reader: usize) -> bool {
        let Some(read) = &mut self.readers[reader] else { return false };
        *read += 1;
        (*read).is_multiple_of(RECORDS as u64 / 4)
    }
}

impl SimController {
    pub(super) fn new(plan: &Plan, now: Instant) -> Self {
        let workers = WorkerRange::new(0..plan.workers() as u32);
        let size = Size::new(plan.workers(), 1).expect("some workers");
        let config = WorkerConfig::new(size);
        let terms = match plan.kind {
            Kind::Nodes => {
                let tree = Tree::Any { first: 1, nodes: plan.hosts, fan_out: usize::MAX };
                let terms = NodeTerms { max_pending: 256, stays_open: true, ..node_terms(tree, size, plan.per_host) };
                Terms::Nodes(terms, assignment(config, workers, START))
            }
            Kind::Processes => {
                let place = RingPlace { reader: 0, readers: plan.hosts, capacity: RECORDS };
                let ring = plan.has_ring.then_some(place);
                let welcome = Welcome { config, ring, heartbeat: HEARTBEAT };
                let token = SECRET.as_bytes().into();
                Terms::Processes { workers, token, welcome, start: START, silence: SILENCE }
            }
        };
        Self {
            engine: Controller::new(terms, now),
            conns: BTreeMap::new(),
            listens: BTreeSet::new(),
            accepts: true,
            timer: None,
            frozen: false,
            stalled: false,
            ring: Ring { written: 0, readers: vec![Some(0); if plan.has_ring { plan.hosts } else { 0 }] },
            deferred: Vec::new(),
            store: Store::default(),
            session: Session::default(),
            is_disrupted: false,
            is_acting: false,
            is_over: false,
            is_dropped: false,
            posted: (0, 0),
            posted_small: 0,
        }
    }

    /// Whether the lane has room for a small command whatever peers have read: its credit would not be used up by all
    /// commands so far, but for the bytes of the large ones.
    pub(super) fn must_take_small(&self) -> bool {
        self.posted.0 < MAX_UNREAD_FRAMES && self.posted_small < MAX_UNREAD_BYTES && self.ring.room() > 0
    }

    /// Frames that the lane takes now. Small frames have a limit of bytes of their own.
    pub(super) fn room(&self, is_large: bool) -> usize {
        let credit = if is_large { self.engine.room() } else { self.engine.room_for_small() };
        credit.min(self.ring.room())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.engine.check(|| "lane".into()).is_err()
    }

    /// The link of a peer.
    pub(super) fn link(&self, peer: usize) -> Option<usize> {
        self.conns.get(&self.engine.conn(peer)?).copied()
    }

    /// Whether the close has finished, so that the stuck workers are known.
    pub(super) fn is_closed_for_good(&self) -> bool {
        self.engine.stuck().is_some()
    }
}

impl World {
    /// Schedules the first events.
    pub(super) fn begin(&mut self) {
        if self.plan.has_processes() {
            for index in 0..self.hosts.len() {
                self.notify_controller(Event::Started(index, Some(100 + index as u32)));
            }
        }
        for index in 0..self.hosts.len() {
            let after = self.events.random.of(0..300_000);
            self.at(after, What::Connect(index));
        }
        for (at, disruption) in self.plan.disruptions.clone() {
            self.at(at, What::Disruption(disruption));
        }
        self.controller_acts();
    }

    /// Connects to the controller, if it listens.
    pub(super) fn open(&mut self, host: usize) -> Option<usize> {
        if !self.controller.accepts || !self.controller.engine.accepts() {
            return None;
        }
        let link = self.links.len();
        let conn = Conn { slot: link as u32, generation: 1 };
        self.links.push(Link::new(conn, host));
        self.controller.conns.insert(conn, link);
        let origin = match self.plan.kind {
            Kind::Nodes => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 10_000 + link as u16));
                Origin::Tcp { address, nonce: self.nonce() }
            }
            Kind::Processes => {
                self.controller.listens.insert(conn);
                // The session does not know an intruder's process.
                Origin::Unix { pid: Some(100 + host as u32) }
            }
        };
        self.notify_controller(Event::Opened(conn, origin));
        Some(link)
    }

    /// Feeds an event to the controller's engine.
    pub(super) fn notify_controller(&mut self, event: Event) {
        let now = self.instant();
        self.controller.is_dropped |= matches!(event, Event::Dropped);
        let is_call = matches!(event, Event::Signal(_) | Event::Close(_) | Event::Dropped);
        self.controller.engine.handle(event, now);
        if is_call { self.controller_was_called() } else { self.controller_acts() }
    }

    /// Models the end of a call of a lane's method: the calling thread writes, and wakes the reactor only if the engine
    /// asks for it.
    pub(super) fn controller_was_called(&mut self) {
        self.controller_writes();
        if self.controller.stalled {
            return;
        }
        if self.controller.engine.take_wake() {
            return self.controller_acts();
        }
        let Some(timeout) = self.controller.engine.next_timeout().filter(|_| !self.controller.is_acting) else {
            return;
        };
        let due = self.now + self.until(timeout);
        if self.controller.timer.is_none_or(|timer| due < timer) {
            self.record_violation(format!("the reactor was not woken for a timeout at {due} us"));
        }
    }

    pub(super) fn controller_continues_closing(&mut self) {
        let now = self.instant();
        self.controller.engine.go_on_closing(now);
        self.controller_was_called();
    }

    pub(super) fn controller_timer(&mut self) {
        self.controller.timer = None;
        self.notify_controller(Event::Timer);
    }

    pub(super) fn controller_reaps(&mut self, host: usize) {
        self.hosts[host].is_reaped = true;
        self.notify_controller(Event::Ended(host, Some(self.hosts[host].status)));
    }

    /// Carries out the engine's actions, as the reactor thread.
    pub(super) fn controller_acts(&mut self) {
        self.controller.is_acting = true;
        loop {
            self.controller_writes();
            match self.controller.engine.next_action() {
                Some(action) => self.controller_does(action),
                None => break,
            }
        }
        for Answer { conn, id, result } in self.controller.store.take_answers() {
            self.controller_answers(conn, id, result);
        }
        // The reactor thread computes its timeout anyway.
        self.controller.engine.take_wake();
        // The lane is dropped after it is closed.
        if self.controller.engine.stuck().is_some() && !self.controller.is_dropped {
            return self.notify_controller(Event::Dropped);
        }
        self.controller.is_acting = false;
        if let Some(timeout) = self.controller.engine.next_timeout() {
            let after = self.until(timeout);
            let at = self.now + after;
            if self.controller.timer.is_none_or(|timer| at < timer) {
                self.controller.timer = Some(at);
                self.at(after, What::Timer(None));
            }
        }
    }

    fn controller_does(&mut self, action: Action) {
        match action {
            // Simulated packets are not encrypted.
            Action::Encrypt(..) => {}
            Action::Listen(conn, _) => _ = self.controller.listens.insert(conn),
            Action::Close(conn) => {
                if let Some(link) = self.controller.conns.remove(&conn) {
                    self.controller.listens.remove(&conn);
                    self.close_link(link, Side::Controller, true);
                }
            }
            Action::Flush => (0..self.links.len()).for_each(|link| self.pump(link, Side::Member)),
            Action::StopAccepting => self.controller.accepts = false,
            // Simulated clients do not ask.
            Action::SendStatus(_) => {}
            Action::Output { node, worker, line, .. } => self.output(format!("node {node} {worker}"), &line),
            Action::Retire(host) => {
                self.controller.ring.readers.iter_mut().skip(host).take(1).for_each(|it| *it = None)
            }
            Action::Kill(host) => {
                self.show(|| format!("host {host} is killed"));
                self.hosts[host].frozen = false;
                self.kill(host);
            }
            Action::Started(result) => self.started(result),
            Action::Replies { workers, seq } => {
                workers.iter().for_each(|worker| self.reply(worker, seq, &Ok(Value::None)));
            }
            Action::Reply { worker, seq, reply } => self.reply(worker, seq, &reply),
            Action::Notice { worker, notice } => self.notice(worker, notice),
            Action::Room => self.has_room(),
            Action::Left(workers) => self.left(workers),
            Action::Lost(workers, why) => self.lost(workers, &why),
            Action::CallStore { conn, id, epoch, call } => {
                self.controller.store.call((conn, id), epoch, call);
            }
            Action::Over => {
                self.show(|| "the lane is over".to_owned());
                if std::mem::replace(&mut self.controller.is_over, true) {
                    self.record_violation("the lane has ended twice");
                }
                self.check_over();
            }
            _ => {}
        }
    }

    fn controller_answers(&mut self, conn: Conn, id: u64, result: Result<Value>) {
        let Some(link) = self.controller.conns.get(&conn).copied() else { return };
        match (Message::Answer { id, result }).encode() {
            Ok(packet) => _ = self.write(link, Side::Member, &packet.into(), Order::Urgent),
            Err(error) => self.record_violation(format!("the controller could not send an answer: {error}")),
        }
    }

    /// Handles an arrival at the controller.
    pub(super) fn controller_receives(&mut self, link: usize, what: Arrival) {
        let conn = self.links[link].conn;
        if !self.controller.conns.contains_key(&conn) {
            return;
        }
        match what {
            Arrival::Part => self.notify_controller(Event::PartReceived(conn)),
            Arrival::End => self.notify_controller(Event::Hung(conn, None)),
            Arrival::Bytes(bytes) if !self.controller.listens.contains(&conn) => {
                self.notify_controller(Event::Bytes(conn, bytes.to_vec()));
            }
            Arrival::Bytes(bytes) => {
                for message in messages(&bytes) {
                    match message {
                        Ok(message) => {
                            self.show(|| format!("controller hears of {}: {message}", self.links[link].host));
                            self.notify_controller(Event::Message(conn, message));
                        }
                        Err(error) => self.notify_controller(Event::InvalidMessage(conn, error)),
                    }
                }
            }
        }
    }
}
