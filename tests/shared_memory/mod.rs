//! Workers that are threads of this process, whose data plane is that of workers in processes of their own.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use disco::activity::Activity;
use disco::backend::Rendezvous;
use disco::channel::{Notice, Reply};
use disco::link::{Shared, SharedFd};
use disco::session::{Deadlines, LaneSession};
use disco::worker::{self, WorkerConfig};
use disco::{
    Abort, Backend, Channel, Communicator, Endpoint, Frame, Link, Probe, Result, Seat, Session, Store, Unavailable,
    WorkerId, World,
};
use disco_channel::threads::ThreadLane;
use disco_conformance::{Harness, Wish};
use disco_core::shared_memory::Arena;

/// `local` for tensors in shared memory.
#[derive(Debug)]
pub(crate) struct InArenas;

/// `local` for tensors that the other ranks can't reach.
#[derive(Debug)]
pub(crate) struct Private;

/// The backend for it: workers make their tensors without an arena, and connect with one.
#[derive(Debug)]
struct Local;

static LOCAL: Local = Local;

disco::register_backend!(LOCAL);

/// A link or an endpoint that has an arena.
#[derive(Debug)]
struct WithArena<T: ?Sized> {
    arena: Arc<Arena>,
    inner: T,
}

impl Harness for InArenas {
    fn name(&self) -> &str {
        "local-shared"
    }

    fn backend(&self) -> &str {
        "local"
    }

    fn worlds(&self) -> Vec<World> {
        worlds()
    }

    fn start(&self, wish: &Wish) -> Result<Box<dyn Session>> {
        start(wish, |worker, config, inner| worker::run(worker, config, WithArena { arena: Arena::new()?, inner }))
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn detects_mismatches(&self) -> bool {
        true
    }
}

impl Harness for Private {
    fn name(&self) -> &str {
        "local-private"
    }

    fn backend(&self) -> &str {
        LOCAL.name()
    }

    fn worlds(&self) -> Vec<World> {
        worlds()
    }

    fn start(&self, wish: &Wish) -> Result<Box<dyn Session>> {
        start(wish, worker::run)
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn detects_mismatches(&self) -> bool {
        true
    }
}

fn worlds() -> Vec<World> {
    [(2, 1), (3, 1), (4, 2)].map(|(workers, groups)| World::new(workers, groups).unwrap()).to_vec()
}

fn start<F>(wish: &Wish, run: F) -> Result<Box<dyn Session>>
where
    F: Fn(WorkerId, WorkerConfig, disco_channel::threads::ThreadEndpoint) -> Result<()> + Send + Sync + 'static,
{
    let mut config = WorkerConfig::new(wish.world);
    config.check = wish.check;
    config.collective_deadline = wish.collective_deadline;
    let mut deadlines = Deadlines::default();
    deadlines.collective = deadlines.collective.max(config.collective_deadline + deadlines.reply);
    let workers = WorkerId::new(0)..WorkerId::new(wish.world.size() as u32);
    let lane = lane(workers, move |worker, endpoint| run(worker, config, endpoint));
    Ok(Box::new(LaneSession::start(wish.world, vec![lane], deadlines)?))
}

fn lane<F>(workers: Range<WorkerId>, run: F) -> Arc<dyn Channel>
where
    F: Fn(WorkerId, disco_channel::threads::ThreadEndpoint) -> Result<()> + Send + Sync + 'static,
{
    Arc::new(ThreadLane::new(workers, Arc::new(Shared::default()), run))
}

impl Backend for Local {
    fn name(&self) -> &'static str {
        "local-private"
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        disco_local::BACKEND.probe()
    }

    fn rendezvous(&self, world: &World) -> Result<Rendezvous> {
        disco_local::BACKEND.rendezvous(world)
    }

    fn connect(&self, seat: Seat<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
        let link = Arc::new(WithArena { arena: Arena::new()?, inner: seat.link });
        disco_local::BACKEND.connect(Seat { link, ..seat }, at)
    }
}

impl<E: Endpoint> Endpoint for WithArena<E> {
    fn recv(&mut self) -> Result<Arc<Frame>> {
        self.inner.recv()
    }

    fn reply(&mut self, seq: u64, reply: Reply) -> Result<()> {
        self.inner.reply(seq, reply)
    }

    fn link(&self) -> Arc<dyn Link> {
        Arc::new(WithArena { arena: self.arena.clone(), inner: self.inner.link() })
    }
}

impl Link for WithArena<Arc<dyn Link>> {
    fn notify(&self, notice: Notice) {
        self.inner.notify(notice);
    }

    fn store(&self) -> Arc<dyn Store> {
        self.inner.store()
    }

    fn on_abort(&self, abort: &Arc<dyn Abort>) {
        self.inner.on_abort(abort);
    }

    fn reset(&self, epoch: u64) {
        self.inner.reset(epoch);
    }

    fn share(&self, fd: OwnedFd) -> Result<SharedFd> {
        self.inner.share(fd)
    }

    fn unshare(&self, fd: SharedFd) {
        self.inner.unshare(fd);
    }

    fn receive(&self, fd: SharedFd, deadline: Duration) -> Result<OwnedFd> {
        self.inner.receive(fd, deadline)
    }

    fn activity(&self) -> &Arc<Activity> {
        self.inner.activity()
    }

    fn arena(&self) -> Option<&Arc<Arena>> {
        Some(&self.arena)
    }
}
