//! What the plan does to machines and connections: freezes, cuts, garbage, strangers.

use disco_core::wire::{Hello, Join, Message};
use disco_core::{WorkerId, function};

use super::lead::{messages, token};
use super::link::{Arrival, Side};
use super::plan::{Harm, Kind};
use super::world::{At, SECOND, What, World};
use crate::engine::controller::{Event, Order};
use crate::handshake::{GREETING, Guest, Request, VERDICT};

/// Limit for silence.
const SILENCE: At = 5 * SECOND;
/// Microseconds for 64 KiB over a slow connection.
const SLOW_PACE: At = 60_000;
/// What strangers know.
const OTHER: &str = "the token of another session";

impl World {
    /// Whether an end does nothing at the moment.
    pub(super) fn is_frozen(&self, end: Option<usize>) -> bool {
        match end {
            None => self.lead.frozen,
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
        self.show(|| format!("{end:?} goes on"));
        let (side, deferred) = match end {
            None => {
                self.lead.frozen = false;
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

    /// Something is done to an end or to a link.
    pub(super) fn harm(&mut self, harm: Harm) {
        self.show(|| format!("harm: {harm:?}"));
        if let Harm::Freeze(_, time) = harm {
            // Silence counts anew for an end that goes on.
            self.frozen += time + SILENCE;
        }
        let link = |world: &Self, host: usize| world.hosts[host].link.filter(|_| !world.hosts[host].is_done());
        match harm {
            Harm::Kill(host) => {
                self.must_be_lost(host);
                self.kill(host);
            }
            Harm::Restart(host) if !self.hosts[host].is_taken && !self.hosts[host].is_done() => self.restart(host),
            Harm::Restart(_) => {}
            Harm::Freeze(end, time) => {
                if self.is_frozen(end) {
                    return;
                }
                match end {
                    None => {
                        self.lead.frozen = true;
                        self.lead.is_harmed |= time > 2 * SECOND;
                    }
                    Some(host) => {
                        self.hosts[host].frozen = true;
                        self.hosts[host].is_harmed |= time > 2 * SECOND;
                    }
                }
                self.at(time, What::Thaw(end));
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

    /// A connection that has not the token: it sends nothing, garbage, an answer with another token, or leaves.
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

    /// A stranger hears something: none is taken.
    pub(super) fn stranger_receives(&mut self, link: usize, what: &Arrival) {
        match what {
            Arrival::End => self.close_link(link, Side::Member, true),
            Arrival::Bytes(bytes) => {
                if let Ok(greeting) = <&[u8; GREETING]>::try_from(&bytes[..]) {
                    if self.links[link].host == self.hosts.len() + 2 {
                        let nonce = self.nonce();
                        if let Ok((_, answer)) = Guest::answer(&token(OTHER), greeting, nonce, Request::default()) {
                            self.write(link, Side::Controller, &answer[..].into(), Order::Urgent);
                        }
                    }
                } else if bytes.len() == VERDICT {
                    // It goes on as if the verdict were another one.
                    let functions = function::names().into_iter().map(str::to_owned).collect();
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
