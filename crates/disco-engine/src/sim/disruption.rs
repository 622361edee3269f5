//! Carries out the plan's disruptions of machines and connections: freezes, cuts, garbage, intruders.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use disco_core::wire::{Hello, Join, Message};
use disco_core::{Error, WorkerId};

use super::host::Host;
use super::link::{Arrival, GARBAGE, Side};
use super::phase::functions;
use super::plan::{Disruption, Kind};
use super::terms::{SECRET, SILENCE, messages, secret};
use super::world::{Micros, SECOND, What, World};
use crate::controller::{Event, Order};
use crate::handshake::{GREETING_BYTES, NodeHandshake, Request, VERDICT_BYTES};
use crate::member::upward;

/// Longest pause of an end that can't cause its loss.
const MAX_HARMLESS_PAUSE: Micros = 3 * SECOND;
/// Transmission time of 64 KiB over a slow connection.
const SLOW_CHUNK_MICROS: Micros = 60_000;
/// The token of intruders other than [`OTHER_PROGRAM`].
const OTHER: &str = "the token of another session";
/// The variant of an intruder that has the session's token and runs another program.
const OTHER_PROGRAM: usize = 4;

impl World {
    /// Whether an end is frozen.
    pub(super) fn is_frozen(&self, end: Option<usize>) -> bool {
        match end {
            None => self.controller.frozen || self.controller.stalled,
            Some(host) => self.hosts.get(host).is_some_and(|host| host.frozen),
        }
    }

    /// Defers an event of a frozen end until the end of the freeze.
    pub(super) fn defer(&mut self, end: Option<usize>, what: What) {
        match end {
            None => self.controller.deferred.push(what),
            Some(host) => self.hosts[host].deferred.push(what),
        }
    }

    /// Ends the freeze of an end.
    pub(super) fn thaw(&mut self, end: Option<usize>) {
        if self.now < self.suspended {
            return self.at(self.suspended - self.now, What::Thaw(end));
        }
        self.show(|| format!("{end:?} goes on"));
        let (side, deferred) = match end {
            None => {
                (self.controller.frozen, self.controller.stalled) = (false, false);
                (Side::Controller, std::mem::take(&mut self.controller.deferred))
            }
            Some(host) => {
                self.hosts[host].frozen = false;
                (Side::Member, std::mem::take(&mut self.hosts[host].deferred))
            }
        };
        for link in 0..self.links.len() {
            if end.is_none_or(|host| self.links[link].host == host) {
                self.thaw_link(link, side);
            }
        }
        deferred.into_iter().for_each(|what| self.at(0, what));
    }

    /// Ends the stall of the reactor thread, unless its machine is frozen.
    pub(super) fn end_stall(&mut self) {
        if self.controller.stalled && !self.controller.frozen {
            self.thaw(None);
            self.controller_acts();
        }
    }

    /// Freezes an end for `time`.
    fn freeze(&mut self, end: Option<usize>, time: Micros) {
        match end {
            None => self.controller.frozen = true,
            Some(host) => self.hosts[host].frozen = true,
        }
        self.at(time, What::Thaw(end));
    }

    /// Adds up the pauses of an end, or of all ends. Above a total, the affected hosts may be lost; not if all ends
    /// pause together, and worker processes never lose a paused controller.
    fn count_pause(&mut self, end: Option<usize>, time: Micros, is_alone: bool) {
        let is_controller = end.is_none();
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            if end.is_none_or(|end| end == index) {
                host.paused += time;
                host.paused_alone |= is_alone && (!is_controller || self.plan.kind == Kind::Nodes);
            }
            host.is_disrupted |= host.paused_alone && host.paused > MAX_HARMLESS_PAUSE;
        }
        self.controller.is_disrupted |= is_controller && time > 2 * SECOND;
    }

    /// Carries out a disruption.
    pub(super) fn disrupt(&mut self, disruption: Disruption) {
        self.show(|| format!("disruption: {disruption:?}"));
        if let Disruption::Freeze(_, time) | Disruption::Stall(time) | Disruption::Suspend(time) = disruption {
            // The silence timeout restarts for an end that was frozen.
            self.frozen += time + SILENCE.as_micros() as u64;
        }
        match disruption {
            Disruption::Kill(host) => {
                self.must_end(host, 9);
                self.kill(host);
            }
            Disruption::Exit(host, code) if self.hosts[host].is_serving() => {
                self.must_end(host, i32::from(code) << 8);
                self.leave_host(host);
            }
            Disruption::Exit(..) => {}
            Disruption::LoseWorker(host) if self.hosts[host].is_serving() => self.lose_worker(host),
            Disruption::LoseWorker(_) => {}
            Disruption::Stall(time) => {
                if !self.is_frozen(None) {
                    self.controller.stalled = true;
                    self.count_pause(None, time, true);
                    self.at(time, What::EndStall);
                }
            }
            Disruption::Suspend(time) => {
                self.count_pause(None, time, false);
                self.suspended = self.suspended.max(self.now + time);
                for end in (0..self.hosts.len()).map(Some).chain([None]) {
                    if !self.is_frozen(end) || end.is_none() && !self.controller.frozen {
                        self.freeze(end, time);
                    }
                }
            }
            Disruption::Restart(host) if !self.hosts[host].is_taken && !self.hosts[host].is_done() => {
                self.restart(host)
            }
            Disruption::Restart(_) => {}
            Disruption::Freeze(end, time) => {
                if self.is_frozen(end) {
                    return;
                }
                self.count_pause(end, time, true);
                self.freeze(end, time);
            }
            Disruption::Reset(host)
            | Disruption::HalfOpen(host)
            | Disruption::OneWay(host, _)
            | Disruption::Damaged(host, _)
            | Disruption::Garbage(host)
            | Disruption::Slow(host) => {
                let host = &self.hosts[host];
                if let Some(link) = host.link.filter(|_| !host.is_done()) {
                    self.disrupt_link(link, disruption);
                }
            }
            Disruption::Intruder(manner) => self.send_intruder(manner),
        }
    }

    /// Carries out a disruption of a host's open connection.
    fn disrupt_link(&mut self, link: usize, disruption: Disruption) {
        let host = self.links[link].host;
        if let Disruption::Slow(_) = disruption {
            self.links[link].chunk_micros = SLOW_CHUNK_MICROS;
            return;
        }
        self.must_be_lost(host);
        match disruption {
            Disruption::Reset(_) => self.reset(link),
            Disruption::Garbage(_) => self.host_writes(host, &GARBAGE.into(), Order::Urgent),
            Disruption::OneWay(_, true) => self.links[link].cut(Side::Member),
            Disruption::OneWay(_, false) => self.links[link].cut(Side::Controller),
            Disruption::Damaged(_, true) => self.links[link].damage(Side::Member),
            Disruption::Damaged(_, false) => self.links[link].damage(Side::Controller),
            _ => [Side::Member, Side::Controller].into_iter().for_each(|side| self.links[link].cut(side)),
        }
    }

    /// Ends the process of a host with a status that its loss must report.
    fn must_end(&mut self, host: usize, status: i32) {
        let is_first = !self.hosts[host].is_disrupted && self.plan.kind == Kind::Processes;
        self.must_be_lost(host);
        if !self.hosts[host].is_done() {
            let status = ExitStatus::from_raw(status);
            (self.hosts[host].status, self.hosts[host].has_exit_status) = (status, is_first);
        }
    }

    /// Ends a worker of a node; the node's lane reports it.
    fn lose_worker(&mut self, host: usize) {
        let Host { workers, lost, .. } = &mut self.hosts[host];
        let Some(worker) = workers.first_mut().filter(|worker| !worker.has_left) else { return };
        worker.end();
        let id = worker.id;
        *lost = Some(id);
        self.split_replies(host);
        let (messages, priority) = upward::workers_lost(id.into(), &Error::invalid("its process ended"));
        messages.iter().for_each(|message| self.host_sends(host, message, priority));
        self.host_must_be_noticed(host);
        self.end_if_left(host);
    }

    /// Resets a connection, which both ends notice.
    fn reset(&mut self, link: usize) {
        let host = self.links[link].host;
        for side in [Side::Member, Side::Controller] {
            self.close_link(link, side, true);
        }
        let conn = self.links[link].conn;
        if self.controller.conns.contains_key(&conn) {
            self.notify_controller(Event::Hung(conn, Some("Connection reset by peer (os error 104)".into())));
        }
        if self.hosts[host].link == Some(link) {
            self.host_is_cut_off(host);
        }
    }

    /// Opens a connection of an intruder: it is silent, sends garbage or an answer with another token, leaves, or is a
    /// node of [`OTHER_PROGRAM`].
    fn send_intruder(&mut self, manner: u8) {
        let Some(link) = self.open(self.hosts.len() + usize::from(manner)) else { return };
        match (manner, self.plan.kind) {
            (1, _) => _ = self.write(link, Side::Controller, &b"GET / HTTP/1.1\r\n"[..].into(), Order::Urgent),
            (2, Kind::Processes) => {
                let hello = Hello {
                    token: OTHER.as_bytes().into(),
                    worker: WorkerId::new(0),
                    thread: 1,
                    functions: Vec::new(),
                };
                if let Ok(packet) = Message::Hello(hello).encode() {
                    self.write(link, Side::Controller, &packet.into(), Order::Urgent);
                }
            }
            (3, _) => self.close_link(link, Side::Member, false),
            _ => {}
        }
    }

    fn manner(&self, link: usize) -> usize {
        self.links[link].host - self.hosts.len()
    }

    /// Handles an arrival at an intruder, which must not be admitted.
    pub(super) fn intruder_receives(&mut self, link: usize, what: &Arrival) {
        match what {
            Arrival::End => self.close_link(link, Side::Member, true),
            Arrival::Bytes(bytes) => {
                if let Ok(greeting) = <&[u8; GREETING_BYTES]>::try_from(&bytes[..]) {
                    let text = match self.manner(link) {
                        2 => OTHER,
                        OTHER_PROGRAM => SECRET,
                        _ => return,
                    };
                    if let Ok((_, answer)) = NodeHandshake::answer(&secret(text), greeting, Request::default()) {
                        self.write(link, Side::Controller, &answer[..].into(), Order::Urgent);
                    }
                } else if bytes.len() == VERDICT_BYTES {
                    // An intruder without the token goes on as if it had been accepted.
                    let functions = match self.manner(link) {
                        OTHER_PROGRAM => vec!["theirs.only".to_owned()],
                        _ => functions(),
                    };
                    let join = Message::Join(Join {
                        name: "intruder".into(),
                        rack: String::new(),
                        is_spare: false,
                        functions,
                    });
                    if let Ok(packet) = join.encode() {
                        self.write(link, Side::Controller, &packet.into(), Order::Urgent);
                    }
                } else if let Some(Ok(message)) = messages(bytes).next()
                    && !matches!(message, Message::Bye(_))
                    // After the start, it is told so before its functions are compared.
                    && !(matches!(message, Message::Late) && self.manner(link) == OTHER_PROGRAM)
                {
                    self.record_violation(format!("the controller has sent {message} to an intruder"));
                }
            }
            Arrival::Part => self.record_violation("the controller has sent a large packet to an intruder"),
        }
    }
}
