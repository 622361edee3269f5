//! Nodes that stand by after the start, and the lanes to which they are sent: each waits for nodes in the places of lost ones.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use disco_core::channel::Signal;
use disco_core::status::{ConnectionStatus, SpareStatus};
use disco_core::wire::{Message, Times};

use super::applicant::Applicant;
use crate::controller::event::{Action, Conn, Order};
use crate::controller::outbox::Outbox;
use crate::handshake::HANDSHAKE_TIMEOUT;

/// Nodes that stand by, and places for them.
#[derive(Debug, Default)]
pub(super) struct Standby {
    spares: BTreeMap<Conn, Applicant>,
    vacancies: Vec<Vacancy>,
}

/// A lane that waits for nodes in the places of lost ones.
#[derive(Debug)]
pub struct Vacancy {
    /// The numbers of the nodes.
    nodes: Range<u32>,
    /// Where the lane listens, each as `HOST:PORT`.
    addresses: Vec<String>,
    missing: Missing,
    /// How many nodes had joined when this end looked last.
    joined: usize,
    /// When nodes were sent there that have not joined yet.
    sent: VecDeque<Instant>,
}

/// The number of nodes that a lane waits for, which other lanes read; 0 once the lane has all of them, or ends.
#[derive(Clone, Debug, Default)]
pub struct Missing(Arc<AtomicUsize>);

/// The owner of the number sets it to 0 when it ends.
#[derive(Debug)]
pub(super) struct MissingOwner(pub(super) Missing);

impl Missing {
    pub(crate) fn set(&self, nodes: usize) {
        self.0.store(nodes, Ordering::Release);
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for MissingOwner {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

impl Vacancy {
    /// The lane that listens at `addresses` waits for the nodes with these numbers.
    pub fn new(nodes: Range<u32>, addresses: Vec<String>, missing: Missing) -> Self {
        Self { nodes, addresses, missing, joined: 0, sent: VecDeque::new() }
    }

    /// Whether a node that asks for `number` is to be sent there. One that was sent and does not join is given up after the
    /// time of a handshake.
    fn wants(&mut self, number: Option<u32>, now: Instant) -> bool {
        let joined = self.nodes.len().saturating_sub(self.missing.count());
        let new = joined.saturating_sub(std::mem::replace(&mut self.joined, joined));
        self.sent.drain(..new.min(self.sent.len()));
        self.sent.retain(|sent| now.saturating_duration_since(*sent) < HANDSHAKE_TIMEOUT);
        joined + self.sent.len() < self.nodes.len() && number.is_none_or(|number| self.nodes.contains(&number))
    }

    /// Sends a node there.
    fn send(&mut self, conn: Conn, now: Instant, out: &mut Outbox) {
        self.sent.push_back(now);
        let (addresses, start) = (self.addresses.clone(), HANDSHAKE_TIMEOUT);
        out.send_as(conn, &Message::Redirect { node: 0, addresses, start }, Order::Last);
        out.act(Action::Close(conn));
    }
}

impl Standby {
    /// The nodes that stand by.
    pub(super) fn spares(&self) -> impl Iterator<Item = &Applicant> {
        self.spares.values()
    }

    pub(super) fn len(&self) -> usize {
        self.spares.len()
    }

    /// Finds a node that stands by.
    pub(super) fn find(&mut self, conn: Conn) -> Option<&mut Applicant> {
        self.spares.get_mut(&conn)
    }

    /// Forgets a node that stands by. Returns whether there was one.
    pub(super) fn forget(&mut self, conn: Conn, out: &mut Outbox) -> bool {
        let is_there = self.spares.remove(&conn).is_some();
        if is_there {
            out.act(Action::Close(conn));
        }
        is_there
    }

    /// A node stands by from now on, unless it is sent to a lane at once.
    pub(super) fn add(&mut self, spare: Applicant, now: Instant, out: &mut Outbox) {
        self.spares.insert(spare.conn, spare);
        self.fill(now, out);
    }

    /// Whether a lane waits for a node that asks for `number`.
    pub(super) fn wants(&mut self, number: Option<u32>, now: Instant) -> bool {
        self.vacancies.iter_mut().any(|vacancy| vacancy.wants(number, now))
    }

    /// Sends nodes that stand by to a lane. Nodes that come later follow while it waits. Returns the number of those sent now.
    pub(super) fn vacate(&mut self, vacancy: Vacancy, now: Instant, out: &mut Outbox) -> usize {
        let before = self.spares.len();
        self.vacancies.push(vacancy);
        self.fill(now, out);
        before - self.spares.len()
    }

    /// Sends nodes that stand by to lanes that wait for them.
    fn fill(&mut self, now: Instant, out: &mut Outbox) {
        self.vacancies.retain(|vacancy| vacancy.missing.count() > 0);
        for vacancy in &mut self.vacancies {
            let spares: Vec<_> = self.spares.values().map(|spare| (spare.conn, spare.request.node)).collect();
            for (conn, number) in spares {
                if vacancy.wants(number, now) {
                    self.spares.remove(&conn);
                    vacancy.send(conn, now, out);
                }
            }
        }
    }

    /// Sends heartbeats, and closes the connections of silent nodes.
    pub(super) fn beat(&mut self, now: Instant, out: &mut Outbox) {
        let silent = self.spares.values().filter(|spare| spare.liveness.is_silent(now).is_some());
        let silent: Vec<Conn> = silent.map(|spare| spare.conn).collect();
        silent.into_iter().for_each(|conn| _ = self.forget(conn, out));
        self.spares.keys().for_each(|conn| out.send(*conn, &Message::Alive(Times::default())));
        self.fill(now, out);
    }

    /// Restarts the silence timeouts.
    pub(super) fn excuse(&mut self, now: Instant) {
        self.spares.values_mut().for_each(|spare| spare.liveness.excuse(now));
    }

    /// The session ends: nodes that stand by are told to leave.
    pub(super) fn end(self, out: &mut Outbox) {
        for conn in self.spares.into_keys() {
            out.send_as(conn, &Message::Signal(Signal::Shutdown), Order::Last);
            out.act(Action::Close(conn));
        }
    }
}

impl Applicant {
    pub(in crate::controller) fn describe(&self, now: Instant) -> SpareStatus {
        let mut connection = ConnectionStatus::default();
        connection.silence = self.liveness.silence(now);
        SpareStatus::node(self.join.name.clone(), connection)
    }
}
