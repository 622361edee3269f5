//! A simulated host's connection, handshake and introduction.

use disco_core::Error;
use disco_core::wire::{Hello, Message};

use super::link::Side;
use super::phase::{self, Phase, Step};
use super::plan::Kind;
use super::terms::SECRET;
use super::world::{Micros, SECOND, What, World};
use crate::controller::Order;
use crate::handshake::Request;
use crate::member::joining::{Action, Joining};
use crate::member::serving::{Event, Member};
use crate::member::upward::Priority;

/// Timeout of the handshake.
pub(super) const PROOF_LIMIT: Micros = 5 * SECOND;
/// Timeout of a host's attempts to join.
const JOIN_LIMIT: Micros = 40 * SECOND;

impl World {
    /// Connects the host to the controller.
    pub(super) fn connect(&mut self, index: usize) {
        if self.hosts[index].is_done() || self.hosts[index].link.is_some() {
            return;
        }
        let Some(link) = self.open(index) else {
            // The controller does not listen: the host retries until its timeout.
            if self.now > JOIN_LIMIT || self.controller.is_over {
                self.hosts[index].end(Err(Error::invalid("nothing listens")));
                return;
            }
            return self.at(50_000, What::Connect(index));
        };
        (self.hosts[index].link, self.hosts[index].connected) = (Some(link), self.now);
        self.at(PROOF_LIMIT, What::Timer(Some(index)));
        match self.plan.kind {
            Kind::Nodes => self.hosts[index].phase = Phase::Proving(None),
            Kind::Processes => {
                let (token, worker) = (SECRET.as_bytes().into(), self.hosts[index].workers[0].id);
                let hello = Hello { token, worker, thread: 1, functions: phase::functions() };
                self.introduce(index, Message::Hello(hello));
            }
        }
    }

    fn introduce(&mut self, index: usize, introduction: Message) {
        let joining = Joining::new(introduction, self.instant());
        self.hosts[index].phase = Phase::Joining(joining);
        self.host_acts(index);
    }

    pub(super) fn prove(&mut self, index: usize, bytes: &[u8]) {
        let node = self.plan.names_itself(index).then_some(index as u32 + 1);
        let request = Request { node, per_node: Some(self.plan.per_host as u32) };
        match self.hosts[index].phase.prove(request, bytes) {
            Ok(Step::Answer(answer)) => self.host_writes(index, &answer[..].into(), Order::Urgent),
            Ok(Step::Introduce) => self.introduce(index, phase::join(format!("host{index:04}"))),
            Ok(Step::Unknown) => self.leave_host(index),
            Err(error) => self.record_violation(format!("host {index}, which has the right token: {error}")),
        }
    }

    pub(super) fn host_is_cut_off(&mut self, index: usize) {
        match &self.hosts[index].phase {
            Phase::Proving(_) => self.come_again(index),
            _ => self.notify_host(index, Event::Closed),
        }
    }

    /// Retries after a failed attempt to join.
    pub(super) fn come_again(&mut self, index: usize) {
        if let Some(link) = self.hosts[index].link.take() {
            self.close_link(link, Side::Member, true);
        }
        self.hosts[index].phase = Phase::Away;
        self.at(100_000, What::Connect(index));
    }

    pub(super) fn join(&mut self, index: usize, action: Action) {
        match action {
            Action::Send(message) => self.host_sends(index, &message, Priority::Urgent),
            Action::ShowWaiting | Action::Listen { .. } => {}
            Action::Taken(message) => {
                let now = self.instant();
                self.hosts[index].is_taken = true;
                let member = match *message {
                    Message::Assign(assignment) => {
                        // Hosts without a number are ordered by their names. A host that joins again before its silence
                        // is noticed counts twice.
                        if assignment.workers.first() != self.hosts[index].workers[0].id {
                            if self.is_calm() {
                                self.record_violation(format!(
                                    "the controller has accepted host {index} as node {}",
                                    assignment.node
                                ));
                            }
                            return self.kill(index);
                        }
                        Member::node(&assignment, false, now)
                    }
                    Message::Welcome(welcome) => Member::worker(welcome.heartbeat, welcome.config.value_limit, now),
                    other => {
                        return self.record_violation(format!("host {index} got {other} in place of an acceptance"));
                    }
                };
                self.hosts[index].phase = Phase::Serving(Box::new(member));
                if self.plan.kind == Kind::Nodes {
                    self.notify_host(index, Event::Started(Ok(())));
                }
            }
            Action::Retry(why) => {
                self.show(|| format!("host {index} joins again: {why}"));
                self.come_again(index);
            }
            Action::Refused(error) => {
                self.show(|| format!("host {index} is refused: {error}"));
                self.leave_host(index);
                self.hosts[index].result = Some(Err(error));
            }
        }
    }
}
