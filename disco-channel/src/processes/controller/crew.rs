//! The workers of a lane that was started.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use disco_core::link::Shared;
use disco_core::shared_memory::Segment;
use disco_core::wire::{Message, RingPlace, Welcome};
use disco_core::{Command, Error, Frame, Inbox, Result, WorkerId};

use super::door::Door;
use super::lane::Options;
use super::output::Output;
use super::peer::Peer;
use super::roster::{Roster, Seat};
use super::service::Service;
use crate::connection::Waker;
use crate::ending;
use crate::processes::frames::{EVERYBODY, INLINE, LARGE};
use crate::processes::invitation::Invitation;
use crate::shared_ring::{Memory, Whom, Writer};

/// Words of the ring: 4 MiB.
const RING: usize = 1 << 19;
/// How long aborted workers have to leave after the limit.
const GRACE: Duration = Duration::from_millis(500);
/// How long killed ones may take to end.
const KILL: Duration = Duration::from_secs(5);

/// The workers, the threads that serve them.
pub(super) struct Crew {
    pub(super) roster: Arc<Roster>,
    service: Mutex<Option<(JoinHandle<()>, Output)>>,
}

impl Crew {
    /// Starts or invites `workers`, and waits until all have come.
    ///
    /// # Errors
    /// Which worker does not come, and why; none is left then.
    pub(super) fn start(
        workers: Range<WorkerId>,
        options: &Options,
        shared: Arc<Shared>,
        inbox: Arc<dyn Inbox>,
    ) -> Result<Self> {
        let refused =
            |error: std::io::Error| Error::invalid(format!("the system refuses a lane to processes: {error}"));
        let (waker, door) = (Arc::new(Waker::new().map_err(refused)?), Door::open().map_err(refused)?);
        let count = workers.end.index() - workers.start.index();
        let (segment, writer) = options.ring.then(|| ring(count)).flatten().unzip();
        let roster = Arc::new(Roster::new(workers, waker, writer));
        let (mut peers, mut pipes) = (Vec::new(), Vec::new());
        for index in 0..count {
            let worker = roster.worker(index);
            let invitation = Invitation { worker, socket: door.name.clone(), token: door.token.clone() };
            // Those before it end with `peers`.
            let process = options.launch.start(&invitation, &mut pipes)?;
            peers.push(Peer::new(index, worker, process));
        }
        let (tell, told) = mpsc::channel();
        // The place is each one's own.
        let place = segment.is_some().then_some(RingPlace { reader: 0, readers: count, capacity: RING });
        let service = Service {
            roster: roster.clone(),
            inbox,
            shared,
            peers,
            door: Some(door),
            welcome: Welcome { config: options.config, ring: place, heartbeat: options.heartbeat },
            ring: segment,
            ready: Some(tell),
            start_limit: options.start,
            silence: options.silence,
        };
        let output = Output::start(pipes, options.output.clone()).map_err(refused)?;
        let thread = thread::Builder::new().name("disco-service".into()).spawn(|| service.run()).map_err(refused)?;
        let crew = Self { roster, service: Mutex::new(Some((thread, output))) };
        let ready = told.recv().unwrap_or_else(|_| Err(Error::invalid("the service thread of a lane has ended")));
        if let Err(error) = ready {
            crew.kill();
            crew.join();
            return Err(error);
        }
        Ok(crew)
    }

    /// Passes a frame on, for which there is room.
    pub(super) fn pass(&self, frame: &Frame, bytes: &[u8]) -> Result<()> {
        let (seq, whom) = (frame.seq(), self.whom(frame.command()));
        let Some(mut writer) = self.roster.writer() else { return self.post(seq, bytes, Whom::All) };
        let sent = match bytes.len() <= INLINE {
            true => writer.send(seq, bytes, whom),
            false => {
                let (record, whom) = self.placeholder(frame, whom)?;
                self.post(seq, bytes, whom)?;
                writer.send(seq | LARGE, &record, whom)
            }
        };
        sent.map_err(|_| Error::invalid("the ring has no room"))
    }

    /// What the ring gets in place of a large frame: who gets it otherwise, and what it has for those who do not.
    fn placeholder(&self, frame: &Frame, whom: Whom) -> Result<(Vec<u8>, Whom)> {
        let everybody = || Ok((EVERYBODY.to_ne_bytes().to_vec(), Whom::All));
        let reader = match whom {
            Whom::One(reader) => reader as u64,
            Whom::Nobody => self.roster.len() as u64,
            _ => return everybody(),
        };
        let record = [&reader.to_ne_bytes()[..], frame.without_command().bytes()?].concat();
        // So many freed ids that they are what is large.
        if record.len() > INLINE { everybody() } else { Ok((record, whom)) }
    }

    /// Whom to wake for a command.
    fn whom(&self, command: &Command) -> Whom {
        match command {
            Command::SyncWorker { worker } | Command::DebugGet { worker, .. } | Command::DebugSet { worker, .. } => {
                let index = worker.index().checked_sub(self.roster.workers.start.index());
                index.filter(|index| *index < self.roster.len()).map_or(Whom::Nobody, Whom::One)
            }
            Command::CopyFromWorker0 { .. } | Command::CopyToWorker0 { .. } => Whom::Nobody,
            _ => Whom::All,
        }
    }

    /// Sends a frame over the connections of those whom it concerns.
    fn post(&self, seq: u64, bytes: &[u8], whom: Whom) -> Result<()> {
        let packet: Arc<[u8]> = Message::Frame { seq, bytes: bytes.into() }.encode()?.into();
        for index in 0..self.roster.len() {
            if whom == Whom::All || whom == Whom::One(index) {
                self.send(index, |seat| seat.post(&packet, bytes.len()));
            }
        }
        Ok(())
    }

    /// Sends something to a worker, unless it has left. One that does not take it is given up.
    fn send(&self, index: usize, send: impl Fn(&Seat) -> Result<()>) {
        if self.roster.exits.has_left(index) {
            return;
        }
        if let Err(error) = send(self.roster.seat(index)) {
            self.roster.refused(index, &error);
        }
    }

    pub(super) fn urge(&self, message: &Message) -> Result<()> {
        let packet = message.encode()?.into();
        (0..self.roster.len()).for_each(|index| self.send(index, |seat| seat.urge(&packet)));
        Ok(())
    }

    /// Tells everybody to leave, now.
    pub(super) fn let_go(&self) -> Result<()> {
        self.roster.closed.store(true, Ordering::Release);
        self.roster.exits.expect();
        self.urge(&Message::Shutdown)
    }

    fn kill(&self) {
        self.roster.exits.expect();
        self.roster.kill.store(true, Ordering::Release);
        self.roster.waker.wake();
    }

    /// Waits for at most `limit`, then kills who is left. Returns the indices of these.
    pub(super) fn dismiss(&self, limit: Duration) -> Result<Vec<usize>> {
        let exits = &self.roster.exits;
        exits.wait(Instant::now().checked_add(limit));
        self.let_go()?;
        // Whoever waits on a peer that is stuck is not stuck itself.
        self.urge(&Message::Abort { epoch: u64::MAX, cause: "the session shuts down".into() })?;
        exits.wait(Instant::now().checked_add(GRACE));
        let stuck = (0..self.roster.len()).filter(|index| !exits.has_left(*index)).collect();
        self.kill();
        self.join();
        Ok(stuck)
    }

    /// Waits for the service thread, which ends with the last worker, and for the output; not for ever.
    fn join(&self) {
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((thread, output)) = service else { return };
        match ending::within(thread, KILL) {
            Some(Ok(())) => {}
            Some(Err(_)) => tracing::error!("the service thread panicked"),
            None => tracing::error!("a killed worker does not end; its lane is left behind"),
        }
        output.finish();
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if let Err(error) = self.let_go() {
            tracing::warn!(%error, "workers can't be told to leave");
        }
        self.roster.abandoned.store(true, Ordering::Release);
        self.roster.waker.wake();
    }
}

/// The ring's memory and its writer, if there is shared memory.
fn ring(readers: usize) -> Option<(Arc<Segment>, Writer)> {
    let make = || {
        let segment = Arc::new(Segment::create(8 * Memory::words(readers, RING))?);
        let memory = Memory::new(segment.clone(), readers, RING)?;
        Ok::<_, Error>((segment, Writer::new(memory)))
    };
    make().inspect_err(|error| tracing::warn!(%error, "commands go over sockets")).ok()
}
