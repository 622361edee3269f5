//! The controller's end of a lane to processes: its options and its start.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::channel::SubsetPart;
use disco_core::link::Shared;
use disco_core::status::Status;
use disco_core::wire::{RingPlace, Welcome};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Inbox, Result, WorkerId, WorkerRange};
use disco_engine::controller::{Controller, Terms};
use disco_engine::random;

use super::launch::Launch;
use super::spares::Spares;
use super::transport::Unix;
use crate::remote::lane::{CAPACITY_WORDS, Peers, RemoteLane, Ring, Running};
use crate::remote::output::{Output, Sink};
use crate::remote::processes::invitation::Invitation;
use crate::remote::reactor::{Descriptor, Lane, Reactor, Served, Waker};
use crate::ring::MAX_READERS;

use crate::remote::terminal;

/// Options of a [`ProcessLane`].
#[non_exhaustive]
#[derive(Clone)]
pub struct Options {
    /// The program that is started for each worker.
    pub launch: Launch,
    /// Configuration of the workers.
    pub config: WorkerConfig,
    /// Whether commands go through a ring in shared memory. If not, or without shared memory, they go over the
    /// connections.
    pub ring: bool,
    /// Whether worker 0 of a [session](crate::session) is a process, too, and not a thread of the controller's process.
    pub apart: bool,
    /// Timeout for workers to start and connect.
    pub start: Duration,
    /// Heartbeat interval of a worker.
    pub heartbeat: Duration,
    /// A worker that sends nothing for this long is lost.
    pub silence: Duration,
    /// Gets the lines that workers print.
    pub output: Sink,
    /// Processes that are started ahead, for lanes to new workers in the places of lost ones.
    pub spares: Option<Spares>,
    /// The lane is to new workers.
    is_replacement: bool,
}

/// The lane to workers that are processes of this machine, each of which it starts or invites. Dropping the lane tells
/// the workers to end and returns at once; workers that are left after 5 s are killed.
pub type ProcessLane = RemoteLane<Options>;

impl Options {
    /// Defaults: this program once more for each worker, the ring, start timeout 30 s, heartbeat 1 s, silence 5 s.
    /// Output of workers is printed here with a prefix, and on a terminal with control characters escaped.
    pub fn new(config: WorkerConfig) -> Self {
        let [start, heartbeat, silence] = [30, 1, 5].map(Duration::from_secs);
        let output =
            Arc::new(|worker: WorkerId, is_err, line: &[u8]| terminal::print(&worker.to_string(), is_err, line));
        let (launch, spares) = (Launch::this_program(), None);
        Self {
            launch,
            config,
            ring: true,
            apart: false,
            start,
            heartbeat,
            silence,
            output,
            spares,
            is_replacement: false,
        }
    }
}

impl Options {
    /// Options for more processes, those of `workers`.
    ///
    /// # Errors
    /// Their launcher starts processes only once.
    pub(crate) fn more(self, workers: WorkerRange) -> Result<Self> {
        if self.launch.is_repeatable(workers) {
            Ok(self)
        } else {
            Err(Error::state("resize: the launcher of the workers starts processes only once; start a new session"))
        }
    }
}

disco_core::format_as!(Debug for Options, |it| "Options {{ launch: {:?}, config: {:?}, .. }}", it.launch, it.config);

impl Peers for Options {
    const NAME: &'static str = "processes";

    fn value_limit(&self) -> usize {
        self.config.value_limit
    }

    fn check_part(&self, _: WorkerRange, part: WorkerRange) -> Result<(), String> {
        if self.launch.is_in_subset() {
            return Err(
                "workers of a subset run in the processes of its parent session; replace those, and start another \
                        subset"
                    .to_owned(),
            );
        }
        if self.launch.is_repeatable(part) {
            Ok(())
        } else {
            Err("their launcher starts processes only once; a new session can have other workers".to_owned())
        }
    }

    fn of_part(&self, workers: WorkerRange, part: WorkerRange) -> Result<Vec<(WorkerRange, Self)>> {
        self.check_part(workers, part).map_err(Error::State)?;
        Ok(vec![(part, Self { is_replacement: true, ..self.clone() })])
    }

    fn describe(&self, status: &mut Status) {
        // Lanes to new workers have the same ones.
        if let Some(spares) = self.spares.as_ref().filter(|_| status.spares.is_empty()) {
            status.spares = spares.status();
        }
    }

    fn of_subset(&self, part: &SubsetPart) -> Result<Self> {
        let invite = part.invite.clone();
        let launch = Launch::in_subset(move |invitation| invite(invitation.worker, invitation.text().into_bytes()));
        let config = self.config.in_subset(part.world, part.collective_deadline);
        Ok(Self { launch, config, spares: None, is_replacement: false, ..self.clone() })
    }

    fn bring_up(&self, workers: WorkerRange, shared: Arc<Shared>, inbox: Arc<dyn Inbox>) -> Result<Running> {
        let Self { launch, config, ring, start, heartbeat, silence, output, .. } = self;
        let count = workers.len();
        if !(1..=MAX_READERS).contains(&count) {
            return Err(Error::invalid(format!("a lane to processes has 1 to {MAX_READERS} workers, not {count}")));
        }
        let refused = |error: io::Error| Error::system("the system refuses a lane to processes", error);
        let waker = Arc::new(Waker::new().map_err(refused)?);
        let (segment, ring) = ring.then(|| Ring::new(workers, config.recorder)).flatten().unzip();
        let interval = (*silence / 10).clamp(Duration::from_millis(10), Duration::from_millis(200));
        let (mut transport, socket) = Unix::listen(waker.clone(), ring.clone(), interval).map_err(refused)?;
        let token: Arc<[u8]> = random::bytes::<32>().map_err(refused)?.into();
        let (mut processes, mut pipes) = (Vec::new(), Vec::new());
        for worker in workers {
            let invitation = Invitation { worker, socket: socket.clone(), token: token.clone() };
            let spares = self.spares.iter().filter(|_| self.is_replacement);
            let spare = spares.filter_map(|spares| spares.take(&invitation, &mut pipes)).next();
            // If this one can't be started, dropping `processes` kills those before it.
            processes.push(spare.map_or_else(|| launch.start(&invitation, &mut pipes), Ok)?);
        }
        let place = segment.is_some().then_some(RingPlace { reader: 0, readers: count, capacity: CAPACITY_WORDS });
        let welcome = Welcome { config: *config, ring: place, heartbeat: *heartbeat };
        let terms = Terms::Processes { workers, token, welcome, start: *start, silence: *silence };
        let controller = Controller::new(terms, Instant::now());
        let controller = if launch.is_in_subset() { controller.in_subset() } else { controller };
        let lane = Arc::new(Lane::new(controller, waker, segment.map(|segment| segment as Descriptor)));
        lane.adopt(processes);
        let (numbers, output) = (inbox.clone(), output.clone());
        let print: Sink = Arc::new(move |worker, is_err, line: &[u8]| output(numbers.number(worker), is_err, line));
        transport.pass_on(Output::start(pipes, print).map_err(refused)?);
        let reactor = Reactor::new(lane, inbox.clone(), shared, count, transport);
        let served = Served::start("disco-service", reactor).map_err(refused)?;
        Ok(Running::new(served, ring, inbox))
    }
}
