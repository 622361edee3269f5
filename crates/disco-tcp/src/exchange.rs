//! Messages that go out and come in at the same time.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use disco_core::error::{LossCause, LostPeer};
use disco_core::{Attendance, Error, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::alarm::Alarm;
use crate::connect::Links;
use crate::head::{HEAD_BYTES, Head, Kind};
use crate::link::{Acknowledged, Link, acknowledged};

/// The longest sleep of a wait. Then the rank announces that it waits, so that others don't report it as absent, and checks
/// that the machines of the awaited ranks acknowledge its packets.
const MAX_SLEEP: Duration = Duration::from_millis(250);

/// The most bytes that a message moves before the next message has its turn.
const MAX_TURN_BYTES: usize = 1 << 20;

/// The operation whose messages an exchange moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) kind: Kind,
    /// What the rank has called, as text. In a collective, all ranks must call the same.
    pub(crate) text: &'a str,
    /// The number of a collective among those of the communicator.
    pub(crate) number: u64,
}

/// The number of a message among those of its kind, and its text if it is not that of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label<'a> {
    pub(crate) number: u64,
    pub(crate) text: Option<&'a str>,
}

/// The messages of one step of an operation. Those to one rank are sent in order, and so are those from one rank received.
#[derive(Default)]
pub(crate) struct Exchange<'a> {
    outgoing: Vec<Outgoing<'a>>,
    incoming: Vec<Incoming<'a>>,
}

/// A message to a rank.
struct Outgoing<'a> {
    to: usize,
    label: Label<'a>,
    content: &'a [u8],
    /// The head and the call, once the message has begun.
    head: Vec<u8>,
    /// Bytes that the link has taken.
    sent: usize,
}

/// A message from a rank.
struct Incoming<'a> {
    from: usize,
    label: Label<'a>,
    content: &'a mut [u8],
    head: [u8; HEAD_BYTES],
    call: Vec<u8>,
    /// Bytes that have come.
    received: usize,
}

/// The rank's end of all connections while an operation runs.
pub(crate) struct Wires<'a> {
    pub(crate) links: &'a mut Links,
    pub(crate) alarm: &'a Alarm,
    pub(crate) attendance: &'a Attendance,
    pub(crate) rank: usize,
    /// The name of the operation.
    pub(crate) operation: &'static str,
    pub(crate) deadline: Duration,
    pub(crate) start: Instant,
}

impl<'a> Exchange<'a> {
    /// Sends `content` to a rank.
    pub(crate) fn send(&mut self, to: usize, label: Label<'a>, content: &'a [u8]) {
        self.outgoing.push(Outgoing { to, label, content, head: Vec::new(), sent: 0 });
    }

    /// Receives the message of a rank with this label into `content`, which has its size.
    pub(crate) fn receive(&mut self, from: usize, label: Label<'a>, content: &'a mut [u8]) {
        let (head, call) = ([0; HEAD_BYTES], Vec::new());
        self.incoming.push(Incoming { from, label, content, head, call, received: 0 });
    }

    /// Moves all messages.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::Lost`], [`Error::Deadline`], [`Error::Aborted`]. The connections can't be used after it.
    pub(crate) fn run(mut self, call: Call<'_>, wires: &mut Wires<'_>) -> Result<()> {
        loop {
            let has_moved = self.advance(call, wires)?;
            if self.outgoing.is_empty() && self.incoming.is_empty() {
                return Ok(());
            }
            self.check(call, wires)?;
            if !has_moved {
                self.wait(wires)?;
            }
        }
    }

    /// Ends the exchange after an abort, and once the deadline has passed.
    fn check(&self, call: Call<'_>, wires: &Wires<'_>) -> Result<()> {
        wires.alarm.check()?;
        let (waited, deadline) = (wires.start.elapsed(), wires.deadline);
        let operation = || call.text.to_owned();
        if call.kind == Kind::Collective {
            // The ranks that this one waits for may wait for others.
            return wires.attendance.check_wait(call.number, waited, deadline, operation);
        }
        if waited <= deadline {
            return Ok(());
        }
        let peers = self.incoming.iter().map(|it| it.from).chain(self.outgoing.iter().map(|it| it.to));
        let peers: BTreeSet<_> = peers.map(|peer| Rank::new(peer as u32).to_string()).collect();
        let state = format!("messages of or to {} are missing", peers.into_iter().collect::<Vec<_>>().join(", "));
        Err(Error::Deadline { operation: operation(), after: deadline, state })
    }

    /// Moves what can be moved now. Returns whether a byte has moved, or a message is over.
    fn advance(&mut self, call: Call<'_>, wires: &mut Wires<'_>) -> Result<bool> {
        let (mut has_moved, mut index) = (false, 0);
        while let Some(message) = self.outgoing.get(index) {
            let to = message.to;
            let is_first = self.outgoing[..index].iter().all(|other| other.to != to);
            if is_first && self.outgoing[index].advance(call, wires, &mut has_moved)? {
                self.outgoing.remove(index);
                has_moved = true;
            } else {
                index += 1;
            }
        }
        index = 0;
        while let Some(message) = self.incoming.get(index) {
            let from = message.from;
            let is_first = self.incoming[..index].iter().all(|other| other.from != from);
            if is_first && self.incoming[index].advance(call, wires, &mut has_moved)? {
                self.incoming.remove(index);
                has_moved = true;
            } else {
                index += 1;
            }
        }
        Ok(has_moved)
    }

    /// Sleeps until a connection may go on, or the alarm is raised.
    fn wait(&self, wires: &mut Wires<'_>) -> Result<()> {
        let mut fds = vec![PollFd::new(wires.alarm, PollFlags::IN)];
        for (peer, link) in wires.links.iter().enumerate() {
            let is_received = self.incoming.iter().any(|message| message.from == peer);
            let is_sent = self.outgoing.iter().any(|message| message.to == peer);
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, is_received);
            flags.set(PollFlags::OUT, is_sent);
            if let Some(link) = link.as_ref().filter(|_| !flags.is_empty()) {
                fds.push(PollFd::new(link, flags));
            }
        }
        // A little longer than the deadline, so that it has passed when the wait is checked again.
        let sleep = wires.deadline.saturating_sub(wires.start.elapsed()).min(MAX_SLEEP) + Duration::from_millis(1);
        let limit = Timespec { tv_sec: sleep.as_secs() as _, tv_nsec: sleep.subsec_nanos().into() };
        match poll(&mut fds, Some(&limit)) {
            Ok(0) => self.check_connections(wires),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::system("tcp: the wait for other ranks failed", error)),
        }
    }

    /// Looks for connections that are cut, after a wait without an event. TCP itself would notice it after minutes, and only of
    /// a connection that has something to send, so a rank that only receives sends a probe.
    fn check_connections(&self, wires: &mut Wires<'_>) -> Result<()> {
        for peer in self.outgoing.iter().map(|message| message.to).chain(self.incoming.iter().map(|it| it.from)) {
            let is_sent = self.outgoing.iter().any(|message| message.to == peer);
            let link = wires.link(peer)?;
            match acknowledged(&*link) {
                Acknowledged::Cut => {
                    let why = "its machine does not acknowledge what this one sends";
                    return Err(lost(peer, LossCause::ConnectionFailed(why.to_owned())));
                }
                // The system has nothing to send, so it takes the whole probe.
                Acknowledged::All if !is_sent => {
                    link.send([&Head::bare(Kind::Probe), &[]]).map_err(|error| disconnected(peer, &error))?;
                }
                Acknowledged::All | Acknowledged::Some => {}
            }
        }
        Ok(())
    }
}

impl Outgoing<'_> {
    /// Sends what the link takes. Returns whether the system has all of the message.
    fn advance(&mut self, call: Call<'_>, wires: &mut Wires<'_>, has_moved: &mut bool) -> Result<bool> {
        if self.head.is_empty() {
            let text = self.label.text.unwrap_or(call.text);
            let (length, content) = (text.len() as u32, self.content.len() as u64);
            let head = Head { kind: call.kind, call: length, number: self.label.number, content };
            self.head = [&head.to_bytes(), text.as_bytes()].concat();
        }
        let (to, whole) = (self.to, self.head.len() + self.content.len());
        let link = wires.link(to)?;
        let is_lost = |error: io::Error| disconnected(to, &error);
        let limit = self.sent.saturating_add(MAX_TURN_BYTES);
        while self.sent < whole {
            if self.sent >= limit {
                return Ok(false);
            }
            let head = self.head.get(self.sent..).unwrap_or_default();
            let content = self.content.get(self.sent.saturating_sub(self.head.len())..).unwrap_or_default();
            match link.send([head, content]).map_err(is_lost)? {
                0 => return Ok(false),
                count => self.sent += count,
            }
            *has_moved = true;
        }
        link.flush().map_err(is_lost)
    }
}

impl Incoming<'_> {
    /// Receives what has come. Returns whether the message is complete.
    fn advance(&mut self, call: Call<'_>, wires: &mut Wires<'_>, has_moved: &mut bool) -> Result<bool> {
        let (from, caller) = (self.from, (wires.rank, wires.operation));
        let limit = self.received.saturating_add(MAX_TURN_BYTES);
        let link = wires.link(from)?;
        loop {
            let at = self.received;
            let in_call = at.wrapping_sub(HEAD_BYTES);
            let in_content = in_call.wrapping_sub(self.call.len());
            let into = if at < HEAD_BYTES {
                &mut self.head[at..]
            } else if in_call < self.call.len() {
                &mut self.call[in_call..]
            } else {
                &mut self.content[in_content..]
            };
            if into.is_empty() {
                return Ok(true);
            }
            if at >= limit {
                return Ok(false);
            }
            match link.receive(into).map_err(|error| disconnected(from, &error))? {
                0 => return Ok(false),
                count => self.received += count,
            }
            *has_moved = true;
            if self.received == HEAD_BYTES {
                let head = self.check_head(from)?;
                if head.kind == Kind::Probe {
                    self.received = 0;
                    continue;
                }
                self.call = vec![0; head.call as usize];
            }
            if self.received == HEAD_BYTES + self.call.len() {
                self.check_call(call, caller)?;
            }
        }
    }

    /// Reads the head.
    ///
    /// # Errors
    /// The bytes are no head; the rank has ended its communicator.
    fn check_head(&self, from: usize) -> Result<Head> {
        match Head::read(&self.head) {
            Ok(Head { kind: Kind::Goodbye, .. }) => Err(lost(from, LossCause::CommunicatorDropped)),
            Ok(head) => Ok(head),
            Err(error) => Err(lost(from, LossCause::ProtocolViolation(error.to_string()))),
        }
    }

    /// Compares the message with what this rank has called.
    fn check_call(&self, call: Call<'_>, (rank, operation): (usize, &str)) -> Result<()> {
        let head = self.check_head(self.from)?;
        let expected = self.label.text.unwrap_or(call.text);
        let is_expected =
            self.call == expected.as_bytes() && (head.kind, head.number) == (call.kind, self.label.number);
        let (theirs, from) = (String::from_utf8_lossy(&self.call), self.from);
        let detail = if !is_expected && (head.kind, call.kind) == (Kind::Send, Kind::Send) {
            format!("rank {from} sends {theirs} to rank {rank}, which expects {expected}")
        } else if !is_expected {
            let theirs = if head.kind == Kind::Send { format!("send of {theirs}") } else { theirs.into_owned() };
            format!("rank {rank} called {}, rank {from} called {theirs}", call.text)
        } else if head.content != self.content.len() as u64 {
            let (theirs, ours) = (head.content, self.content.len());
            format!("rank {from} sends {theirs} bytes to rank {rank}, which expects {ours}")
        } else {
            return Ok(());
        };
        Err(Error::Mismatch { operation: operation.to_owned(), detail })
    }
}

impl Wires<'_> {
    /// The connection to a rank.
    fn link(&mut self, peer: usize) -> Result<&mut dyn Link> {
        match self.links.get_mut(peer) {
            Some(Some(link)) => Ok(&mut **link),
            _ => Err(Error::state(format!("tcp: rank {} has no connection to rank {peer}", self.rank))),
        }
    }
}

fn lost(rank: usize, cause: LossCause) -> Error {
    Error::peer_lost(LostPeer::Rank(Rank::new(rank as u32)), cause)
}

/// The loss of a rank whose connection has failed.
fn disconnected(rank: usize, error: &io::Error) -> Error {
    lost(
        rank,
        match error.kind() {
            io::ErrorKind::UnexpectedEof => LossCause::ConnectionClosed,
            _ => LossCause::ConnectionFailed(error.to_string()),
        },
    )
}
