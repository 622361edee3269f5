//! Admission of nodes. A node is admitted if it proves that it has the session's token, has the same worker functions,
//! and asks for a free place. Once the session has started, no node is admitted any more; nodes stand by, and take the places
//! of lost ones in other lanes ([`standby`](super::standby)). At any time, a client with the token may ask for the status of
//! the session.
//!
//! The session's controller admits all nodes. Once all have joined, it grows the tree, and has those listen that will
//! relay for others. It then keeps its own children; each other node is sent to its parent, which admits its children in
//! the same way, in the places that the controller has chosen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use disco_core::Error;
use disco_core::wire::{Message, Times};

use super::applicant::Applicant;
use super::pending::Pending;
use super::refused::{Refused, Standing};
use super::standby::{MissingOwner, Standby, Vacancy};
use super::terms::NodeTerms;
use crate::Liveness;
use crate::controller::event::{Action, Conn, Order};
use crate::controller::outbox::Outbox;
use crate::handshake::{
    ALIVE_INTERVAL, ANSWER_BYTES, ControllerHandshake, HANDSHAKE_TIMEOUT, Judgement, MAX_INTRODUCTION_BYTES, Nonce,
    Request, may_begin,
};

/// Delay after the system has failed to accept a connection.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Pending connections that are closed then, to free descriptors.
const EVICTED_ON_FAILURE: usize = 64;
/// Connections after which a session that has started accepts none for [`ACCEPT_RETRY_DELAY`]: handshakes must not take
/// the reactor thread's time from the session.
const MAX_VISITORS_AT_ONCE: u32 = 10;

/// Connections that may be nodes, and nodes that wait for other nodes to join.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(in crate::controller) terms: NodeTerms,
    pending: Pending<Candidate>,
    pub(super) joined: BTreeMap<Conn, Applicant>,
    /// `None` if no node may stand by.
    pub(super) standby: Option<Standby>,
    missing: MissingOwner,
    /// When the nodes that have joined or stand by get a heartbeat, and are checked for silence.
    beat: Option<Instant>,
    refused: Refused,
    /// When the system failed to accept a connection.
    paused: Option<Instant>,
    /// Since when all nodes have joined, or all relays listen, so that places may be assigned. That is done at the next
    /// timer, after all connections were read once more: a node may have left already.
    complete_since: Option<Instant>,
    /// All nodes have their places.
    has_started: bool,
    /// Connections since the last pause after the start.
    visitors: u32,
}

/// A connection that may be a node's.
#[derive(Debug)]
struct Candidate {
    address: SocketAddr,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// It has to prove that it has the token.
    Proof { host: ControllerHandshake, answer: Vec<u8> },
    /// It has the token, and has to send JOIN or ASK_STATUS.
    Introduction(Request),
    /// It is sent the status, and has to close the connection.
    Answered,
}

impl Nodes {
    pub(crate) fn new(terms: NodeTerms) -> Self {
        let (pending, refused) = (Pending::new(), Refused::new(terms.report));
        let (joined, beat, paused, complete_since) = (BTreeMap::new(), None, None, None);
        let (standby, missing) = (terms.has_standby.then(Standby::default), MissingOwner(terms.missing.clone()));
        let (has_started, visitors) = (false, 0);
        let nodes = Self {
            terms,
            pending,
            joined,
            standby,
            missing,
            beat,
            refused,
            paused,
            complete_since,
            has_started,
            visitors,
        };
        nodes.note_missing();
        nodes
    }

    pub(crate) fn open(&mut self, conn: Conn, address: SocketAddr, nonce: Nonce, now: Instant, out: &mut Outbox) {
        if self.pending.count(|_| true) >= self.terms.max_pending {
            self.evict_oldest(out);
        }
        if self.pending.count(|_| true) >= self.terms.max_pending {
            tracing::debug!(%address, "closed, since too many connections are pending");
            return out.act(Action::Close(conn));
        }
        if self.has_started {
            self.visitors += 1;
            if self.visitors == MAX_VISITORS_AT_ONCE {
                (self.visitors, self.paused) = (0, Some(now));
            }
        }
        let host = ControllerHandshake::new(nonce);
        out.write(conn, &host.greeting()[..], Order::Urgent);
        self.pending.push(conn, now, Candidate { address, phase: Phase::Proof { host, answer: Vec::new() } });
    }

    /// Handles a failure to accept, which may be for want of descriptors: closes the oldest pending connections.
    pub(crate) fn pause(&mut self, why: io::Error, now: Instant, out: &mut Outbox) {
        self.paused = Some(now);
        (0..EVICTED_ON_FAILURE).for_each(|_| self.evict_oldest(out));
        let error = Error::system("the lane can't accept connections", why);
        self.refuse("the system", &error, Standing::Proved, now);
    }

    /// Whether connections are to be accepted.
    pub(crate) fn accepts(&self) -> bool {
        self.paused.is_none()
    }

    pub(crate) fn bytes(&mut self, conn: Conn, bytes: &[u8], now: Instant, out: &mut Outbox) {
        let Some(Candidate { address, phase: Phase::Proof { host, answer } }) = self.pending.find(conn) else { return };
        let address = *address;
        answer.extend_from_slice(bytes);
        if !may_begin(answer) {
            let error = Error::protocol("it does not speak the Disco protocol");
            return self.reject(conn, address, &error, Standing::Unidentified, now, out);
        }
        let Ok(answer) = <&[u8; ANSWER_BYTES]>::try_from(&answer[..]) else { return };
        let Judgement { admitted, verdict } = host.judge(&self.terms.secret, &self.terms.world, answer);
        let standing = if verdict.is_some() { Standing::Unproved } else { Standing::Unidentified };
        if let Some(verdict) = verdict {
            out.write(conn, &verdict[..], Order::Urgent);
        }
        match admitted {
            Err(error) => self.reject(conn, address, &error, standing, now, out),
            Ok((request, keys)) => {
                self.pending.find(conn).into_iter().for_each(|it| it.phase = Phase::Introduction(request));
                if let Some(keys) = keys {
                    out.act(Action::Encrypt(conn, keys));
                }
                out.act(Action::Listen(conn, MAX_INTRODUCTION_BYTES));
            }
        }
    }

    /// Handles a message.
    pub(crate) fn message(&mut self, conn: Conn, message: Message, now: Instant, out: &mut Outbox) {
        if let Some(joined) = self.joined.get_mut(&conn) {
            match message {
                Message::Alive(_) => joined.liveness.received(now),
                Message::Listens(addresses) if joined.is_asked => {
                    joined.liveness.received(now);
                    joined.listens = Some(addresses);
                    self.complete_since = self.is_complete().then_some(now);
                }
                Message::Bye(why) => {
                    let name = format!("{} at {}", joined.join.name, joined.address);
                    self.refused.add(&name, &Error::refused(why), Standing::Proved, now);
                    self.forget(conn, out);
                }
                // The node may join again.
                _ => self.forget(conn, out),
            }
            return;
        }
        if let Some(spare) = self.standby.as_mut().and_then(|standby| standby.find(conn)) {
            match message {
                Message::Alive(_) => spare.liveness.received(now),
                _ => self.forget(conn, out),
            }
            return;
        }
        match (message, self.pending.find(conn)) {
            (Message::Join(join), Some(Candidate { address, phase: Phase::Introduction(request) })) => {
                let (address, request) = (*address, *request);
                self.pending.remove(conn);
                let liveness = Liveness::new(ALIVE_INTERVAL / 2, self.terms.silence.max(ALIVE_INTERVAL * 5), now);
                let (is_asked, listens) = (false, None);
                self.take(Applicant { conn, join, address, is_asked, listens, request, liveness }, now, out);
                self.complete_since = self.is_complete().then_some(now);
            }
            (Message::AskStatus, Some(candidate @ Candidate { phase: Phase::Introduction(_), .. })) => {
                tracing::debug!(address = %candidate.address, "asks for the status");
                candidate.phase = Phase::Answered;
                out.act(Action::SendStatus(conn));
            }
            (message, Some(candidate)) => {
                let (address, error) =
                    (candidate.address, Error::protocol(format!("it sent {message} instead of JOIN")));
                self.reject(conn, address, &error, Standing::Proved, now, out);
            }
            (_, None) => {}
        }
    }

    /// Drops a connection that has failed.
    pub(crate) fn lose(&mut self, conn: Conn, why: &Error, now: Instant, out: &mut Outbox) {
        match self.pending.find(conn) {
            Some(Candidate { phase: Phase::Answered, .. }) => {
                self.pending.remove(conn);
                out.act(Action::Close(conn));
            }
            Some(Candidate { address, phase }) => {
                let (address, standing) = (*address, phase.standing());
                self.reject(conn, address, why, standing, now, out);
            }
            None => self.forget(conn, out),
        }
    }

    /// Handles timeouts and heartbeats. Returns whether all nodes have joined, so that the tree may [grow](Self::grow).
    pub(crate) fn on_timer(&mut self, now: Instant, out: &mut Outbox) -> bool {
        self.paused = self.paused.filter(|paused| now.saturating_duration_since(*paused) < ACCEPT_RETRY_DELAY);
        while let Some((conn, Candidate { address, phase })) = self.pending.expire(now) {
            let error = Error::refused(format!("it did not complete the handshake within {HANDSHAKE_TIMEOUT:?}"));
            out.act(Action::Close(conn));
            if let Phase::Answered = phase {
                continue;
            }
            self.refuse(&address.to_string(), &error, phase.standing(), now);
        }
        if self.beat.is_some_and(|beat| now >= beat) {
            self.beat = now.checked_add(ALIVE_INTERVAL / 2);
            self.retain(out, |joined| joined.liveness.is_silent(now).is_none());
            self.joined.keys().for_each(|conn| out.send(*conn, &Message::Alive(Times::default())));
            self.standby.iter_mut().for_each(|standby| standby.beat(now, out));
        }
        self.complete_since.take_if(|since| now >= *since).is_some() && self.is_complete()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.joined.len() == self.terms.count()
    }

    /// Restarts the silence timeouts: this end could not read until now.
    pub(crate) fn excuse(&mut self, now: Instant) {
        self.joined.values_mut().for_each(|joined| joined.liveness.excuse(now));
        self.standby.iter_mut().for_each(|standby| standby.excuse(now));
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let beat = self.beat.filter(|_| !self.joined.is_empty() || self.spares().next().is_some());
        let paused = self.paused.and_then(|paused| paused.checked_add(ACCEPT_RETRY_DELAY));
        beat.into_iter().chain(self.pending.next_timeout()).chain(paused).chain(self.complete_since).min()
    }

    /// All nodes have their places: from now on, connections may only ask for the status, and only if the terms permit
    /// connections after the start.
    pub(crate) fn start(mut self, out: &mut Outbox) -> Option<Self> {
        if self.terms.stays_open {
            self.has_started = true;
            self.missing.0.set(0);
            return Some(self);
        }
        self.end(None, out);
        None
    }

    /// Whether all nodes have their places.
    pub(crate) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Ends admission. Nodes that have joined are told `why`.
    pub(crate) fn end(mut self, why: Option<&Error>, out: &mut Outbox) {
        self.pending.drain().for_each(|conn| out.act(Action::Close(conn)));
        for conn in self.joined.into_keys() {
            match why {
                Some(why) => out.refuse(conn, why),
                None => out.act(Action::Close(conn)),
            }
        }
        self.standby.into_iter().for_each(|standby| standby.end(out));
    }

    /// Whether the lane stays after the loss of all its nodes.
    pub(crate) fn stays(&self) -> bool {
        self.has_started && self.standby.is_some()
    }

    /// The nodes that stand by.
    pub(crate) fn spares(&self) -> impl Iterator<Item = &Applicant> {
        self.standby.iter().flat_map(Standby::spares)
    }

    /// Sends nodes that stand by to another lane, which waits for nodes. Returns their number.
    pub(crate) fn vacate(&mut self, vacancy: Vacancy, now: Instant, out: &mut Outbox) -> usize {
        self.standby.as_mut().map_or(0, |standby| standby.vacate(vacancy, now, out))
    }

    fn note_missing(&self) {
        self.missing.0.set(self.terms.count().saturating_sub(self.joined.len()));
    }

    /// The connections that were refused, with the reasons, if there are any.
    pub(crate) fn refusals(&self) -> Option<&impl Display> {
        Some(&self.refused).filter(|refused| !refused.is_empty())
    }

    /// Describes the nodes that have not joined, and the connections that were refused.
    pub(crate) fn missing(&self) -> String {
        let taken: BTreeSet<u32> = self.joined.values().filter_map(|joined| joined.request.node).collect();
        let free: Vec<String> = self
            .terms
            .numbers()
            .filter(|number| !taken.contains(number))
            .map(|number| self.terms.name(number, None))
            .collect();
        let missing = self.terms.count().saturating_sub(self.joined.len());
        let deaf = self.joined.values().filter(|joined| joined.is_asked && joined.listens.is_none());
        let deaf: Vec<&str> = deaf.map(|joined| joined.join.name.as_str()).collect();
        let mut text = match missing == free.len() {
            _ if missing == 0 => format!("nodes that are to relay for others do not listen: {}", deaf.join(", ")),
            true => format!("{} did not join", free.join(", ")),
            // Some of the joined nodes did not ask for a number.
            false => format!("{missing} of {} did not join", free.join(", ")),
        };
        if let Some(refused) = self.refusals() {
            text += &format!("; refused: {refused}");
        }
        text
    }

    /// Admits a node that has sent JOIN, or refuses it.
    fn take(&mut self, joined: Applicant, now: Instant, out: &mut Outbox) {
        let name = format!("{} at {}", joined.join.name, joined.address);
        let is_spare = joined.join.is_spare;
        // A node that comes late may take the place of a lost one.
        let stands_by = is_spare || self.has_started;
        if stands_by && !is_spare && !self.standby.as_mut().is_some_and(|it| it.wants(joined.request.node, now)) {
            tracing::debug!(node = name, "came after the start");
            out.send_as(joined.conn, &Message::Late, Order::Last);
            return out.act(Action::Close(joined.conn));
        }
        let checked = if stands_by {
            self.compare(&joined).and_then(|()| self.check_standby())
        } else {
            self.check(&joined, now, out)
        };
        match checked {
            Ok(()) if stands_by => {
                tracing::info!(node = name, "stands by");
                self.beat = self.beat.or(now.checked_add(ALIVE_INTERVAL / 2));
                if let Some(standby) = &mut self.standby {
                    standby.add(joined, now, out);
                }
            }
            Err(error) => {
                out.refuse(joined.conn, &error);
                self.refuse(&name, &error, Standing::Proved, now);
            }
            Ok(()) => {
                tracing::info!(node = name, "joined");
                self.beat = self.beat.or(now.checked_add(ALIVE_INTERVAL / 2));
                self.joined.insert(joined.conn, joined);
                self.note_missing();
            }
        }
    }

    /// Closes the oldest connection without a proof: nodes send theirs at once, so it is the least likely to be a
    /// node's.
    fn evict_oldest(&mut self, out: &mut Outbox) {
        if let Some((conn, _)) = self.pending.take_oldest(|it| it.phase.standing() == Standing::Unidentified) {
            out.act(Action::Close(conn));
        }
    }

    fn reject(
        &mut self,
        conn: Conn,
        address: SocketAddr,
        error: &Error,
        standing: Standing,
        now: Instant,
        out: &mut Outbox,
    ) {
        self.pending.remove(conn);
        out.act(Action::Close(conn));
        self.refuse(&address.to_string(), error, standing, now);
    }

    /// Records a refused connection. After the start, nodes of a later session may try to join again and again.
    fn refuse(&mut self, name: &str, error: &Error, standing: Standing, now: Instant) {
        if self.has_started && standing == Standing::Proved {
            tracing::debug!(from = name, %error, "a connection was refused")
        } else {
            self.refused.add(name, error, standing, now)
        }
    }

    fn forget(&mut self, conn: Conn, out: &mut Outbox) {
        if self.standby.as_mut().is_some_and(|standby| standby.forget(conn, out)) {
            return;
        }
        self.retain(out, |joined| joined.conn != conn);
    }

    pub(super) fn retain(&mut self, out: &mut Outbox, stays: impl Fn(&Applicant) -> bool) {
        self.joined.retain(|_, joined| {
            let stays = stays(joined);
            if !stays {
                out.act(Action::Close(joined.conn));
            }
            stays
        });
        self.note_missing();
    }
}

impl Phase {
    fn standing(&self) -> Standing {
        match self {
            Phase::Proof { .. } => Standing::Unidentified,
            Phase::Introduction(_) | Phase::Answered => Standing::Proved,
        }
    }
}
