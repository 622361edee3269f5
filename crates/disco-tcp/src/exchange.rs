//! The messages of a plan, which go out and come in at the same time.

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
use crate::plan::{Label, Message, Plan};

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

/// The first message to a rank.
#[derive(Default)]
struct Outgoing {
    /// The head and the call, once it has begun.
    head: Vec<u8>,
    /// Bytes that the link has taken.
    sent: usize,
}

/// The first message from a rank.
#[derive(Default)]
struct Incoming {
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

/// A plan, and how far its messages have come.
struct Exchange<'a> {
    plan: Plan<'a>,
    /// By rank.
    outgoing: Vec<Outgoing>,
    /// By rank.
    incoming: Vec<Incoming>,
}

/// Moves all messages of a plan, and runs its computations.
///
/// # Errors
/// [`Error::Mismatch`], [`Error::Lost`], [`Error::Deadline`], [`Error::Aborted`]; those of the computations. The connections
/// can't be used after it.
pub(crate) fn run(plan: Plan<'_>, call: Call<'_>, wires: &mut Wires<'_>) -> Result<()> {
    let outgoing = plan.outgoing.iter().map(|_| Outgoing::default()).collect();
    let incoming = plan.incoming.iter().map(|_| Incoming::default()).collect();
    Exchange { plan, outgoing, incoming }.run(call, wires)
}

impl Exchange<'_> {
    fn run(mut self, call: Call<'_>, wires: &mut Wires<'_>) -> Result<()> {
        loop {
            let mut has_moved = self.plan.run_ready()?;
            has_moved |= self.advance(call, wires)?;
            if self.plan.is_done() {
                return Ok(());
            }
            self.check(call, wires)?;
            if !has_moved {
                self.wait(wires)?;
            }
        }
    }

    /// Ends the operation after an abort, and once the deadline has passed.
    fn check(&self, call: Call<'_>, wires: &Wires<'_>) -> Result<()> {
        wires.alarm.check()?;
        let (waited, deadline) = (wires.start.elapsed(), wires.deadline);
        let operation = || call.text.to_owned();
        if call.kind == Kind::Collective {
            // The ranks that this one waits for may wait for others.
            let result = wires.attendance.check_wait(call.number, waited, deadline, operation);
            return result.map_err(|error| match error {
                Error::Deadline { operation, after, state } => {
                    Error::Deadline { operation, after, state: format!("{state}; {}", self.describe_missing()) }
                }
                error => error,
            });
        }
        if waited <= deadline {
            return Ok(());
        }
        Err(Error::Deadline { operation: operation(), after: deadline, state: self.describe_missing() })
    }

    fn describe_missing(&self) -> String {
        let peers = self.peers(|_| true).map(|(peer, ..)| Rank::new(peer as u32).to_string());
        format!("messages from or to {} are missing", peers.collect::<Vec<_>>().join(", "))
    }

    /// The ranks from or to which a message that the caller accepts is the next one, with whether one is to be sent, and received.
    fn peers(&self, is_meant: impl Fn(&Message<'_>) -> bool) -> impl Iterator<Item = (usize, bool, bool)> {
        (0..self.outgoing.len().max(self.incoming.len())).filter_map(move |peer| {
            let sent = self.plan.outgoing.get(peer).and_then(|messages| messages.front());
            let received = self.plan.incoming.get(peer).and_then(|messages| messages.front());
            let (is_sent, is_received) = (sent.is_some_and(&is_meant), received.is_some_and(&is_meant));
            (is_sent || is_received).then_some((peer, is_sent, is_received))
        })
    }

    /// Moves what can be moved now. Returns whether a byte has moved, or a message is over.
    fn advance(&mut self, call: Call<'_>, wires: &mut Wires<'_>) -> Result<bool> {
        let (plan, mut has_moved) = (&mut self.plan, false);
        for (to, state) in self.outgoing.iter_mut().enumerate() {
            while let Some(message) = plan.outgoing[to].front().filter(|message| plan.is_ready(message.step)) {
                if !state.advance(message, plan.memory.get(&message.content), to, call, wires, &mut has_moved)? {
                    break;
                }
                *state = Outgoing::default();
                let step = message.step;
                plan.outgoing[to].pop_front();
                plan.note_done(step);
                has_moved = true;
            }
        }
        for (from, state) in self.incoming.iter_mut().enumerate() {
            has_moved |= plan.run_ready()?;
            while let Some(message) = plan.incoming[from].front().filter(|message| plan.is_ready(message.step)) {
                let content = plan.memory.get_mut(&message.content)?;
                if !state.advance(message, content, from, call, wires, &mut has_moved)? {
                    break;
                }
                *state = Incoming::default();
                let step = message.step;
                plan.incoming[from].pop_front();
                plan.note_done(step);
                has_moved = true;
            }
        }
        Ok(has_moved)
    }

    /// Sleeps until a connection may go on, or the alarm is raised.
    fn wait(&self, wires: &mut Wires<'_>) -> Result<()> {
        let mut fds = vec![PollFd::new(wires.alarm, PollFlags::IN)];
        for (peer, is_sent, is_received) in self.peers(|message| self.plan.is_ready(message.step)) {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, is_received);
            flags.set(PollFlags::OUT, is_sent);
            if let Some(Some(link)) = wires.links.get(peer) {
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
        for (peer, ..) in self.peers(|_| true) {
            // A probe would cut a message in two.
            let has_begun = self.outgoing.get(peer).is_some_and(|outgoing| !outgoing.head.is_empty());
            let link = wires.link(peer)?;
            match acknowledged(&*link) {
                Acknowledged::Cut => {
                    let why = "its machine does not acknowledge what this one sends";
                    return Err(lost(peer, LossCause::ConnectionFailed(why.to_owned())));
                }
                // The system has nothing to send, so it takes the whole probe.
                Acknowledged::All if !has_begun => {
                    link.send([&Head::bare(Kind::Probe), &[]]).map_err(|error| disconnected(peer, &error))?;
                }
                Acknowledged::All | Acknowledged::Some => {}
            }
        }
        Ok(())
    }
}

impl Outgoing {
    /// Sends what the link takes. Returns whether the system has all of it.
    fn advance(
        &mut self,
        message: &Message<'_>,
        content: &[u8],
        to: usize,
        call: Call<'_>,
        wires: &mut Wires<'_>,
        has_moved: &mut bool,
    ) -> Result<bool> {
        if self.head.is_empty() {
            let text = message.label.text.unwrap_or(call.text);
            let (length, content) = (text.len() as u32, content.len() as u64);
            let head = Head { kind: call.kind, call: length, number: message.label.number, content };
            self.head = [&head.to_bytes(), text.as_bytes()].concat();
        }
        let whole = self.head.len() + content.len();
        let link = wires.link(to)?;
        let is_lost = |error: io::Error| disconnected(to, &error);
        let limit = self.sent.saturating_add(MAX_TURN_BYTES);
        while self.sent < whole {
            if self.sent >= limit {
                return Ok(false);
            }
            let head = self.head.get(self.sent..).unwrap_or_default();
            let content = content.get(self.sent.saturating_sub(self.head.len())..).unwrap_or_default();
            match link.send([head, content]).map_err(is_lost)? {
                0 => return Ok(false),
                count => self.sent += count,
            }
            *has_moved = true;
        }
        link.flush().map_err(is_lost)
    }
}

impl Incoming {
    /// Receives what has come. Returns whether it is complete.
    fn advance(
        &mut self,
        message: &Message<'_>,
        content: &mut [u8],
        from: usize,
        call: Call<'_>,
        wires: &mut Wires<'_>,
        has_moved: &mut bool,
    ) -> Result<bool> {
        let label = message.label;
        let caller = (wires.rank, wires.operation);
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
                &mut content[in_content..]
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
                self.check_call((from, label, content.len()), call, caller)?;
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

    /// Compares the message with what this rank has called, and expects from the other one.
    fn check_call(
        &self,
        (from, label, bytes): (usize, Label<'_>, usize),
        call: Call<'_>,
        (rank, operation): (usize, &str),
    ) -> Result<()> {
        let head = self.check_head(from)?;
        let expected = label.text.unwrap_or(call.text);
        let is_expected = self.call == expected.as_bytes() && (head.kind, head.number) == (call.kind, label.number);
        let theirs = String::from_utf8_lossy(&self.call);
        let detail = if !is_expected && (head.kind, call.kind) == (Kind::Send, Kind::Send) {
            format!("rank {from} sends {theirs} to rank {rank}, which expects {expected}")
        } else if !is_expected {
            let theirs = if head.kind == Kind::Send { format!("send of {theirs}") } else { theirs.into_owned() };
            format!("rank {rank} called {}, rank {from} called {theirs}", call.text)
        } else if head.content != bytes as u64 {
            format!("rank {from} sends {} bytes to rank {rank}, which expects {bytes}", head.content)
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
