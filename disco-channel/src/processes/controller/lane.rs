//! The lane, as a session has it.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use disco_core::channel::{Progress, Signal};
use disco_core::error::LossCause;
use disco_core::link::Shared;
use disco_core::wire::{Message, RingPlace, Welcome};
use disco_core::worker::WorkerConfig;
use disco_core::{Channel, Command, Error, Frame, Inbox, Result, WorkerId, WorkerRange};

use super::launch::Launch;
use super::output::{Output, Sink};
use super::ring::{self, CAPACITY, Ring};
use super::transport::Unix;
use crate::engine::controller::{Controller, Event, Terms};
use crate::processes::frames::{INLINE, LARGE};
use crate::processes::invitation::Invitation;
use crate::reactor::Waker;
use crate::reactor::{Lane, Reactor, Served};
use crate::ring::MAX_READERS;
use crate::shared_ring::{Whom, Writer};
use crate::{random, terminal};

/// What a [`ProcessLane`] is made of.
#[derive(Clone)]
pub struct Options {
    /// What is started for each worker.
    pub launch: Launch,
    /// How workers behave.
    pub config: WorkerConfig,
    /// Commands go through shared memory. If not, or where there is none, they go over the connections.
    pub ring: bool,
    /// How long workers may take to start.
    pub start: Duration,
    /// How often a worker says something.
    pub heartbeat: Duration,
    /// How long a worker may be silent.
    pub silence: Duration,
    /// Takes what workers print.
    pub output: Sink,
}

/// The lane to workers that are processes of this machine. Dropping it lets them go: they leave at the next opportunity,
/// or are killed after 5 s, and nobody waits for them.
pub struct ProcessLane {
    workers: WorkerRange,
    options: Options,
    shared: Arc<Shared>,
    started: OnceLock<Started>,
}

/// A lane that has come about.
struct Started {
    lane: Served,
    ring: Option<Arc<Ring>>,
}

impl Options {
    /// This program once more for each worker, the ring, 30 s to start, something said each second, 5 s of silence; what
    /// workers print is printed here, with a prefix, and on a terminal with its control characters written out.
    pub fn new(config: WorkerConfig) -> Self {
        let [start, heartbeat, silence] = [30, 1, 5].map(Duration::from_secs);
        let output =
            Arc::new(|worker: WorkerId, is_err, line: &[u8]| terminal::print(&worker.to_string(), is_err, line));
        Self { launch: Launch::this_program(), config, ring: true, start, heartbeat, silence, output }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("launch", &self.launch).field("config", &self.config).finish_non_exhaustive()
    }
}

impl ProcessLane {
    /// Makes a lane to `workers`, which [starts](Channel::start) a process for each; those share `shared` with the workers
    /// of other lanes.
    pub fn new(workers: WorkerRange, shared: Arc<Shared>, options: Options) -> Self {
        Self { workers, options, shared, started: OnceLock::new() }
    }

    fn started(&self) -> Result<&Started> {
        self.started.get().ok_or_else(|| self.error("was not started"))
    }

    /// Starts or invites so many workers, and waits until all have come.
    fn bring_up(&self, count: usize, inbox: Arc<dyn Inbox>) -> Result<Started> {
        let Options { launch, config, ring, start, heartbeat, silence, output } = &self.options;
        let refused = |error: std::io::Error| Error::system("the system refuses a lane to processes", error);
        let waker = Arc::new(Waker::new().map_err(refused)?);
        let (segment, ring) = ring.then(|| Ring::new(count)).flatten().unzip();
        let interval = (*silence / 10).clamp(Duration::from_millis(10), Duration::from_millis(200));
        let (mut transport, socket) = Unix::listen(waker.clone(), ring.clone(), interval).map_err(refused)?;
        let token: Arc<[u8]> = random::bytes::<32>().map_err(refused)?.into();
        let (mut processes, mut pipes) = (Vec::new(), Vec::new());
        for worker in self.workers {
            let invitation = Invitation { worker, socket: socket.clone(), token: token.clone() };
            // Those before it end with `processes`.
            processes.push(launch.start(&invitation, &mut pipes)?);
        }
        let place = segment.is_some().then_some(RingPlace { reader: 0, readers: count, capacity: CAPACITY });
        let welcome = Welcome { config: *config, ring: place, heartbeat: *heartbeat };
        let terms = Terms::Processes { workers: self.workers, token, welcome, start: *start, silence: *silence };
        let lane = Arc::new(Lane::new(Controller::new(terms, Instant::now()), waker, segment));
        lane.adopt(processes);
        transport.pass_on(Output::start(pipes, output.clone()).map_err(refused)?);
        let reactor = Reactor::new(lane, inbox, self.shared.clone(), count, transport);
        let lane = Served::start("disco-service", reactor).map_err(refused)?.wait_for_start()?;
        Ok(Started { lane, ring })
    }

    /// The peer that a command concerns.
    fn whom(&self, command: &Command) -> Whom {
        match command {
            Command::SyncWorker { worker } | Command::DebugGet { worker, .. } | Command::DebugSet { worker, .. } => {
                self.workers.position(*worker).map_or(Whom::Nobody, Whom::One)
            }
            Command::CopyFromWorker0 { .. } | Command::CopyToWorker0 { .. } => Whom::Nobody,
            _ => Whom::All,
        }
    }

    fn error(&self, why: &str) -> Error {
        Error::state(format!("{}: {why}", self.name()))
    }

    fn name(&self) -> String {
        format!("lane to the processes of workers {:?}", self.workers.indices())
    }
}

#[async_trait]
impl Channel for ProcessLane {
    fn workers(&self) -> WorkerRange {
        self.workers
    }

    /// Starts the processes, and waits until all have come.
    ///
    /// # Errors
    /// It was started before, there are no workers or more than [`MAX_READERS`]; a process can't be started, ends, is
    /// another program or does not come in time: which worker, and why. Those that were started are killed.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let count = self.workers.len();
        if !(1..=MAX_READERS).contains(&count) {
            return Err(Error::invalid(format!("{}: 1 to {} workers are possible", self.name(), MAX_READERS)));
        }
        if self.started.get().is_some() {
            return Err(self.error("was started before"));
        }
        let started = self.bring_up(count, inbox)?;
        self.started.set(started).map_err(|_| self.error("was started before"))
    }

    fn crosses(&self) -> bool {
        true
    }

    fn room(&self) -> usize {
        self.started.get().map_or(0, Started::room)
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        let started = self.started()?;
        let (bytes, command) = (frame.bytes(), frame.command());
        let admit = || {
            started.lane.change(|engine| {
                engine.check(|| self.name())?;
                engine.note(command);
                bytes
            })
        };
        let (seq, whom) = (frame.seq(), self.whom(command));
        let Some(ring) = &started.ring else { return started.post(seq, admit()?, Whom::All) };
        let mut writer = ring.lock();
        if started.room_in(&mut writer) == 0 {
            started.lane.look(|engine| engine.check(|| self.name()))?;
            return Err(self.error("is full"));
        }
        let bytes = admit()?;
        let sent = match bytes.len() <= INLINE {
            true => writer.send(seq, bytes, whom),
            false => {
                let (record, whom) = ring::placeholder(frame, whom, self.workers.len())?;
                started.post(seq, bytes, whom)?;
                writer.send(seq | LARGE, &record, whom)
            }
        };
        sent.map_err(|_| Error::state("the ring has no room"))
    }

    fn urgent(&self, signal: Signal) -> Result<()> {
        self.started()?.lane.signal(signal).map_err(|why| self.error(&why))
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        self.started.get().map(|it| it.lane.look(|engine| engine.progress(worker))).unwrap_or_default()
    }

    /// Blocks the calling thread rather than the task: no timer here could wake a task. Workers that have not left in time
    /// are killed.
    async fn close(&self, limit: Duration) -> Result<()> {
        self.started.get().map_or(Ok(()), |started| started.lane.close(limit))
    }
}

impl Started {
    /// Frames that would be taken now.
    fn room(&self) -> usize {
        let credit = self.lane.look(Controller::room);
        match &self.ring {
            Some(ring) if credit > 0 => credit.min(self.room_in(&mut ring.lock())),
            _ => credit,
        }
    }

    fn room_in(&self, writer: &mut Writer) -> usize {
        ring::room(writer, |reader, garbage| {
            let why = LossCause::Garbage(format!("it put garbage into the ring: {}", garbage.0));
            self.lane.with(|engine, now| engine.handle(Event::Accused(reader, why), now));
        })
    }

    /// Sends a frame over the connections of the peers that it concerns.
    fn post(&self, seq: u64, bytes: &[u8], whom: Whom) -> Result<()> {
        let packet: Arc<[u8]> = Message::Frame { seq, bytes: bytes.into() }.encode()?.into();
        let to = match whom {
            Whom::Nobody => return Ok(()),
            Whom::One(peer) => Some(peer),
            Whom::All => None,
        };
        self.lane.with(|engine, _| engine.post(&packet, bytes.len(), to));
        Ok(())
    }
}

impl fmt::Debug for ProcessLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLane").field("workers", &self.workers).finish_non_exhaustive()
    }
}
