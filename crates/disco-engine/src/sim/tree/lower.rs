//! The side of an end to its children: the controller's engine. At end 0 it is the session's, elsewhere a node's.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::wire::{Assignment, Message};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Result, Value, WorkerId, WorkerRange, World as Size};

use super::super::terms::{assignment, messages, node_terms};
use super::world::{To, World};
use crate::controller::{Action, Conn, Controller, Event, Origin, Terms, Tree};
use crate::member::{serving, upward};
use crate::tree::Forest;

/// Connections that are accepted before earlier ones are admitted, as a reactor that serves them in turn would.
const MAX_ENTERING: usize = 64;
/// Time for the start; long if times are measured, so that a start of many nodes is not aborted.
const START: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(300)];

/// The session's engine.
pub(super) fn controller(nodes: usize, per_node: u32, fan_out: usize, is_measured: bool, now: Instant) -> Controller {
    let world = Size::new(nodes * per_node as usize, 1).expect("a world");
    let tree = Tree::Any { first: 1, nodes, fan_out };
    let workers = WorkerRange::new(0..nodes as u32 * per_node);
    let assignment = assignment(WorkerConfig::new(world), workers, START[usize::from(is_measured)]);
    Controller::new(Terms::Nodes(node_terms(tree, world, per_node as usize), assignment), now)
}

/// The engine of a node for its children, if it has any.
///
/// # Errors
/// The assignment is contradictory.
pub(super) fn children(assignment: &Assignment, own: WorkerRange, now: Instant) -> Result<Option<Controller>> {
    if assignment.behind.is_empty() {
        return Ok(None);
    }
    let forest = Forest::new(assignment.behind.clone())?;
    let workers = assignment.workers.part(own.len(), assignment.workers.len());
    let tree = Tree::Fixed { parent: assignment.node, forest };
    let terms = node_terms(tree, assignment.config.world, own.len());
    Ok(Some(Controller::new(Terms::Nodes(terms, Assignment { workers, ..assignment.clone() }), now)))
}

impl World {
    /// Accepts waiting connections.
    pub(super) fn accept(&mut self, end: usize) {
        while let Some(lower) = &mut self.ends[end].lower
            && lower.entering.len() < MAX_ENTERING
            && let Some(link) = lower.backlog.pop_front()
        {
            let conn = Conn { slot: link as u32, generation: 1 };
            lower.conns.insert(conn, link);
            lower.entering.insert(conn);
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 10_000 + (link % 50_000) as u16));
            let mut nonce = [0; 32];
            nonce[..8].copy_from_slice(&self.events.random.next().to_le_bytes());
            self.lower(end, Event::Opened(conn, Origin::Tcp { address, nonce }));
        }
    }

    /// Handles bytes of a child.
    pub(super) fn lower_receives(&mut self, end: usize, link: usize, bytes: &Arc<[u8]>) {
        let conn = Conn { slot: link as u32, generation: 1 };
        let Some(lower) = &self.ends[end].lower else { return };
        if !lower.conns.contains_key(&conn) {
            return;
        }
        if !lower.listens.contains(&conn) {
            return self.lower(end, Event::Bytes(conn, bytes.to_vec()));
        }
        let all = self.measure(|_| messages(bytes).collect::<Vec<_>>());
        for message in all {
            match message {
                Ok(message) => self.lower(end, Event::Message(conn, message)),
                Err(error) => self.record_violation(format!("end {end} can't decode a message: {error}")),
            }
        }
        if let Some(lower) = &mut self.ends[end].lower
            && lower.entering.remove(&conn)
        {
            self.accept(end);
        }
    }

    /// A child has closed its link.
    pub(super) fn lower_is_cut(&mut self, end: usize, link: usize) {
        let conn = Conn { slot: link as u32, generation: 1 };
        if self.ends[end].lower.as_ref().is_some_and(|lower| lower.conns.contains_key(&conn)) {
            self.lower(end, Event::Hung(conn, None));
        }
    }

    /// Feeds an event to the engine.
    pub(super) fn lower(&mut self, end: usize, event: Event) {
        let now = self.instant();
        if self.ends[end].lower.is_none() {
            return;
        }
        self.measure(|world| {
            if let Some(lower) = &mut world.ends[end].lower {
                lower.engine.handle(event, now);
            }
        });
        self.lower_acts(end);
    }

    /// Carries out the engine's writes and actions.
    pub(super) fn lower_acts(&mut self, end: usize) {
        loop {
            while let Some(lower) = &mut self.ends[end].lower
                && let Some(write) = lower.engine.next_write()
            {
                if let Some(link) = lower.conns.get(&write.conn).copied() {
                    self.send(link, To::Child, Some(write.bytes));
                }
            }
            let Some(action) = self.ends[end].lower.as_mut().and_then(|lower| lower.engine.next_action()) else {
                break;
            };
            self.does(end, action);
        }
        let Some(lower) = &mut self.ends[end].lower else { return };
        // As after each turn of the reactor. A session of many nodes has many messages in one turn.
        let is_starting = lower.started.is_none();
        if lower.engine.take_wake() || is_starting || self.ends[end].timers[1].is_none() || !self.costs.are_measured {
            let timeout = self.ends[end].lower.as_ref().and_then(|lower| lower.engine.next_timeout());
            self.set_timer(end, true, timeout);
        }
        match end {
            0 => self.send_answers(),
            _ => self.tell_of_end(end),
        }
    }

    fn does(&mut self, end: usize, action: Action) {
        let Some(lower) = &mut self.ends[end].lower else { return };
        match action {
            Action::Listen(conn, _) => _ = lower.listens.insert(conn),
            Action::Close(conn) => {
                lower.listens.remove(&conn);
                lower.entering.remove(&conn);
                if let Some(link) = lower.conns.remove(&conn) {
                    self.send(link, To::Child, None);
                }
            }
            Action::Started(started) => {
                lower.started = Some(started.clone());
                if end > 0 {
                    self.upper(end, serving::Event::Started(started));
                }
            }
            Action::Replies { workers, seq } => self.gets(end, workers, seq),
            Action::Reply { worker, seq, reply: Err(_) } if end == 0 => self.controller_gets(worker.into(), seq),
            Action::Reply { worker, seq, reply: Err(failure) } => self.replies_failure(end, worker, seq, failure),
            Action::Notice { notice, .. } if end == 0 => self.controller_hears(notice),
            Action::Notice { worker, notice } => self.notices(end, worker, &notice),
            Action::CallStore { conn, id, epoch, call } => self.child_calls_store(end, (conn, id), epoch, call),
            Action::Reply { worker, seq, reply: Ok(Value::None) } => self.gets(end, worker.into(), seq),
            Action::Left(workers) if end == 0 => _ = self.left.insert(workers),
            Action::Left(workers) => self.leaves(end, workers),
            Action::Lost(_, why) if end == 0 => self.controller_loses(why),
            Action::Lost(workers, why) => {
                let split = self.ends[end].replies.split();
                let (lost, _) = upward::workers_lost(workers, &why);
                split.iter().chain(&lost).for_each(|message| self.say(end, message));
                self.abort(end, upward::abort_after_loss(self.ends[end].jobs.epoch, why, None));
            }
            Action::Over => lower.is_over = true,
            Action::Recording { worker, bytes } if end == 0 => _ = self.recordings.insert(worker, bytes),
            Action::Recording { worker, bytes } => self.records(end, worker, bytes),
            other @ Action::Reply { .. } => self.unexpected(end, &other),
            _ => {}
        }
    }

    /// Sends a recording up.
    pub(super) fn records(&mut self, end: usize, worker: WorkerId, bytes: Arc<[u8]>) {
        self.say(end, &upward::from(worker, Message::Recording(bytes)));
    }

    fn gets(&mut self, end: usize, workers: WorkerRange, seq: u64) {
        if end == 0 {
            return self.controller_gets(workers, seq);
        }
        self.replied(end, workers, seq);
    }
}

/// The error that a start has failed with, if it has.
pub(super) fn failure(started: Option<&Result<(), Error>>) -> Option<String> {
    started.and_then(|started| started.as_ref().err()).map(ToString::to_string)
}
