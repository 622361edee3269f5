//! Workers that run one command at a time, when the test says so: a session over them does the same each time.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use disco_core::channel::{FrameSize, LaneFacts, Progress, Reply, Signal, StartsWorkers};
use disco_core::error::{LossCause, LostPeer};
use disco_core::{Channel, Command, Error, Frame, Inbox, RegisterId, Result, Value, WorkerId, WorkerRange};

/// All workers that have ever started, and the only thread that runs them: the one that calls [`Stage::step`].
#[derive(Default)]
pub(crate) struct Stage(Mutex<Vec<Puppet>>);

struct Puppet {
    place: WorkerId,
    inbox: Arc<dyn Inbox>,
    queue: VecDeque<Arc<Frame>>,
    registers: BTreeMap<RegisterId, Value>,
    life: Life,
    /// Whether it has a lane of its session's start.
    is_original: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Runs,
    /// It has died, and its lane has not reported that.
    Dead,
    Ended,
}

/// What a session can see of a worker.
pub(crate) struct View {
    pub(crate) is_original: bool,
    pub(crate) registers: BTreeMap<RegisterId, Value>,
}

impl Stage {
    /// The next worker with a command runs it. Returns false if there is none.
    pub(crate) fn step(&self) -> bool {
        let mut puppets = self.lock();
        let Some(puppet) = puppets.iter_mut().find(|puppet| puppet.life == Life::Runs && !puppet.queue.is_empty())
        else {
            return false;
        };
        let (frame, place, inbox) = (puppet.queue.pop_front().unwrap(), puppet.place, puppet.inbox.clone());
        let reply = puppet.run(&frame);
        let has_left = puppet.life == Life::Ended;
        drop(puppets);
        if let Some(reply) = reply {
            inbox.reply(place, frame.seq(), reply);
        }
        if has_left {
            inbox.left(place.into());
        }
        true
    }

    /// The worker with this place dies, if there is one. Its lane refuses frames, unless it has other workers, until it
    /// [reports](Self::report) that.
    pub(crate) fn kill(&self, place: WorkerId) {
        let mut puppets = self.lock();
        let alive = puppets.iter_mut().filter(|puppet| puppet.place == place && puppet.life == Life::Runs);
        alive.for_each(|puppet| (puppet.life, puppet.queue) = (Life::Dead, VecDeque::new()));
    }

    /// Lanes report all deaths.
    pub(crate) fn report(&self) {
        let mut reports = Vec::new();
        for puppet in self.lock().iter_mut().filter(|puppet| puppet.life == Life::Dead) {
            puppet.life = Life::Ended;
            reports.push((puppet.place, puppet.inbox.clone()));
        }
        for (place, inbox) in reports {
            let peer = LostPeer::Workers { workers: place.into(), node: None };
            inbox.lost(place.into(), Error::peer_lost(peer, LossCause::ConnectionClosed));
        }
    }

    /// The workers that run, by their places.
    pub(crate) fn running(&self) -> BTreeMap<WorkerId, View> {
        let puppets = self.lock();
        let running = puppets.iter().filter(|puppet| puppet.life == Life::Runs);
        let view = |puppet: &Puppet| View { is_original: puppet.is_original, registers: puppet.registers.clone() };
        running.map(|puppet| (puppet.place, view(puppet))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Puppet>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Puppet {
    fn run(&mut self, frame: &Frame) -> Option<Reply> {
        let here = self.place;
        for register in frame.freed() {
            self.registers.remove(register);
        }
        let value =
            |registers: &BTreeMap<_, _>, register| Some(Ok(registers.get(register).cloned().unwrap_or(Value::None)));
        match frame.command() {
            Command::GetGlobalFunc { register, name } => {
                self.registers.insert(*register, Value::Str(name.clone()));
                None
            }
            command @ (Command::CallPacked { register, args, .. } | Command::CallWith { register, args, .. }) => {
                self.registers.insert(*register, args[0].clone());
                (command.answers() == Some(here)).then(|| Ok(args[0].clone()))
            }
            Command::SyncAll => Some(Ok(Value::None)),
            Command::DebugSet { register, worker, value } if *worker == here => {
                self.registers.insert(*register, value.clone());
                Some(Ok(Value::None))
            }
            Command::DebugGet { register, worker } if *worker == here => value(&self.registers, register),
            Command::GetAll { register } => value(&self.registers, register),
            Command::Resize { members, .. } if members.worker(here).is_none() => {
                self.life = Life::Ended;
                None
            }
            Command::Shutdown => {
                self.life = Life::Ended;
                None
            }
            _ => None,
        }
    }
}

/// A lane to some of the workers.
pub(crate) struct Strings {
    workers: WorkerRange,
    stage: Arc<Stage>,
    is_original: bool,
    /// Its workers on the stage, once it has started.
    places: Mutex<std::ops::Range<usize>>,
}

impl Strings {
    /// A lane of the start of a session.
    pub(crate) fn first(workers: WorkerRange, stage: &Arc<Stage>) -> Arc<dyn Channel> {
        Arc::new(Self { workers, stage: stage.clone(), is_original: true, places: Mutex::default() })
    }

    /// A lane to new workers.
    pub(crate) fn more(workers: WorkerRange, stage: &Arc<Stage>) -> Arc<dyn Channel> {
        Arc::new(Self { workers, stage: stage.clone(), is_original: false, places: Mutex::default() })
    }

    fn places(&self) -> std::ops::Range<usize> {
        self.places.lock().unwrap().clone()
    }

    /// All workers of the lane end.
    fn end(&self) {
        let mut puppets = self.stage.lock();
        for puppet in &mut puppets[self.places()] {
            (puppet.life, puppet.queue) = (Life::Ended, VecDeque::new());
        }
    }
}

impl Channel for Strings {
    fn facts(&self) -> LaneFacts {
        LaneFacts::new(self.workers)
    }

    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let mut puppets = self.stage.lock();
        let begin = puppets.len();
        for place in self.workers {
            let is_taken = puppets.iter().any(|puppet| puppet.place == place && puppet.life == Life::Runs);
            assert!(!is_taken, "two workers in the place of {place}");
            puppets.push(Puppet {
                place,
                inbox: inbox.clone(),
                queue: VecDeque::new(),
                registers: BTreeMap::new(),
                life: Life::Runs,
                is_original: self.is_original,
            });
        }
        *self.places.lock().unwrap() = begin..puppets.len();
        Ok(())
    }

    fn room(&self, _: FrameSize) -> usize {
        usize::MAX
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        let mut puppets = self.stage.lock();
        let own = &mut puppets[self.places()];
        if own.iter().all(|puppet| puppet.life == Life::Dead) {
            return Err(Error::Closed("the lane".to_owned()));
        }
        let run = own.iter_mut().filter(|puppet| puppet.life == Life::Runs);
        run.for_each(|puppet| puppet.queue.push_back(frame.clone()));
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match signal {
            Signal::Collect { .. } => Err(Error::state("puppets keep no records")),
            Signal::Shutdown => {
                self.end();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn progress(&self, _: WorkerId) -> Progress {
        Progress::default()
    }

    fn close(&self, _: Duration) -> Result<()> {
        self.end();
        Ok(())
    }

    fn starts(&self) -> Option<&dyn StartsWorkers> {
        Some(self)
    }
}

impl StartsWorkers for Strings {
    fn replacement(&self, workers: WorkerRange) -> Result<Vec<Arc<dyn Channel>>> {
        Ok(vec![Self::more(workers, &self.stage)])
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Strings").field(&self.workers).finish()
    }
}
