//! What the plan does to machines and connections: freezes, cuts, garbage, strangers.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use disco_core::wire::{Hello, Join, Message};
use disco_core::{Error, WorkerId, function};

use super::host::Host;
use super::lead::{SECRET, messages, token};
use super::link::{Arrival, Side};
use super::plan::{Harm, Kind};
use super::world::{At, SECOND, What, World};
use crate::engine::controller::{Event, Order};
use crate::engine::member::upward;
use crate::handshake::{GREETING, Guest, Request, VERDICT};

/// The longest time for which ends may do nothing without being taken for lost.
const HARMLESS: At = 3 * SECOND;
/// Limit for silence.
const SILENCE: At = 5 * SECOND;
/// Microseconds for 64 KiB over a slow connection.
const SLOW_PACE: At = 60_000;
/// The token that strangers know, except [`OTHER_PROGRAM`].
const OTHER: &str = "the token of another session";
/// The manner of a stranger with the token that runs another program.
const OTHER_PROGRAM: usize = 4;

impl World {
    /// Whether an end does nothing at the moment.
    pub(super) fn is_frozen(&self, end: Option<usize>) -> bool {
        match end {
            None => self.lead.frozen || self.lead.stalled,
            Some(host) => self.hosts.get(host).is_some_and(|host| host.frozen),
        }
    }

    /// Something is to happen at an end that is frozen: it will once the end goes on.
    pub(super) fn defer(&mut self, end: Option<usize>, what: What) {
        match end {
            None => self.lead.deferred.push(what),
            Some(host) => self.hosts[host].deferred.push(what),
        }
    }

    /// An end goes on.
    pub(super) fn thaw(&mut self, end: Option<usize>) {
        if self.now < self.suspended {
            return self.at(self.suspended - self.now, What::Thaw(end));
        }
        self.show(|| format!("{end:?} goes on"));
        let (side, deferred) = match end {
            None => {
                (self.lead.frozen, self.lead.stalled) = (false, false);
                (Side::Controller, std::mem::take(&mut self.lead.deferred))
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

    /// The reactor thread goes on, unless its machine is frozen.
    pub(super) fn go_on_reacting(&mut self) {
        if self.lead.stalled && !self.lead.frozen {
            self.thaw(None);
            self.lead_acts();
        }
    }

    /// An end does nothing for so long.
    fn freeze(&mut self, end: Option<usize>, time: At) {
        match end {
            None => self.lead.frozen = true,
            Some(host) => self.hosts[host].frozen = true,
        }
        self.at(time, What::Thaw(end));
    }

    /// An end, or all of them, do nothing for so long: more than some time in all ends hosts. Not if no end goes on meanwhile, and
    /// worker processes never take their controller for lost.
    fn count_pause(&mut self, end: Option<usize>, time: At, is_alone: bool) {
        let is_controller = end.is_none();
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            if end.is_none_or(|end| end == index) {
                host.paused += time;
                host.paused_alone |= is_alone && (!is_controller || self.plan.kind == Kind::Nodes);
            }
            host.is_harmed |= host.paused_alone && host.paused > HARMLESS;
        }
        self.lead.is_harmed |= is_controller && time > 2 * SECOND;
    }

    /// Something is done to an end or to a link.
    pub(super) fn harm(&mut self, harm: Harm) {
        self.show(|| format!("harm: {harm:?}"));
        if let Harm::Freeze(_, time) | Harm::Stall(time) | Harm::Suspend(time) = harm {
            // Silence counts anew for an end that goes on.
            self.frozen += time + SILENCE;
        }
        let link = |world: &Self, host: usize| world.hosts[host].link.filter(|_| !world.hosts[host].is_done());
        match harm {
            Harm::Kill(host) => {
                self.must_end(host, 9);
                self.kill(host);
            }
            Harm::Exit(host, code) if self.hosts[host].is_serving() => {
                self.must_end(host, i32::from(code) << 8);
                self.leave_host(host);
            }
            Harm::Exit(..) => {}
            Harm::LoseWorker(host) if self.hosts[host].is_serving() => self.lose_worker(host),
            Harm::LoseWorker(_) => {}
            Harm::Stall(time) => {
                if !self.is_frozen(None) {
                    self.lead.stalled = true;
                    self.count_pause(None, time, true);
                    self.at(time, What::GoOn);
                }
            }
            Harm::Suspend(time) => {
                self.count_pause(None, time, false);
                self.suspended = self.suspended.max(self.now + time);
                for end in (0..self.hosts.len()).map(Some).chain([None]) {
                    if !self.is_frozen(end) || end.is_none() && !self.lead.frozen {
                        self.freeze(end, time);
                    }
                }
            }
            Harm::Restart(host) if !self.hosts[host].is_taken && !self.hosts[host].is_done() => self.restart(host),
            Harm::Restart(_) => {}
            Harm::Freeze(end, time) => {
                if self.is_frozen(end) {
                    return;
                }
                self.count_pause(end, time, true);
                self.freeze(end, time);
            }
            Harm::Reset(host) => {
                if let Some(link) = link(self, host) {
                    self.must_be_lost(host);
                    self.reset(link);
                }
            }
            Harm::HalfOpen(host) | Harm::OneWay(host, _) => {
                if let Some(at) = link(self, host) {
                    self.must_be_lost(host);
                    let towards = if let Harm::OneWay(_, towards) = harm { Some(towards) } else { None };
                    for (side, is_towards) in [(Side::Member, true), (Side::Controller, false)] {
                        if towards.is_none_or(|towards| towards == is_towards) {
                            self.links[at].cut(side);
                        }
                    }
                }
            }
            Harm::Garbage(host) => {
                if link(self, host).is_some() {
                    self.must_be_lost(host);
                    self.host_writes(host, &[7u8; 30][..].into(), Order::Urgent);
                }
            }
            Harm::Slow(host) => {
                if let Some(link) = link(self, host) {
                    self.links[link].pace = SLOW_PACE;
                }
            }
            Harm::Stranger(manner) => self.send_stranger(manner),
        }
    }

    /// The process of a host ends with this status, in a way that its loss tells of.
    fn must_end(&mut self, host: usize, status: i32) {
        let is_first = !self.hosts[host].is_harmed && self.plan.kind == Kind::Processes;
        self.must_be_lost(host);
        if !self.hosts[host].is_done() {
            let status = ExitStatus::from_raw(status);
            (self.hosts[host].status, self.hosts[host].tells_status) = (status, is_first);
        }
    }

    /// A worker of a node ends, which the node's lane reports.
    fn lose_worker(&mut self, host: usize) {
        let Host { workers, lost, .. } = &mut self.hosts[host];
        let Some(worker) = workers.first_mut().filter(|worker| !worker.has_left) else { return };
        worker.end();
        let id = worker.id;
        *lost = Some(id);
        let (message, priority) = upward::lost(id, &Error::invalid("its process ended"));
        self.host_says(host, &message, priority);
        self.host_must_be_noticed(host);
        self.end_if_left(host);
    }

    /// Both ends see that a connection is cut.
    fn reset(&mut self, link: usize) {
        let host = self.links[link].host;
        for side in [Side::Member, Side::Controller] {
            self.close_link(link, side, true);
        }
        let conn = self.links[link].conn;
        if self.lead.conns.contains_key(&conn) {
            self.tell_lead(Event::Hung(conn, Some("Connection reset by peer (os error 104)".into())));
        }
        if self.hosts[host].link == Some(link) {
            self.host_is_cut_off(host);
        }
    }

    /// A connection of no member: it sends nothing, garbage or an answer with another token, leaves, or is a node of
    /// [`OTHER_PROGRAM`].
    fn send_stranger(&mut self, manner: u8) {
        let Some(link) = self.open(self.hosts.len() + usize::from(manner)) else { return };
        match (manner, self.plan.kind) {
            (1, _) => _ = self.write(link, Side::Controller, &b"GET / HTTP/1.1\r\n"[..].into(), Order::Urgent),
            (2, Kind::Processes) => {
                let hello = Hello { token: OTHER.as_bytes().into(), worker: WorkerId::new(0), functions: Vec::new() };
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

    /// A stranger hears something: none is taken.
    pub(super) fn stranger_receives(&mut self, link: usize, what: &Arrival) {
        match what {
            Arrival::End => self.close_link(link, Side::Member, true),
            Arrival::Bytes(bytes) => {
                if let Ok(greeting) = <&[u8; GREETING]>::try_from(&bytes[..]) {
                    let secret = match self.manner(link) {
                        2 => OTHER,
                        OTHER_PROGRAM => SECRET,
                        _ => return,
                    };
                    let nonce = self.nonce();
                    if let Ok((_, answer)) = Guest::answer(&token(secret), greeting, nonce, Request::default()) {
                        self.write(link, Side::Controller, &answer[..].into(), Order::Urgent);
                    }
                } else if bytes.len() == VERDICT {
                    // The stranger without the token goes on as if the verdict were another one.
                    let functions = match self.manner(link) {
                        OTHER_PROGRAM => vec!["theirs.only".to_owned()],
                        _ => function::names().into_iter().map(str::to_owned).collect(),
                    };
                    let join = Message::Join(Join { name: "stranger".into(), functions });
                    if let Ok(packet) = join.encode() {
                        self.write(link, Side::Controller, &packet.into(), Order::Urgent);
                    }
                } else if let Some(Ok(message)) = messages(bytes).next()
                    && !matches!(message, Message::Bye(_))
                {
                    self.breach(format!("a stranger is told {message}"));
                }
            }
            Arrival::Part => self.breach("a stranger is told much"),
        }
    }
}
