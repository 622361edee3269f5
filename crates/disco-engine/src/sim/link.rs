//! A connection of the simulated network. The bytes of each direction keep their order, but urgent packets overtake
//! packets that were not sent yet, as in `connection`.

use std::collections::VecDeque;
use std::sync::Arc;

use super::world::{Micros, What, World};
use crate::controller::{Conn, Order};
use crate::limits::CHUNK_BYTES;

/// Size of the simulated socket buffers of one direction.
const SOCKET_BYTES: usize = 512 << 10;
/// Bytes that are not a message.
pub(super) const GARBAGE: &[u8] = &[7; 30];

/// The receiving end of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Member,
    Controller,
}

/// One connection.
pub(super) struct Link {
    pub(super) conn: Conn,
    /// The index of the member's host; an intruder has an index beyond all hosts.
    pub(super) host: usize,
    pipes: [Pipe; 2],
    /// Transmission time of 64 KiB.
    pub(super) chunk_micros: Micros,
}

/// One direction.
#[derive(Default)]
struct Pipe {
    urgent: VecDeque<Item>,
    last: VecDeque<Item>,
    backlog: usize,
    flying: VecDeque<Slice>,
    flying_bytes: usize,
    arrival: Micros,
    /// Slices that arrived while the receiver was frozen.
    unread: VecDeque<Slice>,
    /// The sender has closed its direction; the receiver is told after the last byte.
    ends: bool,
    is_ended: bool,
    /// The receiver has closed the connection.
    is_deaf: bool,
    /// The network drops all bytes; neither end is told.
    is_cut: bool,
    /// The network has changed the length of a packet: bytes of it that have come.
    damaged: Option<usize>,
}

struct Item {
    bytes: Arc<[u8]>,
    sent: usize,
}

/// Bytes that arrive together.
pub(super) struct Slice {
    size: usize,
    pub(super) what: Arrival,
}

pub(super) enum Arrival {
    /// A part of a large packet.
    Part,
    Bytes(Arc<[u8]>),
    End,
}

impl Link {
    pub(super) fn new(conn: Conn, host: usize) -> Self {
        Self { conn, host, pipes: [Pipe::default(), Pipe::default()], chunk_micros: 600 }
    }

    fn pipe(&mut self, to: Side) -> &mut Pipe {
        &mut self.pipes[to as usize]
    }

    /// Drops all further bytes towards an end.
    pub(super) fn cut(&mut self, to: Side) {
        self.pipe(to).is_cut = true;
    }

    /// Changes the length of the next packet towards an end, to the largest that is accepted.
    pub(super) fn damage(&mut self, to: Side) {
        self.pipe(to).damaged.get_or_insert(0);
    }

    /// Whether both ends have closed it.
    pub(super) fn is_over(&self) -> bool {
        self.pipes.iter().all(|pipe| pipe.ends || pipe.is_deaf)
    }

    /// Unsent bytes.
    pub(super) fn backlog(&self, to: Side) -> usize {
        self.pipes[to as usize].backlog
    }
}

impl World {
    /// Sends bytes to an end. Returns whether the connection accepted them.
    pub(super) fn write(&mut self, link: usize, to: Side, bytes: &Arc<[u8]>, order: Order) -> bool {
        let limit = self.backlog_limit;
        let pipe = self.links[link].pipe(to);
        if pipe.ends {
            return true;
        }
        if pipe.backlog + bytes.len() > limit {
            return false;
        }
        pipe.backlog += bytes.len();
        let is_urgent = matches!(order, Order::Urgent | Order::WithRing) && bytes.len() <= CHUNK_BYTES;
        let queue = if is_urgent { &mut pipe.urgent } else { &mut pipe.last };
        queue.push_back(Item { bytes: bytes.clone(), sent: 0 });
        match order {
            // Waits for `Action::Flush`.
            Order::Held => {}
            _ => self.pump(link, to),
        }
        true
    }

    /// Sends as much as the socket buffer takes.
    pub(super) fn pump(&mut self, link: usize, to: Side) {
        loop {
            let (chunk_micros, now) = (self.links[link].chunk_micros, self.now);
            let delay = if self.events.random.percent(2) {
                self.events.random.of(0..20_000)
            } else {
                self.events.random.of(20..200)
            };
            let pipe = self.links[link].pipe(to);
            if pipe.flying_bytes >= SOCKET_BYTES || pipe.is_ended {
                return;
            }
            let slice = match pipe.urgent.pop_front() {
                Some(item) => Slice { size: item.bytes.len(), what: Arrival::Bytes(item.bytes) },
                None => match pipe.last.front_mut() {
                    Some(item) => {
                        let size = CHUNK_BYTES.min(item.bytes.len() - item.sent);
                        item.sent += size;
                        if item.sent < item.bytes.len() {
                            Slice { size, what: Arrival::Part }
                        } else {
                            let bytes = item.bytes.clone();
                            pipe.last.pop_front();
                            Slice { size, what: Arrival::Bytes(bytes) }
                        }
                    }
                    None if pipe.ends => {
                        pipe.is_ended = true;
                        Slice { size: 0, what: Arrival::End }
                    }
                    None => return,
                },
            };
            pipe.backlog -= slice.size;
            pipe.flying_bytes += slice.size;
            let time = chunk_micros * slice.size as u64 / CHUNK_BYTES as u64;
            pipe.arrival = pipe.arrival.max(now + delay) + time;
            let (at, is_cut) = (pipe.arrival, pipe.is_cut);
            if is_cut {
                return;
            }
            pipe.flying.push_back(slice);
            self.at(at - now, What::Arrive(link, to));
        }
    }

    /// Delivers the next slice.
    pub(super) fn arrive(&mut self, link: usize, to: Side) {
        let host = self.links[link].host;
        let (is_frozen, is_sender_frozen) = match to {
            Side::Member => (self.is_frozen(Some(host)), self.is_frozen(None)),
            Side::Controller => (self.is_frozen(None), self.is_frozen(Some(host))),
        };
        let pipe = self.links[link].pipe(to);
        let Some(slice) = pipe.flying.pop_front().filter(|_| !pipe.is_cut) else { return };
        if is_frozen {
            return pipe.unread.push_back(slice);
        }
        self.take(link, to, slice);
        if !is_sender_frozen {
            self.pump(link, to);
        }
    }

    /// Lets an end that was frozen read the slices that arrived meanwhile, and send its queue.
    pub(super) fn thaw_link(&mut self, link: usize, end: Side) {
        let other = if end == Side::Member { Side::Controller } else { Side::Member };
        while let Some(slice) = self.links[link].pipe(end).unread.pop_front() {
            self.take(link, end, slice);
        }
        self.pump(link, other);
        self.pump(link, end);
    }

    fn take(&mut self, link: usize, to: Side, slice: Slice) {
        let pipe = self.links[link].pipe(to);
        pipe.flying_bytes -= slice.size;
        if pipe.is_deaf {
            return;
        }
        let what = match (&mut pipe.damaged, slice.what) {
            (Some(came), Arrival::Part | Arrival::Bytes(_)) => {
                *came += slice.size;
                if *came < CHUNK_BYTES {
                    return;
                }
                Arrival::Bytes(GARBAGE.into())
            }
            (_, what) => what,
        };
        match to {
            Side::Member => self.member_receives(link, what),
            Side::Controller => self.controller_receives(link, what),
        }
    }

    /// Closes a connection from one end: at once, or after all packets were sent.
    pub(super) fn close_link(&mut self, link: usize, end: Side, at_once: bool) {
        let other = if end == Side::Member { Side::Controller } else { Side::Member };
        let pipe = self.links[link].pipe(other);
        pipe.ends = true;
        if at_once {
            (pipe.backlog, pipe.urgent, pipe.last) = (0, VecDeque::new(), VecDeque::new());
        }
        let incoming = self.links[link].pipe(end);
        incoming.is_deaf |= at_once;
        incoming.unread.clear();
        self.pump(link, other);
    }
}
