//! The controller's machine: the driver of its engine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use disco_core::store::{MemoryStore, SharedStore};
use disco_core::wire::{Assignment, Message, Packet, Pieces, RingPlace, Welcome};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Frame, Result, Value, WorkerRange, World as Size};

use super::link::{Arrival, Link, Side};
use super::plan::{Kind, Plan};
use super::session::Session;
use super::world::{At, What, World};
use crate::engine::controller::{Action, Conn, Controller, Event, NodeTerms, Order, Origin, Terms, pack};
use crate::engine::credit::{CAPACITY, UNREAD};
use crate::engine::limits::CHUNK;
use crate::shared_ring::Whom;
use crate::token::Token;

/// What the members of the session know.
pub(super) const SECRET: &str = "the token of this simulation";
const HEARTBEAT: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(5);
const START: Duration = Duration::from_secs(30);

/// Records that the ring takes.
const RECORDS: usize = 64;
/// Bytes of a frame that goes through it.
const INLINE: usize = 64 << 10;

/// The answer to a question: its connection and number.
type Answer = (Conn, u64, Result<Value>);

/// The controller's machine.
pub(super) struct Lead {
    engine: Controller,
    pub(super) conns: BTreeMap<Conn, usize>,
    /// Connections over which messages come.
    listens: BTreeSet<Conn>,
    accepts: bool,
    timer: Option<At>,
    pub(super) frozen: bool,
    /// The reactor thread does nothing.
    pub(super) stalled: bool,
    pub(super) ring: Ring,
    pub(super) deferred: Vec<What>,
    pub(super) store: Arc<MemoryStore>,
    answers: Arc<Mutex<Vec<Answer>>>,
    pub(super) session: Session,
    /// The plan has done something to it that may end any host.
    pub(super) is_harmed: bool,
    /// The reactor thread does what the engine wants: it looks for timeouts afterwards.
    is_acting: bool,
    pub(super) is_over: bool,
    /// The program has let go of the lane.
    is_dropped: bool,
    /// Frames that went to all hosts, and their bytes.
    pub(super) posted: (u64, u64),
    /// The bytes among them of frames that are not large.
    posted_small: u64,
}

/// The ring to worker processes: records written, and read by each that is not retired.
pub(super) struct Ring {
    written: u64,
    readers: Vec<Option<u64>>,
}

impl Ring {
    fn room(&self) -> usize {
        let slowest = self.readers.iter().flatten().min();
        slowest.map_or(usize::MAX, |slowest| RECORDS - (self.written - slowest) as usize)
    }

    /// Whether a reader is waited for.
    pub(super) fn has(&self, reader: usize) -> bool {
        self.readers.get(reader).is_some_and(Option::is_some)
    }

    /// A reader takes a record. Returns whether it has to say so.
    pub(super) fn advance(&mut self, reader: usize) -> bool {
        let Some(read) = &mut self.readers[reader] else { return false };
        *read += 1;
        (*read).is_multiple_of(RECORDS as u64 / 4)
    }
}

/// A token.
pub(super) fn token(text: &str) -> Token {
    Token::new(text).expect("long enough")
}

/// The messages of some packets.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Result<Message>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let split = Packet::split(bytes);
        Some(match split {
            Ok((packet, rest)) => {
                bytes = rest;
                Message::decode(packet).map_err(Error::from)
            }
            Err(error) => {
                bytes = &[];
                Err(error.into())
            }
        })
    })
}

/// A packet that is read part by part, as the reactor does.
fn packet(pieces: &Pieces) -> Result<Vec<u8>> {
    let mut packet = Vec::with_capacity(pieces.byte_len());
    while packet.len() < pieces.byte_len() {
        packet.extend(pieces.read(packet.len(), CHUNK)?);
    }
    Ok(packet)
}

impl Lead {
    pub(super) fn new(plan: &Plan, now: Instant) -> Self {
        let workers = WorkerRange::new(0..plan.workers() as u32);
        let size = Size::new(plan.workers(), 1).expect("some workers");
        let config = WorkerConfig::new(size);
        let terms = match plan.kind {
            Kind::Nodes => {
                let terms = NodeTerms {
                    token: token(SECRET),
                    world: size,
                    nodes: plan.hosts,
                    names: Vec::new(),
                    per_node: plan.per_host,
                    silence: SILENCE,
                };
                let (heartbeat, silence, start) = (HEARTBEAT, SILENCE, START);
                let assignment = Assignment { node: 0, workers, processes: false, config, heartbeat, silence, start };
                Terms::Nodes(terms, assignment)
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
            store: Arc::default(),
            answers: Arc::default(),
            session: Session::default(),
            is_harmed: false,
            is_acting: false,
            is_over: false,
            is_dropped: false,
            posted: (0, 0),
            posted_small: 0,
        }
    }

    /// Whether the lane has room for a small command whatever peers have read: its credit would not be used up by all commands so
    /// far, but for the bytes of the large ones.
    pub(super) fn must_take_small(&self) -> bool {
        self.posted.0 < CAPACITY && self.posted_small < UNREAD && self.ring.room() > 0
    }

    /// Frames that the lane takes now; the small ones have bytes for themselves.
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

    /// Whether it is known which workers did not leave.
    pub(super) fn is_closed_for_good(&self) -> bool {
        self.engine.stuck().is_some()
    }
}

impl World {
    /// Everything begins.
    pub(super) fn begin(&mut self) {
        if self.plan.has_processes() {
            for index in 0..self.hosts.len() {
                self.tell_lead(Event::Started(index, Some(100 + index as u32)));
            }
        }
        for index in 0..self.hosts.len() {
            let after = self.random.of(0..300_000);
            self.at(after, What::Connect(index));
        }
        for (at, harm) in self.plan.harms.clone() {
            self.at(at, What::Harm(harm));
        }
        self.lead_acts();
    }

    /// Connects to the controller, if that listens.
    pub(super) fn open(&mut self, host: usize) -> Option<usize> {
        if !self.lead.accepts || !self.lead.engine.accepts() {
            return None;
        }
        let link = self.links.len();
        let conn = Conn { slot: link as u32, generation: 1 };
        self.links.push(Link::new(conn, host));
        self.lead.conns.insert(conn, link);
        let origin = match self.plan.kind {
            Kind::Nodes => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 10_000 + link as u16));
                Origin::Tcp { address, nonce: self.nonce() }
            }
            Kind::Processes => {
                self.lead.listens.insert(conn);
                // A stranger's process is none of the session's.
                Origin::Unix { pid: Some(100 + host as u32) }
            }
        };
        self.tell_lead(Event::Opened(conn, origin));
        Some(link)
    }

    /// The controller's engine takes something in.
    pub(super) fn tell_lead(&mut self, event: Event) {
        let now = self.instant();
        self.lead.is_dropped |= matches!(event, Event::Dropped);
        let is_call = matches!(event, Event::Signal(_) | Event::Close(_) | Event::Dropped);
        self.lead.engine.handle(event, now);
        if is_call { self.lead_was_called() } else { self.lead_acts() }
    }

    /// A thread of the program has called the lane: it writes, and wakes the reactor only if the engine says so.
    fn lead_was_called(&mut self) {
        self.lead_writes();
        if self.lead.stalled {
            return;
        }
        if self.lead.engine.take_wake() {
            return self.lead_acts();
        }
        let Some(timeout) = self.lead.engine.next_timeout().filter(|_| !self.lead.is_acting) else { return };
        let due = self.now + self.until(timeout);
        if self.lead.timer.is_none_or(|timer| due < timer) {
            self.breach(format!("the reactor is not woken for a timeout at {due} us"));
        }
    }

    pub(super) fn lead_goes_on_closing(&mut self) {
        let now = self.instant();
        self.lead.engine.go_on_closing(now);
        self.lead_was_called();
    }

    pub(super) fn lead_timer(&mut self) {
        self.lead.timer = None;
        self.tell_lead(Event::Timer);
    }

    pub(super) fn lead_hears_end(&mut self, host: usize) {
        self.hosts[host].is_reaped = true;
        self.tell_lead(Event::Ended(host, Some(self.hosts[host].status)));
    }

    /// A frame goes to all members.
    pub(super) fn lead_sends(&mut self, frame: &Arc<Frame>) {
        let now = self.instant();
        // Kept until all hosts have the frame, as the session does.
        let pieces = frame.pieces();
        let size = match &pieces {
            Ok(Some(pieces)) => Ok(pieces.frame_len()),
            _ => frame.bytes().map(<[u8]>::len),
        };
        let size = match size {
            Ok(size) => size,
            Err(error) => return self.breach(format!("a frame does not go: {error}")),
        };
        self.lead.engine.note(frame.command());
        let is_inline = self.plan.has_ring && size <= INLINE;
        let sent = match (self.plan.has_ring, pack(frame)) {
            (true, _) if is_inline => Ok(()),
            (true, Ok(Some(load))) => {
                self.lead.engine.post(&load, Whom::All);
                Ok(())
            }
            _ => self.lead.engine.submit(frame, now),
        };
        if let Err(error) = sent {
            self.breach(format!("a frame does not go: {error}"));
        }
        if !is_inline {
            self.lead.posted = (self.lead.posted.0 + 1, self.lead.posted.1 + size as u64);
            self.lead.posted_small += if size > INLINE { 0 } else { size as u64 };
        }
        if self.plan.has_ring {
            self.lead.ring.written += 1;
            let frame = is_inline.then(|| frame.clone());
            for host in 0..self.hosts.len() {
                let ring = &mut self.hosts[host].ring;
                ring.push_back(frame.clone());
                if ring.len() == 1 {
                    let delay = self.random.of(1..50);
                    self.at(delay, What::Woken(host));
                }
            }
        }
        self.lead_was_called();
    }

    fn lead_writes(&mut self) {
        while let Some(write) = self.lead.engine.next_write() {
            let Some(link) = self.lead.conns.get(&write.conn).copied() else { continue };
            let bytes = match &write.pieces {
                None => write.bytes,
                Some(pieces) => match packet(pieces) {
                    Ok(packet) => packet.into(),
                    Err(error) => return self.breach(format!("a tensor can't be read: {error}")),
                },
            };
            if !self.write(link, Side::Member, &bytes, write.order) {
                let (now, unread) = (self.instant(), self.links[link].backlog(Side::Member));
                if let Some(host) = self.hosts.get_mut(self.links[link].host) {
                    host.is_harmed = true;
                }
                self.lead.engine.handle(Event::Full(write.conn, unread), now);
            }
        }
    }

    /// Does what the engine wants, as the reactor thread.
    pub(super) fn lead_acts(&mut self) {
        self.lead.is_acting = true;
        loop {
            self.lead_writes();
            match self.lead.engine.next_action() {
                Some(action) => self.lead_does(action),
                None => break,
            }
        }
        let answers = std::mem::take(&mut *self.lead.answers.lock().expect("one thread"));
        for (conn, id, result) in answers {
            self.lead_answers(conn, id, result);
        }
        // The reactor looks for timeouts by itself.
        self.lead.engine.take_wake();
        // As the lane does once it is closed.
        if self.lead.engine.stuck().is_some() && !self.lead.is_dropped {
            return self.tell_lead(Event::Dropped);
        }
        self.lead.is_acting = false;
        if let Some(timeout) = self.lead.engine.next_timeout() {
            let after = self.until(timeout);
            let at = self.now + after;
            if self.lead.timer.is_none_or(|timer| at < timer) {
                self.lead.timer = Some(at);
                self.at(after, What::Timer(None));
            }
        }
    }

    fn lead_does(&mut self, action: Action) {
        match action {
            Action::Listen(conn, _) => _ = self.lead.listens.insert(conn),
            Action::Close(conn) => {
                if let Some(link) = self.lead.conns.remove(&conn) {
                    self.lead.listens.remove(&conn);
                    self.close_link(link, Side::Controller, true);
                }
            }
            Action::Flush => (0..self.links.len()).for_each(|link| self.pump(link, Side::Member)),
            Action::StopAccepting => self.lead.accepts = false,
            Action::Output { from, line, .. } => self.output(from, &line),
            Action::Retire(host) => self.lead.ring.readers.iter_mut().skip(host).take(1).for_each(|it| *it = None),
            Action::Kill(host) => {
                self.show(|| format!("host {host} is killed"));
                self.hosts[host].frozen = false;
                self.kill(host);
            }
            Action::Started(result) => self.started(result),
            Action::Reply { worker, seq, reply } => self.reply(worker, seq, &reply),
            Action::Notice { worker, notice } => self.notice(worker, notice),
            Action::Room => self.has_room(),
            Action::Left(workers) => self.left(workers),
            Action::Lost(workers, why) => self.lost(workers, &why),
            Action::Ask { conn, id, epoch, call } => {
                let answers = self.lead.answers.clone();
                let tell = move |result| answers.lock().expect("one thread").push((conn, id, result));
                self.lead.store.call(epoch, call, Box::new(tell));
            }
            Action::Over => {
                self.show(|| "the lane is over".to_owned());
                if std::mem::replace(&mut self.lead.is_over, true) {
                    self.breach("the lane is over twice");
                }
                self.check_over();
            }
            _ => {}
        }
    }

    fn lead_answers(&mut self, conn: Conn, id: u64, result: Result<Value>) {
        let Some(link) = self.lead.conns.get(&conn).copied() else { return };
        match (Message::Answer { id, result }).encode() {
            Ok(packet) => _ = self.write(link, Side::Member, &packet.into(), Order::Urgent),
            Err(error) => self.breach(format!("an answer can't be sent: {error}")),
        }
    }

    /// Something arrives at the controller.
    pub(super) fn lead_receives(&mut self, link: usize, what: Arrival) {
        let conn = self.links[link].conn;
        if !self.lead.conns.contains_key(&conn) {
            return;
        }
        match what {
            Arrival::Part => self.tell_lead(Event::Heard(conn)),
            Arrival::End => self.tell_lead(Event::Hung(conn, None)),
            Arrival::Bytes(bytes) if !self.lead.listens.contains(&conn) => {
                self.tell_lead(Event::Bytes(conn, bytes.to_vec()));
            }
            Arrival::Bytes(bytes) => {
                for message in messages(&bytes) {
                    match message {
                        Ok(message) => {
                            self.show(|| format!("controller hears of {}: {message}", self.links[link].host));
                            self.tell_lead(Event::Message(conn, message));
                        }
                        Err(error) => self.tell_lead(Event::Garbage(conn, error)),
                    }
                }
            }
        }
    }
}
