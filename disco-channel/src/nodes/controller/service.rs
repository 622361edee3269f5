//! The controller's side of what goes on beside the commands: one thread for all nodes of a lane.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::channel::Inbox;
use disco_core::link::Shared;
use disco_core::wire::{Assignment, Message};
use disco_core::{Error, Result, function};
use rustix::event::{PollFd, PollFlags};

use super::children::Children;
use super::door::{Arrival, Door, Guest};
use super::peer::Peer;
use super::printer::Printer;
use super::refused::{Refused, Standing};
use super::roster::Roster;
use crate::connection::{PACKET, Vigil};
use crate::hearing;
use crate::nodes::ALIVE;

/// The service thread of one lane.
pub(super) struct Service {
    pub(super) roster: Arc<Roster>,
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) shared: Arc<Shared>,
    /// Open until all nodes have come, or it is clear that they won't.
    pub(super) door: Option<Door>,
    /// Those who have come, while others have not.
    pub(super) guests: Vec<Guest>,
    /// All nodes, once they have come.
    pub(super) peers: Vec<Peer>,
    pub(super) refused: Refused,
    /// What nodes are told; which one it is, is each one's own.
    pub(super) assignment: Assignment,
    /// When it started.
    pub(super) since: Instant,
    /// Hears once whether all have started.
    pub(super) ready: Option<Sender<Result<()>>>,
    /// Nodes that the session has started itself.
    pub(super) children: Children,
    pub(super) printer: Option<Printer>,
}

/// What has something to say.
#[derive(Clone, Copy)]
enum Source {
    Waker,
    /// A process that the session has started has ended.
    Exit,
    /// The door, a stranger or a guest.
    Door,
    Peer(usize),
}

impl Service {
    /// Serves until nothing is left of any node.
    pub(super) fn run(mut self) {
        let Assignment { heartbeat, silence, start: start_limit, .. } = self.assignment;
        let tick = (heartbeat.min(silence / 5) / 2).clamp(Duration::from_millis(5), Duration::from_millis(200));
        let (mut last, mut lingers, mut vigil) = (self.since, None, Vigil::default());
        while !self.is_over() {
            self.children.adopt(std::mem::take(&mut *self.roster.started()));
            let ready = self.wait(&mut vigil, lingers.unwrap_or(tick));
            self.hear(&ready);
            // What lingers has had the time that this thread waited.
            if lingers.is_none() || self.roster.flush() {
                lingers = self.roster.lingers();
            } else {
                lingers = None;
            }
            // What depends on time alone.
            let since = last.elapsed();
            if since < tick {
                continue;
            }
            // Whoever kept this thread from running kept it from hearing, too.
            if since > silence / 2 {
                self.peers.iter_mut().for_each(Peer::excuse_silence);
            }
            last = Instant::now();
            for peer in &mut self.peers {
                peer.say_alive(heartbeat);
                peer.check_silence(silence);
            }
            for guest in &self.guests {
                // That it is gone shows when it is listened to.
                _ = Message::Alive.encode().and_then(|packet| guest.connection.send(packet, None));
            }
            if self.ready.is_some() && self.since.elapsed() > start_limit {
                self.give_up(&self.late(start_limit));
            }
            if self.roster.over.load(Ordering::Acquire) {
                self.door = None;
                self.peers.iter_mut().for_each(|peer| peer.close(None));
            }
            self.attend_door();
            self.hear_peers();
        }
        if let Some(printer) = self.printer.take() {
            printer.finish();
        }
    }

    /// Whether nothing is left of any node.
    fn is_over(&mut self) -> bool {
        self.door.is_none() && self.peers.iter().all(Peer::is_over) && self.children.have_ended()
    }

    /// Waits until something comes, or it is time to look.
    fn wait(&self, vigil: &mut Vigil, limit: Duration) -> Vec<Source> {
        let mut sources = vec![Source::Waker];
        let mut polled = vec![PollFd::new(&*self.roster.waker, PollFlags::IN)];
        if let Some(door) = &self.door {
            let guests = self.guests.iter().map(|guest| guest.connection.as_fd());
            for fd in door.descriptors().chain(guests) {
                sources.push(Source::Door);
                polled.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            }
        }
        for (index, peer) in self.peers.iter().enumerate() {
            if let Some(connection) = peer.connection() {
                let mut events = PollFlags::IN;
                events.set(PollFlags::OUT, connection.is_behind());
                sources.push(Source::Peer(index));
                polled.push(PollFd::from_borrowed_fd(connection.as_fd(), events));
            }
        }
        for exit in self.children.exits() {
            sources.push(Source::Exit);
            polled.push(PollFd::from_borrowed_fd(exit, PollFlags::IN));
        }
        vigil.wait(&mut polled, limit);
        let ready = polled.iter().map(|polled| !polled.revents().is_empty());
        sources.into_iter().zip(ready).filter_map(|(source, ready)| ready.then_some(source)).collect()
    }

    /// Takes in what has come.
    fn hear(&mut self, ready: &[Source]) {
        if ready.iter().any(|source| matches!(source, Source::Door)) {
            self.attend_door();
        }
        for source in ready {
            match source {
                Source::Waker => self.roster.waker.hear(),
                Source::Exit => self.children.reap(),
                Source::Door => {}
                Source::Peer(index) => self.hear_peer(*index),
            }
        }
    }

    fn hear_peers(&mut self) {
        (0..self.peers.len()).for_each(|index| self.hear_peer(index));
    }

    fn hear_peer(&mut self, index: usize) {
        let Some(printer) = &self.printer else { return };
        self.peers[index].listen(&self.roster, &self.inbox, &self.shared, printer);
        self.report(index);
        if self.ready.is_some() && self.peers.iter().all(|peer| peer.is_ready) {
            self.tell(Ok(()));
        }
    }

    fn attend_door(&mut self) {
        let arrivals = self.door.as_mut().map(|door| door.attend(&self.roster.waker));
        for arrival in arrivals.into_iter().flatten() {
            match arrival {
                Arrival::Node(guest) => self.take(guest),
                Arrival::Refused { address, error, standing } => {
                    self.refused.add(&address.to_string(), &error, standing);
                }
                Arrival::Closed(error) => {
                    let error = Error::invalid(format!("nobody can connect: {error}"));
                    self.refused.add("the system", &error, Standing::Proved);
                }
            }
        }
        let silence = self.assignment.silence.max(ALIVE * 5);
        // Whoever leaves meanwhile may come again.
        self.guests.retain_mut(|guest| guest.is_there(silence));
        if self.door.is_some() && self.guests.len() == self.roster.len() {
            self.door = None;
            self.assign();
        }
    }

    /// A node has introduced itself. One that is not of this session's program ends the start: whoever started it has the
    /// token, and waits for it.
    fn take(&mut self, guest: Guest) {
        let name = format!("{} at {}", guest.join.name, guest.address);
        let per_node = self.roster.per_node() as u32;
        let wrong = match guest.request.per_node {
            Some(theirs) if theirs != per_node => {
                Err(Error::invalid(format!("it was told to have {theirs} workers, and nodes here have {per_node}")))
            }
            _ => function::compare(&guest.join.functions),
        };
        if let Err(error) = wrong {
            hearing::refuse(&guest.connection, &error);
            return self.give_up(&Error::Lost { workers: name, why: error.to_string() });
        }
        if guest.request.node.is_some() {
            // One that froze and came back finds its seat free.
            self.guests.retain_mut(|other| other.request.node != guest.request.node || other.is_there(ALIVE * 2));
        }
        let nodes = self.roster.len();
        let taken = |id| self.guests.iter().find(|other| other.request.node == Some(id));
        let refused = match guest.request.node {
            _ if self.guests.len() == nodes => Some("all nodes are here".to_owned()),
            Some(id) if !(1..=nodes as u32).contains(&id) => {
                Some(format!("nodes here are 1 to {nodes}, and it is {id}"))
            }
            Some(id) => taken(id).map(|other| format!("node {id} is here already: {}", other.join.name)),
            None => None,
        };
        match refused {
            Some(why) => {
                let error = Error::Invalid(why);
                hearing::refuse(&guest.connection, &error);
                self.refused.add(&name, &error, Standing::Proved);
            }
            None => {
                tracing::info!(node = name, "has come");
                self.guests.push(guest);
            }
        }
    }

    /// All have come: tells each which node it is. Those that did not say fill what is left, in the order of their names, so
    /// that who came first matters little.
    fn assign(&mut self) {
        // They are to say what is wrong before this end gives up.
        let left = self.assignment.start.saturating_sub(self.since.elapsed());
        let left = left - left / 10;
        let mut guests: Vec<Guest> = std::mem::take(&mut self.guests);
        guests.sort_by(|a, b| (&a.join.name, a.address).cmp(&(&b.join.name, b.address)));
        let (named, others): (Vec<_>, Vec<_>) = guests.into_iter().partition(|guest| guest.request.node.is_some());
        let mut seats: Vec<Option<Guest>> = (0..self.roster.len()).map(|_| None).collect();
        for guest in named {
            // Checked when it came.
            if let Some(seat) = guest.request.node.and_then(|id| seats.get_mut(id as usize - 1)) {
                *seat = Some(guest);
            }
        }
        let mut others = others.into_iter();
        for (index, seat) in seats.into_iter().enumerate() {
            if let Some(guest) = seat.or_else(|| others.next()) {
                self.place(index, guest);
            }
        }
        for index in 0..self.peers.len() {
            let (node, workers) = (index as u32 + 1, self.roster.members(index));
            let assignment = Assignment { node, workers, start: left, ..self.assignment.clone() };
            let told = Message::Assign(assignment).encode();
            let told = told.map(|packet| self.roster.send(index, |connection| connection.send(packet, None)));
            if let Err(error) = told {
                return self.give_up(&error);
            }
        }
    }

    fn place(&mut self, index: usize, guest: Guest) {
        let Guest { join, connection, mut incoming, .. } = guest;
        incoming.set_limit(PACKET);
        // So far it had only to speak as often as a guest.
        incoming.excuse();
        let seat = self.roster.seat(index);
        // Set once: nobody else gets this seat.
        _ = seat.name.set(self.roster.name(index, Some(&join.name)));
        _ = seat.connection.set(connection.clone());
        self.peers.push(Peer::new(index, connection, incoming));
    }

    /// Reports the end of a node, once.
    fn report(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let (has_left, is_silent) = (peer.has_left, peer.is_silent);
        let Some(why) = peer.end() else { return };
        // Any other node ends its workers first, and is killed only if that takes too long.
        if is_silent {
            self.children.kill(index);
        }
        if self.ready.is_some() {
            self.give_up(&self.roster.lost(index, why));
        } else if !(self.roster.exits.are_expected() || self.roster.leaving.load(Ordering::Acquire) && has_left) {
            // Before it no longer counts for room: whoever waits for that is to hear of the loss.
            self.inbox.lost(self.roster.members(index), self.roster.lost(index, why));
        } else {
            self.inbox.left(self.roster.members(index));
        }
        self.roster.exits.leave(index);
    }

    /// The lane does not come about.
    fn give_up(&mut self, error: &Error) {
        self.door = None;
        self.roster.exits.expect();
        let guests = self.guests.drain(..).map(|guest| guest.connection);
        guests.for_each(|connection| hearing::refuse(&connection, error));
        for peer in &mut self.peers {
            if let Some(connection) = peer.connection() {
                hearing::refuse(connection, error);
            }
            peer.close(None);
        }
        self.tell(Err(error.clone()));
    }

    fn late(&self, after: Duration) -> Error {
        let state = match &self.door {
            Some(_) => self.missing(),
            None => {
                let late = self.peers.iter().filter(|peer| !peer.is_ready);
                let late = late.filter_map(|peer| self.roster.seat(peer.index).name.get().cloned());
                format!("{} did not start all workers", late.collect::<Vec<_>>().join(", "))
            }
        };
        Error::Deadline { operation: "start".into(), after, state }
    }

    /// Who has not come.
    fn missing(&self) -> String {
        let taken: Vec<u32> = self.guests.iter().filter_map(|guest| guest.request.node).collect();
        let free = (0..self.roster.len()).filter(|index| !taken.contains(&(*index as u32 + 1)));
        let free: Vec<String> = free.map(|index| self.roster.name(index, None)).collect();
        let missing = self.roster.len().saturating_sub(self.guests.len());
        let mut text = match missing == free.len() {
            true => format!("{} did not join", free.join(", ")),
            // Others did not say which they are.
            false => format!("{missing} of {} did not join", free.join(", ")),
        };
        if !self.refused.is_empty() {
            text += &format!("; sent away: {}", self.refused);
        }
        text
    }

    fn tell(&mut self, result: Result<()>) {
        if let Some(ready) = self.ready.take() {
            // Whoever waited has given up.
            _ = ready.send(result);
        }
    }
}

impl Drop for Service {
    /// If it panicked, then nobody hears of anything that nodes do: they are all lost, and stop.
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let why = "the service thread of its lane panicked";
        self.tell(Err(Error::invalid(why)));
        for peer in &mut self.peers {
            peer.close(None);
            if !self.roster.exits.are_expected() && !peer.is_over() {
                self.inbox.lost(self.roster.members(peer.index), self.roster.lost(peer.index, why.into()));
            }
        }
        (0..self.roster.len()).for_each(|index| self.roster.exits.leave(index));
    }
}
