//! The generic lane to remote workers.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use disco_core::channel::{
    FrameSize, LaneFacts, Polled, Progress, SMALL_FRAME, SendsAhead, Signal, StartsWorkers, SubsetPart,
};
use disco_core::error::LossCause;
use disco_core::link::Shared;
use disco_core::status::Status;
use disco_core::store::SharedStore;
use disco_core::wire::{Pieces, Transfer, TransferBudget};
use disco_core::{Channel, Command, Error, Frame, Inbox, Result, Value, WorkerId, WorkerRange, sync};
use disco_engine::controller::{Controller, Event, FULL_BATCH_BYTES, pack, pack_after, pack_beside};

use super::frames::{LARGE_FLAG, MAX_INLINE_BYTES};
use super::ring::{self, Ring};
use crate::remote::open_files;
use crate::remote::reactor::Served;
use crate::shared_ring::{WakeTarget, Writer};

// `pack` returns each frame that is too large for the ring.
const _: () = assert!(FULL_BATCH_BYTES <= MAX_INLINE_BYTES);

/// Starts the peers of a lane: worker processes or nodes. Only the options of these lanes implement it.
pub trait Peers: Sized + Send + Sync + 'static {
    /// The peers' name in messages: `processes` or `nodes`.
    const NAME: &'static str;
    /// Whether the peers may be on other machines.
    const SPAN_MACHINES: bool = false;

    /// Checks that the peers of `part`, some of all `workers`, can be replaced, and can leave while the others stay.
    ///
    /// # Errors
    /// The reason why not.
    fn check_part(&self, workers: WorkerRange, _part: WorkerRange) -> Result<(), String> {
        Err(format!("the lane to {workers} starts no workers"))
    }

    /// The peers of `part`, some of all `workers`, for lanes to new workers in their places.
    ///
    /// # Errors
    /// As [`StartsWorkers::replacement`].
    fn of_part(&self, workers: WorkerRange, part: WorkerRange) -> Result<Vec<(WorkerRange, Self)>> {
        Err(Error::state(self.check_part(workers, part).err().unwrap_or_default()))
    }

    /// Checks at intervals that the start of `workers` can still succeed.
    ///
    /// # Errors
    /// The reason why it fails.
    fn check_start(&self, workers: WorkerRange) -> Result<()> {
        let _ = workers;
        Ok(())
    }

    /// See [`LaneFacts::value_limit`].
    fn value_limit(&self) -> usize;

    /// See [`LaneFacts::is_entrance`].
    fn is_entrance(&self) -> bool {
        false
    }

    /// Whether the status of the session lists the peers as nodes, if they are nodes.
    fn has_nodes(&self) -> bool {
        true
    }

    /// Adds what is not known of single peers.
    fn describe(&self, status: &mut Status) {
        _ = status;
    }

    /// The peers of a part of a subset, in the processes of these peers.
    ///
    /// # Errors
    /// As [`StartsWorkers::subset`].
    fn of_subset(&self, part: &SubsetPart) -> Result<Self> {
        let _ = part;
        Err(Error::invalid("their lane starts no workers in their processes"))
    }

    /// Begins to start the peers of `workers`, which share `shared`.
    ///
    /// # Errors
    /// The number of workers does not fit, or a peer can't be started. All peers have ended then.
    fn bring_up(&self, workers: WorkerRange, shared: Arc<Shared>, inbox: Arc<dyn Inbox>) -> Result<Running>;
}

/// A lane to remote workers. Dropping the lane tells the workers to end, and returns at once.
pub struct RemoteLane<P> {
    workers: WorkerRange,
    peers: P,
    shared: Arc<Shared>,
    running: OnceLock<Running>,
    /// The lane was closed, perhaps while it started.
    is_closed: Mutex<bool>,
    /// Limits the bytes of tensors that are sent ahead of their frames.
    budget: Arc<TransferBudget>,
}

/// A lane whose peers start or have started.
pub struct Running {
    served: Served,
    /// Carries frames of up to 64 KiB. Larger frames, and all frames without a ring, go over the connections.
    ring: Option<Arc<Ring>>,
    inbox: Arc<dyn Inbox>,
}

impl<P: Peers> RemoteLane<P> {
    /// Makes a lane to `workers`. [`Channel::start`] starts them as `options` say. The workers share `shared` with
    /// those of other lanes.
    pub fn new(workers: WorkerRange, shared: Arc<Shared>, options: P) -> Self {
        let (running, is_closed, budget) = (OnceLock::new(), Mutex::default(), Arc::default());
        Self { workers, peers: options, shared, running, is_closed, budget }
    }

    fn running(&self) -> Result<&Running> {
        self.running.get().ok_or_else(|| self.error("the lane was not started"))
    }

    fn error(&self, why: &str) -> Error {
        Error::state(format!("{}: {why}", self.name()))
    }

    fn name(&self) -> String {
        format!("lane to the {} of workers {:?}", P::NAME, self.workers.indices())
    }

    /// The frame as this lane sends it: a no-op in place of a large value for a worker of another lane.
    fn own_part(&self, frame: &Arc<Frame>) -> Arc<Frame> {
        let is_elsewhere =
            matches!(frame.command(), Command::DebugSet { worker, .. } if !self.workers.contains(*worker));
        let bytes: usize = frame.command().values().iter().map(Value::payload_len).sum();
        if is_elsewhere && bytes > SMALL_FRAME { Arc::new(frame.as_noop()) } else { frame.clone() }
    }

    fn send_over_connections(&self, Running { served, .. }: &Running, frame: &Frame) -> Result<()> {
        // Encoded before the engine is locked: the reactor thread needs the lock for heartbeats.
        let packed = pack_after(frame).and_then(|packed| packed.map_or_else(|| pack(frame), |packed| Ok(Some(packed))));
        served.with(|engine, now| {
            engine.check(|| self.name())?;
            engine.note_effect(frame.command());
            engine.submit_packed(frame, packed?, now)
        })
    }

    fn send_by_ring(&self, running: &Running, ring: &Ring, frame: &Frame) -> Result<()> {
        let target = WakeTarget::of(frame.command(), self.workers);
        // Copied before the ring is locked.
        let beside = pack_beside(frame)?;
        let bytes = if beside.is_none() { frame.bytes() } else { Ok(&[][..]) };
        let mut writer = ring.lock();
        if running.room_in(&mut writer) == 0 {
            running.served.read(|engine| engine.check(|| self.name()))?;
            return Err(self.error("the lane is full"));
        }
        let bytes = running.served.change(|engine| {
            engine.check(|| self.name())?;
            engine.note_effect(frame.command());
            bytes
        })?;
        if beside.is_none() && bytes.len() <= MAX_INLINE_BYTES {
            ring.send(&mut writer, frame.seq(), bytes, target, &running.served)
        } else {
            let (record, target) = ring::placeholder(frame, target, self.workers.len())?;
            let load = if beside.is_some() { beside } else { pack(frame)? };
            if let Some(load) = load {
                running.served.with(|engine, _| match target {
                    WakeTarget::All => engine.post(&load, None),
                    WakeTarget::One(peer) => engine.post(&load, Some(peer)),
                    WakeTarget::Nobody => {}
                });
            }
            ring.send(&mut writer, frame.seq() | LARGE_FLAG, &record, target, &running.served)
        }
    }
}

impl<P: Peers> Channel for RemoteLane<P> {
    fn facts(&self) -> LaneFacts {
        let mut facts = LaneFacts::new(self.workers);
        (facts.needs_bytes, facts.spans_machines) = (true, P::SPAN_MACHINES);
        (facts.value_limit, facts.is_entrance) = (self.peers.value_limit(), self.peers.is_entrance());
        facts.shares_memory = self.running.get().is_some_and(|running| running.ring.is_some());
        facts
    }

    /// Starts the peers, and blocks until all workers have started.
    ///
    /// # Errors
    /// The lane was started before; the number of workers does not fit; or a peer can't be started, ends, runs another
    /// program or does not join in time (the error names it and the reason).
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let twice = || self.error("the lane was started before");
        if self.running.get().is_some() {
            return Err(twice());
        }
        open_files::raise_limit();
        let running = self.peers.bring_up(self.workers, self.shared.clone(), inbox);
        let running = open_files::explained(running, self.workers.len())?;
        self.running.set(running).map_err(|_| twice())?;
        let running = self.running()?;
        // Another thread that closes the lane sees `running`, or this one sees that the lane is closed.
        if *sync::lock(&self.is_closed) {
            _ = running.served.close(Duration::ZERO);
        }
        let started = running.served.wait_for_start(|| self.peers.check_start(self.workers));
        open_files::explained(started, self.workers.len())
    }

    fn room(&self, size: FrameSize) -> usize {
        let credit = match size {
            FrameSize::Small => Controller::room_for_small,
            FrameSize::Large => Controller::room,
        };
        self.running.get().map_or(0, |running| running.room(credit))
    }

    fn sent_bytes(&self) -> Option<u64> {
        let running = self.running.get()?;
        let by_ring = running.ring.as_ref().map_or(0, |ring| ring.lock().written_bytes());
        Some(by_ring + running.served.sent_bytes())
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        let running = self.running()?;
        let frame = self.own_part(frame);
        match &running.ring {
            Some(ring) => self.send_by_ring(running, ring, &frame),
            None => self.send_over_connections(running, &frame),
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let running = self.running()?;
        // Results of a running call that are dropped cancel it.
        running.served.owner().check()?;
        if let (Signal::Collect { last }, Some(ring)) = (&signal, &running.ring) {
            ring.collect(&*running.inbox, *last);
            return Ok(());
        }
        running.served.signal(signal).map_err(|why| self.error(&why))
    }

    fn store(&self) -> Option<Arc<dyn SharedStore>> {
        Some(self.shared.store().clone())
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        self.running.get().map(|it| it.served.progress(worker)).unwrap_or_default()
    }

    fn describe(&self, status: &mut Status) {
        let running = self.running.get();
        let now = Instant::now();
        let known = |worker| running.map(|it| it.served.read(|engine| engine.known(worker, now))).unwrap_or_default();
        status.add_workers(P::NAME, self.workers, known);
        if self.peers.has_nodes() {
            status.nodes.extend(running.into_iter().flat_map(|it| it.served.nodes()));
        }
        status.spares.extend(running.into_iter().flat_map(|it| it.served.spares()));
        self.peers.describe(status);
    }

    fn ahead(&self) -> Option<&dyn SendsAhead> {
        self.running.get().filter(|running| running.ring.is_none()).map(|_| self as &dyn SendsAhead)
    }

    fn polled(&self) -> Option<&dyn Polled> {
        self.running.get().filter(|running| running.ring.is_some()).map(|running| running as &dyn Polled)
    }

    fn starts(&self) -> Option<&dyn StartsWorkers> {
        Some(self)
    }

    /// After `limit`, nodes are told to end at once, and worker processes are killed. A lane that starts gives up at once.
    fn close(&self, limit: Duration) -> Result<()> {
        *sync::lock(&self.is_closed) = true;
        self.running.get().map_or(Ok(()), |running| running.served.close(limit))
    }
}

impl<P: Peers> SendsAhead for RemoteLane<P> {
    fn send_ahead(&self, to: Option<WorkerId>, transfer: &Arc<Transfer>, content: &Arc<Pieces>) -> Result<bool> {
        let running = self.running()?;
        if !self.budget.reserve(transfer, self.peers.value_limit()) {
            return Ok(false);
        }
        running.served.with(|engine, _| {
            // A full lane takes transfers: they are no frames.
            engine.check_open(|| self.name())?;
            engine.send_ahead(to, transfer, Some(content));
            Ok(true)
        })
    }

    fn withdraw(&self, to: Option<WorkerId>, transfer: &Arc<Transfer>) {
        if let Some(running) = self.running.get().filter(|running| running.served.owner().is_here()) {
            running.served.with(|engine, _| engine.send_ahead(to, transfer, None));
        }
    }
}

impl<P: Peers> StartsWorkers for RemoteLane<P> {
    fn replacement(&self, workers: WorkerRange) -> Result<Vec<Arc<dyn Channel>>> {
        let parts = self.peers.of_part(self.workers, workers)?.into_iter();
        Ok(parts.map(|(part, peers)| Arc::new(Self::new(part, self.shared.clone(), peers)) as _).collect())
    }

    fn subset(&self, part: &SubsetPart) -> Result<Arc<dyn Channel>> {
        let peers = self.peers.of_subset(part)?;
        Ok(Arc::new(Self::new(part.workers, part.shared.clone(), peers)))
    }

    fn check_leave(&self, workers: WorkerRange) -> Result<()> {
        let refused = |why| Error::state(format!("resize: workers can't leave: {why}"));
        self.peers.check_part(self.workers, workers).map_err(refused)
    }

    fn end(&self, workers: WorkerRange) {
        if let Some(running) = self.running.get() {
            running.served.with(|engine, now| engine.end(workers, now));
        }
    }
}

impl Polled for Running {
    fn note_caller(&self, polls: bool) {
        if let Some(ring) = &self.ring {
            ring.replies().note_caller(polls);
        }
    }

    fn poll(&self) {
        if let Some(ring) = &self.ring {
            ring.replies().poll(&*self.inbox);
        }
    }
}

impl Running {
    pub(crate) fn new(served: Served, ring: Option<Arc<Ring>>, inbox: Arc<dyn Inbox>) -> Self {
        Self { served, ring, inbox }
    }

    /// Frames that the lane would take now: the least of credit and room in the ring.
    fn room(&self, credit: impl FnOnce(&Controller) -> usize) -> usize {
        let credit = self.served.read(credit);
        match &self.ring {
            Some(ring) if credit > 0 => credit.min(self.room_in(&mut ring.lock())),
            _ => credit,
        }
    }

    fn room_in(&self, writer: &mut Writer) -> usize {
        ring::room(writer, |reader, garbage| {
            let why = LossCause::ProtocolViolation(format!("it put garbage into the ring: {}", garbage.0));
            self.served.with(|engine, now| engine.handle(Event::Accused(reader, why), now));
        })
    }
}

impl<P: Peers> fmt::Debug for RemoteLane<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteLane").field(&P::NAME).field(&self.workers).finish()
    }
}
