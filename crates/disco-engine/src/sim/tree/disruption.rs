//! Carries out disruptions, and records which losses they may cause.

use std::collections::BTreeSet;

use disco_core::error::{Loss, LostPeer};
use disco_core::{Error, WorkerId};

use super::super::phase::Phase;
use super::end::End;
use super::plan::Disruption;
use super::world::{Entry, Nanos, SECOND, To, World};
use crate::controller::Event;
use crate::member::upward;

/// Freezes that in total take this long can't cause a loss.
const HARMLESS: Nanos = 3 * SECOND;

/// The losses to expect.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// Nodes one of which has to be reported as lost, or behind a lost one.
    pub(super) must: BTreeSet<usize>,
    /// Nodes that may be reported as lost.
    pub(super) may: BTreeSet<usize>,
    /// Ends that were frozen, and the total time.
    frozen: (BTreeSet<usize>, Nanos),
    /// A disruption came before the session had started.
    pub(super) in_start: bool,
    /// The controller has died.
    pub(super) is_orphaned: bool,
    /// The disruptions that have happened.
    pub(super) count: usize,
}

impl World {
    pub(super) fn disrupt(&mut self, disruption: Disruption) {
        self.expected.count += 1;
        self.expected.in_start |= self.ends[0].lower.as_ref().is_some_and(|lower| lower.started.is_none());
        match disruption {
            Disruption::Kill(0) => {
                self.expected.is_orphaned = true;
                self.at(self.now, Entry::Kill(0));
            }
            Disruption::Kill(end) => {
                self.must_lose(end);
                self.at(self.now, Entry::Kill(end));
            }
            Disruption::Freeze(end, time) => self.freeze(end, time),
            Disruption::Reset(end) => {
                let Some(link) = self.live_link(end) else { return };
                self.must_lose(end);
                self.reset(link);
            }
            Disruption::HalfOpen(end) => self.cut(end, &[To::Child, To::Parent]),
            Disruption::OneWay(end, to) => self.cut(end, &[to]),
            Disruption::LoseWorker(end) => {
                if self.ends[end].is_serving() && !self.ends[end].is_dead {
                    self.must_lose(end);
                    self.turn(end, |world| world.lose_worker(end));
                }
            }
        }
    }

    fn must_lose(&mut self, end: usize) {
        if !self.ends[end].is_over() {
            self.expected.must.insert(end);
            self.expected.may.insert(end);
        }
    }

    fn freeze(&mut self, end: usize, time: Nanos) {
        let until = self.now + time;
        let this = &mut self.ends[end];
        this.frozen_until = this.frozen_until.max(until);
        let (ends, total) = &mut self.expected.frozen;
        ends.insert(end);
        *total += time;
        if *total > HARMLESS {
            // Its children may give up an end that is frozen, before it is given up itself.
            let ends = ends.clone();
            let is_near =
                |child: &usize| ends.contains(child) || self.parent(*child).is_some_and(|it| ends.contains(&it));
            let near: Vec<usize> = (1..self.ends.len()).filter(is_near).collect();
            self.expected.may.extend(near);
        }
    }

    /// Lets the network drop the bytes of a node's link in some directions.
    fn cut(&mut self, end: usize, directions: &[To]) {
        let Some(link) = self.live_link(end) else { return };
        match self.ends[end].phase {
            // It may be sent to its parent, to which it has another link.
            Phase::Joining(_) => _ = self.expected.may.insert(end),
            _ => self.must_lose(end),
        }
        match self.ends[end].phase {
            // A handshake has timeouts that are not simulated.
            Phase::Away | Phase::Proving(_) => self.reset(link),
            _ => directions.iter().for_each(|to| self.links[link].drops[*to as usize] = true),
        }
    }

    fn reset(&mut self, link: usize) {
        self.links[link].drops = [true; 2];
        self.links[link].is_open = [false; 2];
        [To::Child, To::Parent].into_iter().for_each(|to| self.at(self.now, Entry::Reset(link, to)));
    }

    /// The link of a node to its parent, while both ends use it.
    fn live_link(&self, end: usize) -> Option<usize> {
        let End { link, phase, is_dead, .. } = &self.ends[end];
        let link = link.filter(|_| !is_dead && !phase.is_done())?;
        self.links[link].is_open.iter().all(|is_open| *is_open).then_some(link)
    }

    /// The last parent of a node.
    pub(super) fn parent(&self, end: usize) -> Option<usize> {
        self.links.iter().rev().find(|link| link.child == end).map(|link| link.parent)
    }

    /// The node's own lane reports a worker as lost.
    fn lose_worker(&mut self, end: usize) {
        let split = self.ends[end].replies.split();
        let why = Error::invalid("its process ended");
        let (lost, _) = upward::workers_lost(self.ends[end].workers.first().into(), &why);
        split.iter().chain(&lost).for_each(|message| self.say(end, message));
        self.abort(end, upward::abort_after_loss(self.ends[end].jobs.epoch, why, None));
        self.upper_acts(end);
    }

    /// Checks that a reported loss names a disrupted node, and exactly its workers and those of the nodes behind it.
    pub(super) fn check_loss(&mut self, loss: &Loss) {
        let (per_node, may) = (self.per_node as usize, &self.expected.may);
        let is_right = match &loss.peer {
            LostPeer::Node { node, behind, workers } => {
                let number = node.number as usize;
                let (count, first) = (workers.len() / per_node, WorkerId::new((number as u32 - 1) * self.per_node));
                let is_whole = count == *behind as usize + 1 && workers.first() == first;
                may.contains(&number) && is_whole && node.name.contains("host")
            }
            LostPeer::Workers { workers, node: Some(node) } => {
                let number = node.number as usize;
                may.contains(&number) && workers.first().index() / per_node + 1 == number && node.name.contains("host")
            }
            _ => false,
        };
        // While the session starts, the end of a node also ends the remaining nodes.
        if !is_right && !self.expected.in_start {
            self.record_violation(format!("a wrong loss: {loss}; these nodes may be lost: {may:?}"));
        }
    }

    /// A link is reset, as one end of it learns.
    pub(super) fn is_reset(&mut self, link: usize, to: To) {
        match to {
            To::Child => self.upper_is_cut(self.links[link].child, link),
            To::Parent => self.lower_is_cut(self.links[link].parent, link),
        }
    }

    /// The session's last wait: ends that live have stopped their workers, or aborted them.
    pub(super) fn have_stopped(&self) -> bool {
        self.ends[1..].iter().all(|end| end.is_dead || end.stopped_at.is_some() || end.phase.is_done())
    }

    /// The session is lost at the controller: it aborts all workers.
    pub(super) fn lose_session(&mut self, why: &Error) {
        let abort = disco_core::channel::Signal::Abort { epoch: self.session.epoch, cause: why.to_string().into() };
        self.abort_from_controller(abort);
    }

    /// Sends an abort to all nodes, and ends calls of the store.
    pub(super) fn abort_from_controller(&mut self, abort: disco_core::channel::Signal) {
        if let disco_core::channel::Signal::Abort { epoch, cause } = &abort {
            use disco_core::store::SharedStore as _;
            self.session.store.memory.abort(*epoch, cause);
        }
        self.lower(0, Event::Signal(abort));
    }
}
