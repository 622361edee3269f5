//! The controller's end.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use disco_core::channel::{Progress, Signal};
use disco_core::link::Shared;
use disco_core::shared_memory::Segment;
use disco_core::wire::{Message, RingPlace, Welcome};
use disco_core::worker::WorkerConfig;
use disco_core::{Channel, Command, Error, Frame, Inbox, Result, WorkerId};

use super::commands::{EVERYBODY, LARGE};
use super::door::Door;
use super::invitation::Invitation;
use super::join;
use super::launch::Launch;
use super::output::Output;
use super::peer::Peer;
use super::roster::Roster;
use super::service::Service;
use super::waker::Waker;
use crate::ring::MAX_READERS;
use crate::shared_ring::{Memory, Whom, Writer};

/// Words of the ring: 4 MiB.
const RING: usize = 1 << 19;
/// The largest frame that goes through the ring, in bytes; larger ones take the connections.
pub(super) const INLINE: usize = 64 << 10;
/// How long aborted workers have to leave after the limit.
const GRACE: Duration = Duration::from_millis(500);
/// How long killed ones may take to end.
const KILL: Duration = Duration::from_secs(5);

/// What a [`ProcessLane`] is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is started for each worker.
    pub launch: Launch,
    /// How workers behave.
    pub config: WorkerConfig,
    /// Commands go through shared memory. If not, or where there is none, they go over the connections.
    pub ring: bool,
    /// How long workers may take to start.
    pub start: Duration,
    /// How long a worker may be silent; it says something five times as often.
    pub silence: Duration,
}

/// The lane to workers that are processes of this machine. Dropping it lets them go: they leave at the next opportunity,
/// or are killed after 5 s, and nobody waits for them.
pub struct ProcessLane {
    workers: Range<WorkerId>,
    options: Options,
    shared: Arc<Shared>,
    started: OnceLock<Crew>,
}

/// The workers of a lane that was started.
struct Crew {
    roster: Arc<Roster>,
    service: Mutex<Option<(JoinHandle<()>, Output)>>,
}

impl Options {
    /// This program once more for each worker, the ring, 30 s to start, 5 s of silence.
    pub fn new(config: WorkerConfig) -> Self {
        let (start, silence) = (Duration::from_secs(30), Duration::from_secs(5));
        Self { launch: Launch::this_program(), config, ring: true, start, silence }
    }
}

impl ProcessLane {
    /// Makes a lane to `workers`, which [starts](Channel::start) a process for each; those share `shared` with the workers
    /// of other lanes.
    pub fn new(workers: Range<WorkerId>, shared: Arc<Shared>, options: Options) -> Self {
        Self { workers, options, shared, started: OnceLock::new() }
    }

    fn crew(&self) -> Result<&Crew> {
        self.started.get().ok_or_else(|| self.error("was not started"))
    }

    fn error(&self, why: &str) -> Error {
        Error::invalid(format!("{}: {why}", self.name()))
    }

    fn name(&self) -> String {
        let (start, end) = (self.workers.start.index(), self.workers.end.index());
        format!("lane to the processes of workers {start}..{end}")
    }

    /// The ring's memory, unless it is not wanted or there is none.
    fn ring(&self, readers: usize) -> Option<(Arc<Segment>, Writer)> {
        let make = || {
            let segment = Arc::new(Segment::create(8 * Memory::words(readers, RING))?);
            let memory = Memory::new(segment.clone(), readers, RING)?;
            Ok::<_, Error>((segment, Writer::new(memory)))
        };
        let made = self.options.ring.then(make)?;
        made.inspect_err(|error| tracing::warn!(%error, "commands go over sockets")).ok()
    }

    fn launch(&self, count: usize, inbox: Arc<dyn Inbox>) -> Result<Crew> {
        let refused = |error: std::io::Error| self.error(&format!("the system refuses: {error}"));
        let (waker, door) = (Arc::new(Waker::new().map_err(refused)?), Door::open().map_err(refused)?);
        let (segment, writer) = self.ring(count).unzip();
        let roster = Arc::new(Roster::new(self.workers.clone(), waker, writer));
        let (mut peers, mut pipes, mut failed) = (Vec::new(), Vec::new(), None);
        for index in 0..count {
            let worker = roster.worker(index);
            let invitation = Invitation { worker, socket: door.name.clone(), token: door.token.clone() };
            let started = match self.options.launch.start(&invitation) {
                Ok(mut started) => {
                    pipes.extend(started.output.take().into_iter().flatten());
                    Some(started)
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            };
            peers.push(Peer::started(index, worker, started));
        }
        let (tell, told) = mpsc::channel();
        // The place is each one's own.
        let ring = segment.is_some().then_some(RingPlace { reader: 0, readers: count, capacity: RING });
        let service = Service {
            roster: roster.clone(),
            inbox,
            shared: self.shared.clone(),
            peers,
            door: Some(door),
            welcome: Welcome { config: self.options.config, ring, heartbeat: self.options.silence / 5 },
            ring: segment,
            ready: Some(tell),
            start_limit: self.options.start,
            silence: self.options.silence,
        };
        let output = Output::start(pipes).map_err(refused)?;
        let thread = thread::Builder::new().name("disco-service".into()).spawn(|| service.run()).map_err(refused)?;
        let crew = Crew { roster, service: Mutex::new(Some((thread, output))) };
        let ready = match failed {
            Some(error) => Err(error),
            None => told.recv().unwrap_or_else(|_| Err(self.error("its service thread has ended"))),
        };
        match ready {
            Ok(()) => Ok(crew),
            Err(error) => {
                crew.kill();
                crew.join();
                Err(error)
            }
        }
    }
}

impl Crew {
    /// Passes a frame on, for which there is room.
    fn pass(&self, frame: &Frame, bytes: &[u8]) -> Result<()> {
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
        let nobody = WorkerId::new(u32::MAX);
        let rest = Frame::new(frame.seq(), frame.freed().iter().copied(), Command::SyncWorker { worker: nobody });
        let record = [&reader.to_ne_bytes()[..], rest.bytes()?].concat();
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
                self.roster.seat(index).count(bytes.len());
                self.send(index, &packet);
            }
        }
        Ok(())
    }

    /// Sends a packet to a worker, unless it has left. One that does not take it is given up.
    fn send(&self, index: usize, packet: &Arc<[u8]>) {
        if self.roster.exits.has_left(index) {
            return;
        }
        if let Err(error) = self.roster.seat(index).send(packet) {
            self.roster.refused(index, &error);
        }
    }

    fn urge(&self, message: &Message) -> Result<()> {
        let packet = message.encode()?.into();
        (0..self.roster.len()).for_each(|index| self.send(index, &packet));
        Ok(())
    }

    /// Tells everybody to leave, now.
    fn let_go(&self) -> Result<()> {
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
    fn dismiss(&self, limit: Duration) -> Result<Vec<usize>> {
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
        match join::within(thread, KILL) {
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

#[async_trait]
impl Channel for ProcessLane {
    fn workers(&self) -> Range<WorkerId> {
        self.workers.clone()
    }

    /// Starts the processes, and waits until all have come.
    ///
    /// # Errors
    /// It was started before, there are no workers or more than [`MAX_READERS`]; a process can't be started, ends, is
    /// another program or does not come in time: which worker, and why. Those that were started are killed.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let count = self.workers.end.index().saturating_sub(self.workers.start.index());
        if !(1..=MAX_READERS).contains(&count) {
            return Err(self.error(&format!("1 to {MAX_READERS} workers are possible")));
        }
        if self.started.get().is_some() {
            return Err(self.error("was started before"));
        }
        let crew = self.launch(count, inbox)?;
        self.started.set(crew).map_err(|_| self.error("was started before"))
    }

    fn crosses(&self) -> bool {
        true
    }

    fn room(&self) -> usize {
        self.started.get().map_or(0, |crew| crew.roster.room(INLINE))
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        let crew = self.crew()?;
        if crew.roster.closed.load(Ordering::Acquire) {
            return Err(Error::Closed(self.name()));
        }
        let bytes = frame.bytes()?;
        if crew.roster.room(INLINE) == 0 {
            return Err(self.error("is full"));
        }
        if matches!(frame.command(), Command::Shutdown) {
            crew.roster.leave();
        }
        crew.pass(frame, bytes)
    }

    fn urgent(&self, signal: Signal) -> Result<()> {
        let crew = self.crew()?;
        match signal {
            Signal::Abort { epoch, cause } => crew.urge(&Message::Abort { epoch, cause }),
            Signal::Shutdown => crew.let_go(),
            other => Err(self.error(&format!("can't pass on {other:?}"))),
        }
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        let index = worker.index().checked_sub(self.workers.start.index());
        let crew = self.started.get().zip(index).filter(|(crew, index)| *index < crew.roster.len());
        crew.map(|(crew, index)| crew.roster.seat(index).progress().clone()).unwrap_or_default()
    }

    /// Blocks the calling thread rather than the task: no timer here could wake a task. Workers that have not left in time
    /// are killed.
    async fn close(&self, limit: Duration) -> Result<()> {
        let Some(crew) = self.started.get() else { return Ok(()) };
        let worker = |index| crew.roster.worker(index);
        let stuck: Vec<String> = crew
            .dismiss(limit)?
            .into_iter()
            .map(worker)
            .map(|w| format!("{w} ({}; killed)", self.progress(w)))
            .collect();
        match stuck.is_empty() {
            true => Ok(()),
            false => Err(Error::Stuck { workers: stuck.join(", "), after: limit }),
        }
    }
}

impl fmt::Debug for ProcessLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLane").field("workers", &self.workers).finish_non_exhaustive()
    }
}
