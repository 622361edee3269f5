//! The controller's side of what goes on beside the commands: one thread for all workers of a lane.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::channel::Inbox;
use disco_core::link::Shared;
use disco_core::shared_memory::Segment;
use disco_core::wire::{Message, Welcome};
use disco_core::{Error, Result, WorkerId};
use rustix::event::{PollFd, PollFlags};

use super::door::{Arrival, Door};
use super::peer::Peer;
use super::roster::Roster;

use crate::connection::{Connection, Incoming, PACKET, Vigil};
use crate::hearing;

/// How long workers of a lane that was dropped have to leave.
const ABANDONED: Duration = Duration::from_secs(5);

/// The service thread of one lane.
pub(super) struct Service {
    pub(super) roster: Arc<Roster>,
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) shared: Arc<Shared>,
    pub(super) peers: Vec<Peer>,
    /// Open until all have come, or it is clear that they won't.
    pub(super) door: Option<Door>,
    /// What workers are told when they come; the place in the ring is each one's own.
    pub(super) welcome: Welcome,
    pub(super) ring: Option<Arc<Segment>>,
    /// Hears once whether all have come.
    pub(super) ready: Option<Sender<Result<()>>>,
    /// Until when they must have.
    pub(super) start_limit: Duration,
    /// How long a worker may be silent.
    pub(super) silence: Duration,
}

/// Interval at which large replies that are held back are tried again.
const HELD_BACK: Duration = Duration::from_millis(5);

/// What has something to say.
enum Source {
    Waker,
    /// The door, or a stranger.
    Door,
    Peer(usize),
    /// A process has ended.
    Exit(usize),
}

impl Service {
    /// Serves until nothing is left of any worker.
    pub(super) fn run(mut self) {
        let tick = (self.silence / 10).clamp(Duration::from_millis(10), Duration::from_millis(200));
        let start = Instant::now();
        let (mut last, mut abandoned, mut vigil) = (start, None, Vigil::default());
        while !self.peers.iter().all(Peer::is_gone) {
            let held: Vec<bool> = match self.inbox.accepts_large_replies() {
                true => vec![false; self.peers.len()],
                false => self.peers.iter().map(Peer::is_inside_large_message).collect(),
            };
            let ready = self.wait(&mut vigil, if held.contains(&true) { HELD_BACK } else { tick }, &held);
            self.hear(&ready, &held);
            // Messages of held workers are still in their sockets.
            let excused = self.peers.iter_mut().zip(&held).filter_map(|(peer, held)| held.then_some(peer));
            excused.for_each(Peer::excuse_silence);
            // What depends on time alone.
            let since = last.elapsed();
            if since < tick && !ready.is_empty() {
                continue;
            }
            // Whoever kept this thread from running kept it from hearing, too.
            if since > self.silence / 2 {
                self.peers.iter_mut().for_each(Peer::excuse_silence);
            }
            last = Instant::now();
            if let Some(mut writer) = self.roster.writer() {
                writer.wake_rest();
            }
            self.peers.iter_mut().for_each(|peer| peer.check_silence(self.silence));
            if self.door.is_some() && start.elapsed() > self.start_limit {
                self.give_up(&self.late());
            }
            if self.roster.abandoned.load(Ordering::Acquire) {
                let since = *abandoned.get_or_insert_with(Instant::now);
                self.roster.kill.fetch_or(since.elapsed() > ABANDONED, Ordering::AcqRel);
            }
            self.hear(&[Source::Waker], &held);
        }
    }

    /// Waits until something comes, or it is time to look. Large replies of workers that are `held` stay in their sockets.
    fn wait(&self, vigil: &mut Vigil, tick: Duration, held: &[bool]) -> Vec<Source> {
        let mut sources = vec![Source::Waker];
        let mut polled = vec![PollFd::new(&*self.roster.waker, PollFlags::IN)];
        if let Some(door) = &self.door {
            sources.push(Source::Door);
            polled.push(PollFd::new(door, PollFlags::IN));
            for stranger in door.strangers() {
                sources.push(Source::Door);
                polled.push(PollFd::new(stranger, PollFlags::IN));
            }
        }
        for (index, peer) in self.peers.iter().enumerate() {
            if let Some(connection) = peer.connection().filter(|connection| !held[index] || connection.is_behind()) {
                let mut events = PollFlags::empty();
                events.set(PollFlags::IN, !held[index]);
                events.set(PollFlags::OUT, connection.is_behind());
                sources.push(Source::Peer(index));
                polled.push(PollFd::from_borrowed_fd(connection.as_fd(), events));
            }
            if let Some(exit) = peer.process.exit() {
                sources.push(Source::Exit(index));
                polled.push(PollFd::new(exit, PollFlags::IN));
            }
        }
        vigil.wait(&mut polled, tick);
        let ready = polled.iter().map(|polled| !polled.revents().is_empty());
        sources.into_iter().zip(ready).filter_map(|(source, ready)| ready.then_some(source)).collect()
    }

    /// Takes in what has come, except for workers that are `held` and have not ended.
    fn hear(&mut self, ready: &[Source], held: &[bool]) {
        for source in ready {
            match source {
                Source::Waker => {
                    self.roster.waker.hear();
                    self.look_around();
                }
                Source::Door => self.attend_door(),
                Source::Peer(index) if held[*index] => self.peers[*index].flush(),
                Source::Peer(index) => self.hear_peer(*index),
                Source::Exit(index) => {
                    self.peers[*index].reap();
                    self.hear_peer(*index);
                }
            }
        }
    }

    /// Does what the lane wants, and what no descriptor tells of.
    fn look_around(&mut self) {
        for (index, why) in self.roster.accused() {
            self.peers[index].close(Some(why));
        }
        if self.door.is_some() {
            self.attend_door();
        }
        if self.roster.kill.load(Ordering::Acquire) {
            self.peers.iter_mut().for_each(Peer::kill);
        }
        for index in 0..self.peers.len() {
            self.peers[index].flush();
            self.report(index);
        }
    }

    fn hear_peer(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        // What it said last is heard before its end.
        peer.listen(&self.roster, &self.inbox, &self.shared);
        peer.flush();
        self.report(index);
    }

    fn attend_door(&mut self) {
        let Self { door, peers, .. } = self;
        let is_child = |pid| peers.iter().any(|peer| peer.process.child_id() == Some(pid));
        let arrivals = door.as_mut().map(|door| door.attend(&self.roster.waker, is_child));
        for arrival in arrivals.into_iter().flatten() {
            match arrival {
                Arrival::Worker { pid, hello, connection, incoming } => match self.seat_for(hello.worker) {
                    Err(error) => {
                        hearing::refuse(&connection, &error);
                        self.send_away(pid, None, &error);
                    }
                    Ok(index) => {
                        if let Err(error) = self.welcome(index, pid, &connection, incoming) {
                            hearing::refuse(&connection, &error);
                            self.give_up(&lost(hello.worker, error.to_string()));
                        }
                    }
                },
                Arrival::Refused { pid, worker, error } => self.send_away(pid, worker, &error),
                Arrival::Closed(error) => self.give_up(&Error::invalid(format!("nobody can connect: {error}"))),
            }
        }
        if self.door.is_some() && self.peers.iter().all(Peer::has_come) {
            self.door = None;
            self.tell(Ok(()));
        }
    }

    /// Somebody was refused. If that is one who is waited for, the lane does not come about.
    fn send_away(&mut self, pid: Option<u32>, worker: Option<WorkerId>, error: &Error) {
        let ours = self.peers.iter().find(|peer| pid.is_some() && peer.process.child_id() == pid);
        match worker.or(ours.map(|peer| peer.worker)) {
            Some(worker) => self.give_up(&lost(worker, error.to_string())),
            None => tracing::warn!(pid, %error, "a stranger was sent away"),
        }
    }

    /// The index of a worker who has not come yet.
    fn seat_for(&self, worker: WorkerId) -> Result<usize> {
        let index = worker.index().checked_sub(self.roster.workers.start.index());
        let peer = index.and_then(|index| Some((index, self.peers.get(index)?)));
        let (index, peer) = peer.ok_or_else(|| Error::invalid(format!("this lane has no {worker}")))?;
        if peer.has_come() { Err(Error::invalid(format!("{worker} is here already"))) } else { Ok(index) }
    }

    fn welcome(
        &mut self,
        index: usize,
        pid: Option<u32>,
        connection: &Arc<Connection>,
        mut incoming: Incoming,
    ) -> Result<()> {
        let refused = |error: std::io::Error| Error::invalid(format!("no descriptor for the ring: {error}"));
        let mut welcome = self.welcome;
        if let Some(place) = &mut welcome.ring {
            place.reader = index;
        }
        let ring = self.ring.as_ref().map(|ring| ring.as_fd().try_clone_to_owned()).transpose().map_err(refused)?;
        connection.send(Message::Welcome(welcome).encode()?, ring)?;
        incoming.set_limit(PACKET);
        // Set once: nobody else comes as this worker.
        _ = self.roster.seat(index).connection.set(connection.clone());
        self.peers[index].come(pid, connection.clone(), incoming);
        // What came behind its hello is here already.
        self.hear_peer(index);
        Ok(())
    }

    /// Reports the end of a worker, once it is clear.
    fn report(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let (worker, came) = (peer.worker, peer.has_come());
        if let Some(why) = peer.end() {
            self.roster.retire(index);
            if self.door.is_some() {
                let hint = if came { "" } else { " before it connected; does its `main` call `disco::init()` first?" };
                self.give_up(&lost(worker, format!("{why}{hint}")));
            } else if !(self.roster.exits.are_expected() || self.roster.is_leaving() && peer.is_clean()) {
                peer.kill();
                // Nobody can make a data plane with it any more.
                self.shared.remove_all_of(worker);
                self.inbox.lost(hearing::one(worker), lost(worker, why));
            } else {
                self.inbox.left(hearing::one(worker));
            }
        }
        if self.peers[index].is_gone() && !self.roster.exits.has_left(index) {
            self.roster.exits.leave(index);
        }
    }

    /// The lane does not come about.
    fn give_up(&mut self, error: &Error) {
        self.door = None;
        self.roster.exits.expect();
        self.roster.kill.store(true, Ordering::Release);
        for peer in &mut self.peers {
            if let Some(connection) = peer.connection() {
                hearing::refuse(connection, error);
            }
            peer.close(None);
        }
        self.tell(Err(error.clone()));
    }

    fn late(&self) -> Error {
        let missing = self.peers.iter().filter(|peer| !peer.has_come()).map(|peer| peer.worker.to_string());
        let missing = missing.collect::<Vec<_>>().join(", ");
        let (operation, after) = ("start".to_owned(), self.start_limit);
        Error::Deadline { operation, after, state: format!("{missing} did not connect") }
    }

    fn tell(&mut self, result: Result<()>) {
        if let Some(ready) = self.ready.take() {
            // Whoever waited has given up.
            _ = ready.send(result);
        }
    }
}

impl Drop for Service {
    /// If it panicked, then nobody hears of anything that workers do: they are all lost, and their processes end.
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let why = "the service thread of its lane panicked";
        self.tell(Err(Error::invalid(why)));
        let expected = self.roster.exits.are_expected();
        for peer in self.peers.drain(..) {
            let (index, worker) = (peer.index, peer.worker);
            drop(peer);
            self.roster.exits.leave(index);
            match expected {
                true => self.inbox.left(hearing::one(worker)),
                false => self.inbox.lost(hearing::one(worker), lost(worker, why.into())),
            }
        }
    }
}

fn lost(worker: WorkerId, why: String) -> Error {
    Error::Lost { workers: worker.to_string(), why }
}
