//! A lane to threads that die on request, and to threads that replace them.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disco_channel::threads::ThreadLane;
use disco_core::channel::{Endpoint, FrameSize, LaneFacts, Progress, Reply, Signal, StartsWorkers};
use disco_core::link::{Link, Shared};
use disco_core::status::Status;
use disco_core::worker::{self, WorkerConfig};
use disco_core::{Channel, Error, Frame, Inbox, Result, WorkerId, WorkerRange};
use disco_testing::random::Random;

/// Places that a session may use up.
const PLACES: usize = 8192;

/// Decides when workers die, and which starts fail.
#[derive(Debug)]
pub(crate) struct Fate {
    /// For each place the number of commands that its worker still takes.
    left: Vec<AtomicU64>,
    /// Whether starts of new workers may fail, and new workers die at once.
    pub(crate) is_hard: AtomicBool,
    /// Whether no worker can be replaced.
    pub(crate) refuses: AtomicBool,
    random: Mutex<Random>,
    /// How many workers have each place now.
    present: Vec<AtomicU64>,
}

impl Fate {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            left: (0..PLACES).map(|_| AtomicU64::new(u64::MAX)).collect(),
            is_hard: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            random: Mutex::new(Random::new(seed)),
            present: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// One of the workers that are there dies after so many commands more.
    pub(crate) fn kill(&self, random: &mut Random, commands: u64) {
        let there: Vec<usize> = (0..PLACES).filter(|place| self.present[*place].load(Ordering::SeqCst) > 0).collect();
        if !there.is_empty() {
            self.left[there[random.below(there.len())]].store(commands, Ordering::SeqCst);
        }
    }

    /// The worker with this place dies at its next command.
    pub(crate) fn kill_at(&self, place: usize) {
        self.left[place].store(0, Ordering::SeqCst);
    }

    pub(crate) fn chance(&self, one_of: usize) -> bool {
        self.is_hard.load(Ordering::Relaxed) && self.random.lock().unwrap().below(one_of) == 0
    }
}

/// The lane.
pub(crate) struct Mortal {
    inner: ThreadLane,
    fate: Arc<Fate>,
    config: WorkerConfig,
}

impl Mortal {
    pub(crate) fn new(workers: WorkerRange, config: WorkerConfig, fate: &Arc<Fate>) -> Self {
        let at_worker = fate.clone();
        let run = move |worker: WorkerId, endpoint| {
            let before = at_worker.present[worker.index()].fetch_add(1, Ordering::SeqCst);
            assert_eq!(before, 0, "two workers in the place of {worker}");
            let ended =
                worker::run(worker, config, MortalEndpoint { inner: endpoint, worker, fate: at_worker.clone() });
            at_worker.present[worker.index()].fetch_sub(1, Ordering::SeqCst);
            ended
        };
        Self { inner: ThreadLane::new(workers, Arc::new(Shared::default()), run), fate: fate.clone(), config }
    }
}

impl Channel for Mortal {
    fn facts(&self) -> LaneFacts {
        self.inner.facts()
    }

    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        if self.fate.chance(5) {
            return Err(Error::state("no machine is free"));
        }
        if self.fate.chance(5) {
            return Err(Error::Aborted { cause: "the machine is lost".into() });
        }
        for worker in self.facts().workers {
            let lives = if self.fate.chance(5) { self.fate.random.lock().unwrap().below(4) as u64 } else { u64::MAX };
            self.fate.left[worker.index()].store(lives, Ordering::SeqCst);
        }
        self.inner.start(inbox)
    }

    fn room(&self, size: FrameSize) -> usize {
        self.inner.room(size)
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        self.inner.send(frame)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.inner.signal(signal)
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        self.inner.progress(worker)
    }

    fn describe(&self, status: &mut Status) {
        self.inner.describe(status);
    }

    fn close(&self, limit: Duration) -> Result<()> {
        self.inner.close(limit)
    }

    fn starts(&self) -> Option<&dyn StartsWorkers> {
        Some(self)
    }
}

impl StartsWorkers for Mortal {
    fn replacement(&self, workers: WorkerRange) -> Result<Vec<Arc<dyn Channel>>> {
        if self.fate.refuses.load(Ordering::Relaxed) || self.fate.chance(7) {
            return Err(Error::state("no place is free"));
        }
        let parts = workers.chunks(if self.fate.chance(2) { 1 } else { workers.len() });
        Ok(parts.map(|part| Arc::new(Self::new(part, self.config, &self.fate)) as _).collect())
    }
}

impl fmt::Debug for Mortal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mortal").field(&self.facts().workers).finish()
    }
}

/// Ends the worker when its commands are used up.
struct MortalEndpoint<E> {
    inner: E,
    worker: WorkerId,
    fate: Arc<Fate>,
}

impl<E: Endpoint> Endpoint for MortalEndpoint<E> {
    fn recv(&mut self) -> Result<&Frame> {
        let left = &self.fate.left[self.worker.index()];
        let frame = self.inner.recv()?;
        match left.load(Ordering::SeqCst) {
            u64::MAX => {}
            0 => return Err(Error::state("killed")),
            more => left.store(more - 1, Ordering::SeqCst),
        }
        Ok(frame)
    }

    fn reply(&mut self, seq: u64, reply: Reply) -> Result<()> {
        self.inner.reply(seq, reply)
    }

    fn link(&self) -> Arc<Link> {
        self.inner.link()
    }
}
