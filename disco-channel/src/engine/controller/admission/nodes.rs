//! Admission of nodes. A node is admitted if it proves that it has the session's token, has the same worker functions,
//! and asks for a free place. Once the session has started, no node is admitted any more. At any time, a client with the
//! token may ask for the status of the session.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use disco_core::wire::{Join, Message};
use disco_core::{Error, Result, World, function};

use super::pending::Pending;
use super::refused::{Refused, Standing};
use crate::engine::Liveness;
use crate::engine::controller::event::{Action, Conn, Order};
use crate::engine::controller::outbox::Outbox;
use crate::handshake::{
    ALIVE_INTERVAL, ANSWER_BYTES, ControllerHandshake, HANDSHAKE_TIMEOUT, Judgement, MAX_INTRODUCTION_BYTES, Nonce,
    Request, Secret, may_begin,
};

/// Delay after the system has failed to accept a connection.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Pending connections that are closed then, to free descriptors.
const EVICTED_ON_FAILURE: usize = 64;
/// Connections after which a session that has started accepts none for [`ACCEPT_RETRY_DELAY`]: handshakes must not take
/// the reactor thread's time from the session.
const MAX_VISITORS_AT_ONCE: u32 = 10;

/// The requirements for nodes.
#[derive(Debug)]
pub(crate) struct NodeTerms {
    /// The token that nodes and controller prove to each other, and whether connections are encrypted.
    pub(crate) secret: Secret,
    pub(crate) world: World,
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Names of nodes in messages; a node without a name is called by its number.
    pub(crate) names: Vec<String>,
    pub(crate) per_node: usize,
    /// Silence timeout of each end.
    pub(crate) silence: Duration,
    /// Maximum number of connections that have not joined.
    pub(crate) max_pending: usize,
    /// Whether connections are accepted after the start, too.
    pub(crate) stays_open: bool,
}

/// Connections that may be nodes, and nodes that wait for other nodes to join.
#[derive(Debug)]
pub(crate) struct Nodes {
    terms: NodeTerms,
    pending: Pending<Candidate>,
    joined: Vec<Joined>,
    refused: Refused,
    /// When the system failed to accept a connection.
    paused: Option<Instant>,
    /// When the last node joined. Places are assigned after all connections were read once more, since a node may have
    /// left already.
    complete: Option<Instant>,
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

/// A node that has introduced itself.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) conn: Conn,
    pub(crate) join: Join,
    address: SocketAddr,
    request: Request,
    liveness: Liveness,
}

impl Nodes {
    pub(crate) fn new(terms: NodeTerms) -> Self {
        let (pending, refused) = (Pending::new(), Refused::default());
        let (joined, paused, complete) = (Vec::new(), None, None);
        Self { terms, pending, joined, refused, paused, complete, has_started: false, visitors: 0 }
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
        if let Some(index) = self.joined.iter().position(|joined| joined.conn == conn) {
            match message {
                Message::Alive => self.joined[index].liveness.received(now),
                // The node may join again.
                _ => self.forget(conn, out),
            }
            return;
        }
        match (message, self.pending.find(conn)) {
            (Message::Join(join), Some(Candidate { address, phase: Phase::Introduction(request) })) => {
                let (address, request) = (*address, *request);
                self.pending.remove(conn);
                let liveness = Liveness::new(ALIVE_INTERVAL / 2, self.terms.silence.max(ALIVE_INTERVAL * 5), now);
                self.take(Joined { conn, join, address, request, liveness }, now, out);
                self.complete = self.is_complete().then_some(now);
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

    /// Handles timeouts and heartbeats. Returns the nodes in the order of their places once all have joined.
    pub(crate) fn on_timer(&mut self, now: Instant, out: &mut Outbox) -> Option<Vec<Joined>> {
        self.paused = self.paused.filter(|paused| now.saturating_duration_since(*paused) < ACCEPT_RETRY_DELAY);
        while let Some((conn, Candidate { address, phase })) = self.pending.expire(now) {
            let error = Error::refused(format!("it did not complete the handshake within {HANDSHAKE_TIMEOUT:?}"));
            out.act(Action::Close(conn));
            if let Phase::Answered = phase {
                continue;
            }
            self.refuse(&address.to_string(), &error, phase.standing(), now);
        }
        self.retain(out, |joined| joined.liveness.is_silent(now).is_none());
        for Joined { conn, liveness, .. } in &mut self.joined {
            if liveness.must_send(now) {
                liveness.sent(now);
                out.send(*conn, &Message::Alive);
            }
        }
        self.complete.take_if(|complete| now >= *complete)?;
        self.is_complete().then(|| self.places())
    }

    fn is_complete(&self) -> bool {
        self.joined.len() == self.terms.nodes
    }

    /// Restarts the silence timeouts: this end could not read until now.
    pub(crate) fn excuse(&mut self, now: Instant) {
        self.joined.iter_mut().for_each(|joined| joined.liveness.excuse(now));
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let joined = self.joined.iter().filter_map(|joined| joined.liveness.next_timeout());
        let paused = self.paused.and_then(|paused| paused.checked_add(ACCEPT_RETRY_DELAY));
        joined.chain(self.pending.next_timeout()).chain(paused).chain(self.complete).min()
    }

    /// All nodes have their places: from now on, connections may only ask for the status, and only if the terms permit
    /// connections after the start.
    pub(crate) fn start(mut self, out: &mut Outbox) -> Option<Self> {
        if self.terms.stays_open {
            self.has_started = true;
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
        for Joined { conn, .. } in self.joined {
            match why {
                Some(why) => out.refuse(conn, why),
                None => out.act(Action::Close(conn)),
            }
        }
    }

    /// Describes the nodes that have not joined, and the connections that were refused.
    pub(crate) fn missing(&self) -> String {
        let taken: Vec<u32> = self.joined.iter().filter_map(|joined| joined.request.node).collect();
        let free = (0..self.terms.nodes).filter(|index| !taken.contains(&(*index as u32 + 1)));
        let free: Vec<String> = free.map(|index| self.name(index, None)).collect();
        let missing = self.terms.nodes.saturating_sub(self.joined.len());
        let mut text = match missing == free.len() {
            true => format!("{} did not join", free.join(", ")),
            // Some of the joined nodes did not ask for a number.
            false => format!("{missing} of {} did not join", free.join(", ")),
        };
        if !self.refused.is_empty() {
            text += &format!("; refused: {}", self.refused);
        }
        text
    }

    /// The name of a node; `host` is the name that the node has sent with its JOIN.
    pub(crate) fn name(&self, index: usize, host: Option<&str>) -> String {
        match (self.terms.names.get(index), host) {
            (Some(name), _) => name.clone(),
            (None, Some(host)) => format!("node {} ({host})", index + 1),
            (None, None) => format!("node {}", index + 1),
        }
    }

    /// Admits a node that has sent JOIN, or refuses it.
    fn take(&mut self, joined: Joined, now: Instant, out: &mut Outbox) {
        let name = format!("{} at {}", joined.join.name, joined.address);
        if self.has_started {
            tracing::debug!(node = name, "came after the start");
            out.send_as(joined.conn, &Message::Late, Order::Last);
            return out.act(Action::Close(joined.conn));
        }
        match self.check(&joined, now, out) {
            Err(error) => {
                out.refuse(joined.conn, &error);
                self.refuse(&name, &error, Standing::Proved, now);
            }
            Ok(()) => {
                tracing::info!(node = name, "joined");
                self.joined.push(joined);
            }
        }
    }

    /// Compares a node with the terms of the session, and with the nodes that have joined.
    ///
    /// # Errors
    /// Why the node is refused.
    fn check(&mut self, joined: &Joined, now: Instant, out: &mut Outbox) -> Result<()> {
        let NodeTerms { per_node, nodes, .. } = self.terms;
        if let Some(theirs) = joined.request.per_node.filter(|theirs| *theirs as usize != per_node) {
            return Err(Error::refused(format!(
                "it was started with {theirs} workers, and nodes of this session have {per_node}"
            )));
        }
        function::compare(&joined.join.functions)?;
        if joined.request.node.is_some() {
            // A node that froze and joins again may take the place of its own silent connection.
            let is_other = |it: &Joined| it.request.node != joined.request.node;
            self.retain(out, |it| is_other(it) || it.liveness.silence(now) < ALIVE_INTERVAL * 2);
        }
        let taken = |id| self.joined.iter().find(|other| other.request.node == Some(id));
        let refused = match joined.request.node {
            Some(id) if !(1..=nodes as u32).contains(&id) => {
                Some(format!("nodes of this session are 1 to {nodes}, and it is {id}"))
            }
            _ if self.is_complete() => Some("all nodes have joined".to_owned()),
            Some(id) => taken(id).map(|other| format!("node {id} has joined already: {}", other.join.name)),
            None => None,
        };
        refused.map_or(Ok(()), |why| Err(Error::Refused(why)))
    }

    /// All nodes, each in its place. Nodes without a number get the free places in the order of their names, so that
    /// the order in which nodes join matters little.
    fn places(&mut self) -> Vec<Joined> {
        let mut joined = std::mem::take(&mut self.joined);
        joined.sort_by(|a, b| (&a.join.name, a.address).cmp(&(&b.join.name, b.address)));
        let (named, others): (Vec<_>, Vec<_>) = joined.into_iter().partition(|joined| joined.request.node.is_some());
        let mut places: Vec<Option<Joined>> = (0..self.terms.nodes).map(|_| None).collect();
        for joined in named {
            // `check` has verified the number.
            if let Some(place) = joined.request.node.and_then(|id| places.get_mut(id as usize - 1)) {
                *place = Some(joined);
            }
        }
        let mut others = others.into_iter();
        places.into_iter().filter_map(|place| place.or_else(|| others.next())).collect()
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
        match self.has_started && standing == Standing::Proved {
            true => tracing::debug!(from = name, %error, "a connection was refused"),
            false => self.refused.add(name, error, standing, now),
        }
    }

    fn forget(&mut self, conn: Conn, out: &mut Outbox) {
        self.retain(out, |joined| joined.conn != conn);
    }

    fn retain(&mut self, out: &mut Outbox, stays: impl Fn(&Joined) -> bool) {
        self.joined.retain(|joined| {
            let stays = stays(joined);
            if !stays {
                out.act(Action::Close(joined.conn));
            }
            stays
        });
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
