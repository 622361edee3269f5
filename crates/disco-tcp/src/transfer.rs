//! Messages that are being sent and received.

use disco_core::error::LossCause;
use disco_core::{Error, Result};

use crate::goodbye;
use crate::head::{HEAD_BYTES, Head, Kind};
use crate::link::Link;
use crate::plan::{Label, Message};
use crate::wires::{Call, Calls, Wires, disconnected, lost};

/// The most bytes that a message moves before the next message has its turn.
const MAX_TURN_BYTES: usize = 1 << 20;

/// Bytes of a buffer for content that nothing needs.
const DISCARD_BYTES: usize = 64 << 10;

/// How far a message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The message is over.
    Done,
    /// Other messages have their turn.
    Paused,
    /// The connection takes, or has, no byte now.
    Blocked,
}

/// The first message to a rank.
#[derive(Default)]
pub(crate) struct Outgoing {
    /// The head and the call, once it has begun.
    head: Vec<u8>,
    /// Bytes that the link has taken.
    sent: usize,
    /// Whether the connection has taken none since the last look at it.
    pub(crate) is_blocked: bool,
}

/// The first message from a rank.
#[derive(Default)]
pub(crate) struct Incoming {
    head: [u8; HEAD_BYTES],
    call: Vec<u8>,
    /// Bytes that have come.
    received: usize,
    /// Whether none had come at the last look at the connection.
    pub(crate) is_blocked: bool,
}

/// The rank that compares messages with its own call.
struct Caller<'a> {
    call: Call<'a>,
    calls: &'a Calls,
    rank: usize,
    operation: &'static str,
}

impl Outgoing {
    /// Whether a part of the message may be on its way.
    pub(crate) fn has_begun(&self) -> bool {
        !self.head.is_empty()
    }

    /// Sends what the link takes.
    pub(crate) fn advance(
        &mut self,
        message: &Message<'_>,
        content: &[u8],
        to: usize,
        call: Call<'_>,
        wires: &mut Wires<'_>,
        has_moved: &mut bool,
    ) -> Result<Progress> {
        if self.head.is_empty() {
            let text = message.label.text.unwrap_or(call.text);
            let (length, content) = (text.len() as u32, content.len() as u64);
            let head = Head { kind: call.kind, call: length, number: message.label.number, content };
            self.head = [&head.to_bytes(), text.as_bytes()].concat();
        }
        let whole = self.head.len() + content.len();
        let link = wires.link(to)?;
        let limit = self.sent.saturating_add(MAX_TURN_BYTES);
        while self.sent < whole {
            if self.sent >= limit {
                return Ok(Progress::Paused);
            }
            let head = self.head.get(self.sent..).unwrap_or_default();
            let content = content.get(self.sent.saturating_sub(self.head.len())..).unwrap_or_default();
            match link.send([head, content]).map_err(|error| disconnected(to, &error))? {
                0 => return Ok(Progress::Blocked),
                count => self.sent += count,
            }
            *has_moved = true;
        }
        let is_over = link.flush().map_err(|error| disconnected(to, &error))?;
        Ok(if is_over { Progress::Done } else { Progress::Blocked })
    }
}

impl Incoming {
    /// Receives what has come.
    pub(crate) fn advance(
        &mut self,
        message: &Message<'_>,
        content: &mut [u8],
        from: usize,
        call: Call<'_>,
        wires: &mut Wires<'_>,
        has_moved: &mut bool,
    ) -> Result<Progress> {
        let caller = Caller { call, calls: wires.calls, rank: wires.rank, operation: wires.operation };
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
                return Ok(Progress::Done);
            }
            if at >= limit {
                return Ok(Progress::Paused);
            }
            match link.receive(into).map_err(|error| disconnected(from, &error))? {
                0 => return Ok(Progress::Blocked),
                count => self.received += count,
            }
            *has_moved = true;
            if self.received == HEAD_BYTES {
                self.call = vec![0; self.read_head(from)?.call as usize];
            }
            if self.received == HEAD_BYTES + self.call.len() {
                let head = self.read_head(from)?;
                match head.kind {
                    Kind::Probe => {
                        caller.check_probe(head.number, &self.call, from)?;
                        *self = Self::default();
                        continue;
                    }
                    Kind::Goodbye => return Err(goodbye::error(&self.call, from)),
                    Kind::Collective | Kind::Send => {}
                }
                caller.check(head, &self.call, (from, message.label, content.len()))?;
            }
        }
    }

    /// Reads the head.
    ///
    /// # Errors
    /// The bytes are no head.
    fn read_head(&self, from: usize) -> Result<Head> {
        Head::read(&self.head).map_err(|error| lost(from, LossCause::ProtocolViolation(error.to_string())))
    }

    /// The call of the goodbye with which a rank has left, whose connection takes nothing more. Reads all that has come.
    pub(crate) fn goodbye(&self, link: &mut dyn Link) -> Option<Vec<u8>> {
        let (mut head, mut call, mut received) = (self.head, self.call.clone(), self.received as u64);
        let mut discarded = vec![0; DISCARD_BYTES];
        loop {
            let (mut into, mut whole) = (&mut discarded[..], HEAD_BYTES as u64);
            if received < whole {
                into = &mut head[received as usize..];
            } else {
                let Head { kind, call: length, content, .. } = Head::read(&head).ok()?;
                let in_call = (received - whole) as usize;
                whole = content.saturating_add(whole + u64::from(length));
                if kind == Kind::Goodbye {
                    call.resize(length as usize, 0);
                    if in_call == call.len() {
                        return Some(call);
                    }
                    into = &mut call[in_call..];
                } else if received == whole {
                    received = 0;
                    continue;
                }
            }
            let left = usize::try_from(whole - received).unwrap_or(usize::MAX).min(into.len());
            match link.receive(&mut into[..left]) {
                Ok(0) | Err(_) => return None,
                Ok(count) => received += count as u64,
            }
        }
    }
}

impl Caller<'_> {
    /// Compares a message with what this rank has called, and expects from the other one.
    fn check(&self, head: Head, theirs: &[u8], (from, label, bytes): (usize, Label<'_>, usize)) -> Result<()> {
        let (call, rank) = (self.call, self.rank);
        let expected = label.text.unwrap_or(call.text);
        let is_expected = theirs == expected.as_bytes() && (head.kind, head.number) == (call.kind, label.number);
        let theirs = String::from_utf8_lossy(theirs);
        Err(self.mismatch(if !is_expected && (head.kind, call.kind) == (Kind::Send, Kind::Send) {
            format!("rank {from} sends {theirs} to rank {rank}, which expects {expected}")
        } else if !is_expected && head.kind == Kind::Send {
            format!("rank {rank} called {}, rank {from} called send of {theirs}", call.text)
        } else if !is_expected {
            self.describe(head.number, &theirs, from)
        } else if head.content != bytes as u64 {
            format!("rank {from} sends {} bytes to rank {rank}, which expects {bytes}", head.content)
        } else {
            return Ok(());
        }))
    }

    /// Compares the collective in which another rank waits with the one of this rank that has its number.
    fn check_probe(&self, number: u64, theirs: &[u8], from: usize) -> Result<()> {
        match self.calls.text(number) {
            Some(ours) if !theirs.is_empty() && ours.as_bytes() != theirs => {
                Err(self.mismatch(self.describe(number, &String::from_utf8_lossy(theirs), from)))
            }
            _ => Ok(()),
        }
    }

    /// What the two ranks have called: of this rank, the collective with the number of the other one's, if it is known.
    fn describe(&self, number: u64, theirs: &str, from: usize) -> String {
        let (call, rank) = (self.call, self.rank);
        match self.calls.text(number).filter(|_| number != call.number) {
            Some(ours) if ours != theirs => {
                format!("rank {rank} called {ours} before {}, rank {from} called {theirs}", call.text)
            }
            _ => format!("rank {rank} called {}, rank {from} called {theirs}", call.text),
        }
    }

    fn mismatch(&self, detail: String) -> Error {
        Error::Mismatch { operation: self.operation.to_owned(), detail }
    }
}
