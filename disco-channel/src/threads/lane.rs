//! The controller's end of a thread lane.

use std::fmt;
use std::process;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use disco_core::activity::{Activity, RecorderConfig};
use disco_core::channel::{FrameSize, LaneFacts, Polled, Progress, Signal, StartsWorkers, SubsetPart};
use disco_core::link::Shared;
use disco_core::status::{Known, Status};
use disco_core::store::SharedStore;
use disco_core::worker::{self, WorkerConfig};
use disco_core::{Channel, Command, Error, Frame, Inbox, Link, Members, Result, WorkerId, WorkerRange, sync};

use super::endpoint::ThreadEndpoint;
use super::work::Run;
use super::worker_set::WorkerSet;
use crate::ring::{self, Refused, Release, WakeTarget};

/// The lane to workers that are threads of this process. Dropping the lane closes its ring and returns at once: each
/// worker ends when it next receives.
pub struct ThreadLane {
    workers: WorkerRange,
    shared: Arc<Shared>,
    recorder: RecorderConfig,
    /// Taken by `start`.
    run: Mutex<Option<Arc<Run>>>,
    /// Workers of other lanes on this machine.
    neighbours: usize,
    /// The configuration of the workers, if the lane supports subsets.
    config: Option<WorkerConfig>,
    /// The links of the workers beside which those of a subset run.
    parents: Vec<Arc<Link>>,
    /// The workers of the session since its last resize.
    members: Mutex<Option<Arc<Members>>>,
    worker_set: OnceLock<WorkerSet>,
}

impl ThreadLane {
    /// Makes a lane to `workers`. [`Channel::start`] starts a thread for each worker, named like `disco-worker-3`, that
    /// calls `run` with the worker's id and its end of the lane.
    ///
    /// `run` must return when its endpoint is closed or after [`Command::Shutdown`]. A worker whose `run` returns
    /// earlier, returns an error or panics is reported as [lost](Inbox::lost). Links of the workers use `shared`. The
    /// lane owns the inbox, so the inbox must not own the lane.
    pub fn new<F>(workers: WorkerRange, shared: Arc<Shared>, run: F) -> Self
    where
        F: Fn(WorkerId, ThreadEndpoint) -> Result<()> + Send + Sync + 'static,
    {
        let (run, recorder) = (Mutex::new(Some(Arc::new(run) as Arc<Run>)), RecorderConfig::DEFAULT);
        let (neighbours, config, parents, members, worker_set) = Default::default();
        Self { workers, shared, recorder, neighbours, config, parents, members, run, worker_set }
    }

    /// Makes a lane to `workers`, each of which [runs](worker::run) with `config`. The lane supports subsets.
    pub fn to_workers(workers: WorkerRange, shared: Arc<Shared>, config: WorkerConfig) -> Self {
        let kept = shared.clone();
        let lane = Self::new(workers, shared, move |worker, endpoint| {
            let ended = worker::run(worker, config, endpoint);
            // A worker that is a thread can't be replaced.
            kept.discard_all_of(worker);
            ended
        });
        Self { config: Some(config), ..lane.recording(config.recorder) }
    }

    /// Makes the workers those of a subset. Each runs beside the worker with one of these links.
    #[must_use]
    pub(crate) fn with_parents(self, links: Vec<Arc<Link>>) -> Self {
        Self { parents: links, ..self }
    }

    /// Sets the configuration of the workers' recorders.
    #[must_use]
    pub fn recording(self, recorder: RecorderConfig) -> Self {
        Self { recorder, ..self }
    }

    /// Tells how many workers of other lanes run on this machine. If the machine has fewer processors than workers, a
    /// worker that waits for a command yields its processor at once.
    #[must_use]
    pub fn with_neighbours(self, neighbours: usize) -> Self {
        Self { neighbours, ..self }
    }

    fn worker_set(&self) -> Result<&WorkerSet> {
        self.worker_set.get().ok_or_else(|| self.error("the lane was not started"))
    }

    /// The link of a worker of a started lane.
    fn link(&self, worker: WorkerId) -> Option<&Link> {
        let index = self.workers.position(worker)?;
        self.worker_set.get()?.links.get(index).map(|link| &**link)
    }

    fn new_link(&self, worker: WorkerId, inbox: &Arc<dyn Inbox>) -> Link {
        let inbox = inbox.clone();
        let activity = Activity::new(self.recorder);
        let link = Link::of_thread(self.shared.clone(), activity, move |notice| inbox.notice(worker, notice));
        let link = link.kept_by(self.shared.keeper_of(worker));
        match self.workers.position(worker).and_then(|index| self.parents.get(index)) {
            Some(parent) => link.in_subset_of(parent),
            None => link,
        }
    }

    fn error(&self, why: &str) -> Error {
        Error::state(format!("{}: {why}", self.name()))
    }

    fn name(&self) -> String {
        format!("lane to the threads of workers {:?}", self.workers.indices())
    }
}

impl Channel for ThreadLane {
    fn facts(&self) -> LaneFacts {
        LaneFacts::new(self.workers)
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// The lane was started before, has no workers or more than [`MAX_READERS`](ring::MAX_READERS), or a thread can't
    /// be started; threads that were already started end.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let count = self.workers.len();
        if !(1..=ring::MAX_READERS).contains(&count) {
            return Err(Error::invalid(format!("{}: a lane has 1 to {} workers", self.name(), ring::MAX_READERS)));
        }
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner).take();
        let run = run.ok_or_else(|| self.error("the lane was started before"))?;
        let workers = (self.workers, self.neighbours);
        let links = |worker| self.new_link(worker, &inbox);
        let worker_set = WorkerSet::start(workers, links, &run, &inbox)?;
        self.worker_set.set(worker_set).map_err(|_| self.error("the lane was started before"))
    }

    fn room(&self, _: FrameSize) -> usize {
        self.worker_set.get().map_or(0, |worker_set| worker_set.ring.room())
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        let worker_set = self.worker_set()?;
        match frame.command() {
            Command::Shutdown => worker_set.exits.expect_all(),
            Command::Resize { members, .. } => {
                let leaves = |(_, place): &(usize, WorkerId)| members.worker(*place).is_none();
                let leaving = self.workers.iter().enumerate().filter(leaves);
                leaving.for_each(|(index, _)| worker_set.exits.expect(index));
                *sync::lock(&self.members) = Some(members.clone());
            }
            _ => {}
        }
        let release = if frame.is_light() { Release::ByWriter } else { Release::ByLastReader };
        let target = WakeTarget::of(frame.command(), self.workers);
        sync::lock(&worker_set.frames).send_to(frame, target, release).map_err(|refused| match refused {
            Refused::Full => self.error("the lane is full"),
            Refused::Closed => Error::Closed(self.name()),
        })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let worker_set = self.worker_set()?;
        match signal {
            Signal::Abort { epoch, cause } => worker_set.links.iter().for_each(|link| link.abort(epoch, &cause)),
            Signal::Cancel { command, cause } => worker_set.links.iter().for_each(|link| link.cancel(command, &cause)),
            Signal::Settle { command, breaks } => {
                worker_set.links.iter().for_each(|link| link.settle(command, breaks.as_ref()));
            }
            Signal::Taken { worker, command, count } => {
                let link = self.workers.position(worker).and_then(|index| worker_set.links.get(index));
                link.into_iter().for_each(|link| link.note_taken(command, count));
            }
            Signal::Shutdown => worker_set.shut_down(),
            Signal::Collect { last } => worker_set.collect(self.workers, last),
            other => return Err(self.error(&format!("a thread lane does not know the signal {other:?}"))),
        }
        Ok(())
    }

    fn store(&self) -> Option<Arc<dyn SharedStore>> {
        Some(self.shared.store().clone())
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        self.link(worker).map(|link| link.activity().progress()).unwrap_or_default()
    }

    fn describe(&self, status: &mut Status) {
        status.add_workers("threads", self.workers, |worker| {
            let activity = self.link(worker).map(|link| link.activity());
            let mut known = Known::new(activity.map(|activity| activity.progress()).unwrap_or_default());
            known.place = activity.and_then(|activity| activity.thread()).map(|thread| (process::id(), thread));
            known
        });
    }

    fn polled(&self) -> Option<&dyn Polled> {
        Some(self)
    }

    fn starts(&self) -> Option<&dyn StartsWorkers> {
        Some(self)
    }

    /// Joins the threads that have ended, so that destructors of their thread-local values have run.
    fn close(&self, limit: Duration) -> Result<()> {
        let Some(worker_set) = self.worker_set.get() else { return Ok(()) };
        let stuck = worker_set.join(limit).into_iter().filter_map(|index| self.workers.get(index));
        let members = sync::lock(&self.members).clone();
        let name = |place: WorkerId| members.as_ref().map_or_else(|| place.to_string(), |members| members.name(place));
        let stuck: Vec<_> =
            stuck.map(|place| format!("{} ({}; detached)", name(place), self.progress(place))).collect();
        if stuck.is_empty() { Ok(()) } else { Err(Error::Stuck { workers: stuck.join(", "), after: limit }) }
    }
}

impl Polled for ThreadLane {
    fn note_caller(&self, polls: bool) {
        self.worker_set.get().iter().for_each(|worker_set| worker_set.replies.note_caller(polls));
    }

    fn poll(&self) {
        self.worker_set.get().iter().for_each(|worker_set| worker_set.replies.poll(&*worker_set.inbox));
    }
}

impl StartsWorkers for ThreadLane {
    fn subset(&self, part: &SubsetPart) -> Result<Arc<dyn Channel>> {
        let refused = || Error::invalid("their threads run another function than `worker::run`");
        let config = self.config.ok_or_else(refused)?;
        let links = self.worker_set()?.links.iter().zip(self.workers);
        let link = |worker: &WorkerId| links.clone().find(|(_, other)| other == worker).map(|(link, _)| link.clone());
        let parents: Option<Vec<_>> = part.parents.iter().map(link).collect();
        let parents = parents.ok_or_else(|| Error::invalid("their lane does not reach them"))?;
        let lane =
            Self::to_workers(part.workers, part.shared.clone(), config.in_subset(part.world, part.collective_deadline));
        Ok(Arc::new(lane.with_neighbours(self.workers.len() + self.neighbours).with_parents(parents)))
    }
}

impl fmt::Debug for ThreadLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = self.worker_set.get().map(|worker_set| &worker_set.ring);
        f.debug_struct("ThreadLane").field("workers", &self.workers).field("ring", &ring).finish()
    }
}
