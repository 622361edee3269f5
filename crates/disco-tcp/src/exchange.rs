//! The messages of a plan, which go out and come in at the same time.

use std::io;
use std::time::Duration;

use disco_core::{Error, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::goodbye;
use crate::head::{Head, Kind};
use crate::link::{Acknowledged, Wish};
use crate::plan::{Message, Plan};
use crate::transfer::{Incoming, Outgoing, Progress};
use crate::wires::{Call, Wires, disconnected, unanswered};

/// Interval at which a rank that waits looks whether the machines of the awaited ranks acknowledge its packets, and announces that it
/// waits, so that others don't report it as absent.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The same while a machine is late with an acknowledgement.
const LATE_INTERVAL: Duration = Duration::from_millis(25);

/// The longest text of a call in a probe, and how long probes have it: a rank may read them much later.
const MAX_PROBE_TEXT_BYTES: usize = 256;
const PROBE_TEXT_TIME: Duration = Duration::from_secs(2);

/// A plan, and how far its messages have come.
struct Exchange<'a> {
    plan: Plan<'a>,
    /// By rank.
    outgoing: Vec<Outgoing>,
    /// By rank.
    incoming: Vec<Incoming>,
    /// When the connections are checked next, from the start of the operation.
    next_check: Duration,
}

/// Moves all messages of a plan, and runs its computations.
///
/// # Errors
/// [`Error::Mismatch`], [`Error::Lost`], [`Error::Deadline`], [`Error::Aborted`]; those of the computations. The connections
/// can't be used after it.
pub(crate) fn run(plan: Plan<'_>, call: Call<'_>, wires: &mut Wires<'_>) -> Result<()> {
    let outgoing = plan.outgoing.iter().map(|_| Outgoing::default()).collect();
    let incoming = plan.incoming.iter().map(|_| Incoming::default()).collect();
    let mut exchange = Exchange { plan, outgoing, incoming, next_check: CHECK_INTERVAL };
    let result = exchange.run(call, wires);
    if result.is_err() {
        let states = exchange.outgoing.iter().enumerate();
        wires.cut.extend(states.filter(|(_, state)| state.has_begun()).map(|(peer, _)| peer));
    }
    result
}

impl Exchange<'_> {
    fn run(&mut self, call: Call<'_>, wires: &mut Wires<'_>) -> Result<()> {
        loop {
            let mut has_moved = self.plan.run_ready()?;
            has_moved |= self.advance(call, wires)?;
            if self.plan.is_done() {
                return Ok(());
            }
            let waited = wires.start.elapsed();
            self.check(call, waited, wires)?;
            if waited >= self.next_check {
                self.check_connections(call, waited, wires)?;
            }
            self.wait(!has_moved, waited, wires)?;
        }
    }

    /// Ends the operation after an abort, and once the deadline has passed.
    fn check(&self, call: Call<'_>, waited: Duration, wires: &Wires<'_>) -> Result<()> {
        wires.alarm.check()?;
        let deadline = wires.deadline;
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
                if state.is_blocked {
                    break;
                }
                let content = plan.memory.get(&message.content);
                let sent = state.advance(message, content, to, call, wires, &mut has_moved);
                let sent = sent.map_err(|error| explain(error, to, self.incoming.get(to), wires));
                match sent? {
                    Progress::Done => {}
                    progress => {
                        state.is_blocked = progress == Progress::Blocked;
                        break;
                    }
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
                if state.is_blocked {
                    break;
                }
                let content = plan.memory.get_mut(&message.content)?;
                match state.advance(message, content, from, call, wires, &mut has_moved)? {
                    Progress::Done => {}
                    progress => {
                        state.is_blocked = progress == Progress::Blocked;
                        break;
                    }
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

    /// Looks at the blocked connections, and if it `sleeps`, sleeps until one of them may go on, the alarm is raised, or something
    /// is to be checked.
    fn wait(&mut self, sleeps: bool, waited: Duration, wires: &mut Wires<'_>) -> Result<()> {
        let blocked = |state: Option<bool>, is_next: bool| is_next && state.unwrap_or(false);
        let (mut polled, mut is_ready) = (Vec::new(), !sleeps);
        let peers: Vec<_> = self.peers(|message| self.plan.is_ready(message.step)).collect();
        for (peer, is_sent, is_received) in peers {
            let sends = blocked(self.outgoing.get(peer).map(|state| state.is_blocked), is_sent);
            let receives = blocked(self.incoming.get(peer).map(|state| state.is_blocked), is_received);
            if !sends && !receives {
                continue;
            }
            match wires.link(peer)?.events(Wish { sends, receives, sleeps }) {
                Ok(Some(flags)) if flags.is_empty() => {}
                Ok(Some(flags)) => polled.push((peer, flags)),
                Ok(None) => {
                    is_ready = true;
                    self.unblock(peer);
                }
                Err(error) => return Err(disconnected(peer, &error)),
            }
        }
        if is_ready && polled.is_empty() {
            return Ok(());
        }
        let mut fds = vec![PollFd::new(wires.alarm, PollFlags::IN)];
        for (peer, flags) in &polled {
            let link = wires.links.get(*peer).and_then(Option::as_ref);
            fds.extend(link.map(|link| PollFd::new(link, *flags)));
        }
        // A little longer than the deadline, so that it has passed when the wait is checked again.
        let longest = wires.deadline.min(self.next_check).saturating_sub(waited) + Duration::from_millis(1);
        let sleep = if is_ready { Duration::ZERO } else { longest };
        let limit = Timespec { tv_sec: sleep.as_secs() as _, tv_nsec: sleep.subsec_nanos().into() };
        match poll(&mut fds, Some(&limit)) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::system("tcp: the wait for other ranks failed", error)),
        }
        for ((peer, _), fd) in polled.iter().zip(&fds[1..]) {
            if !fd.revents().is_empty() {
                self.unblock(*peer);
            }
        }
        Ok(())
    }

    /// Lets the messages from and to a rank go on.
    fn unblock(&mut self, peer: usize) {
        if let Some(state) = self.outgoing.get_mut(peer) {
            state.is_blocked = false;
        }
        if let Some(state) = self.incoming.get_mut(peer) {
            state.is_blocked = false;
        }
    }

    /// Looks for connections that are cut. TCP itself would notice it after minutes, and only of
    /// a connection that has something to send, so a rank that only receives sends a probe.
    fn check_connections(&mut self, call: Call<'_>, waited: Duration, wires: &mut Wires<'_>) -> Result<()> {
        self.next_check = waited + CHECK_INTERVAL;
        let tells = call.kind == Kind::Collective && waited < PROBE_TEXT_TIME;
        let text = Some(call.text).filter(|text| tells && text.len() <= MAX_PROBE_TEXT_BYTES);
        let text = text.unwrap_or_default().as_bytes();
        let head = Head { kind: Kind::Probe, call: text.len() as u32, number: call.number, content: 0 }.to_bytes();
        let peers: Vec<_> = self.peers(|_| true).map(|(peer, ..)| peer).collect();
        for peer in peers {
            // A probe would cut a message in two.
            let has_begun = self.outgoing.get(peer).is_some_and(Outgoing::has_begun);
            let link = wires.link(peer)?;
            match link.acknowledged() {
                Acknowledged::Cut => return Err(unanswered(peer)),
                // The connection has nothing to send, so it takes the whole probe.
                Acknowledged::All if !has_begun => {
                    let sent = link.send([&head, text]).and_then(|_| link.flush());
                    let failed =
                        |error: io::Error| explain(disconnected(peer, &error), peer, self.incoming.get(peer), wires);
                    sent.map_err(failed)?;
                }
                Acknowledged::Late => self.next_check = waited + LATE_INTERVAL,
                Acknowledged::All | Acknowledged::Some => {}
            }
        }
        Ok(())
    }
}

/// The error of a connection that takes nothing more: the other rank may have said before why it has left.
fn explain(error: Error, peer: usize, incoming: Option<&Incoming>, wires: &mut Wires<'_>) -> Error {
    let (Error::Lost(_), Ok(link)) = (&error, wires.link(peer)) else { return error };
    let goodbye = match incoming {
        Some(incoming) => incoming.goodbye(link),
        None => Incoming::default().goodbye(link),
    };
    goodbye.map_or(error, |call| goodbye::error(&call, peer))
}
