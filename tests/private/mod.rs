//! Tensors that peers can't reach: made by workers without an arena, whose data plane is that of processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use disco::activity::Activity;
use disco::backend::Rendezvous;
use disco::channel::Notice;
use disco::link::SharedFd;
use disco::{Abort, Backend, Builder, Communicator, Link, Probe, Result, Seat, Session, Store, Unavailable, World};
use disco_conformance::{Harness, Wish};
use disco_core::shared_memory::Arena;

/// `local` for tensors that the other ranks can't reach.
#[derive(Debug)]
pub(crate) struct Private;

/// The backend for it: workers make their tensors without an arena, and connect with one.
#[derive(Debug)]
struct Local;

static LOCAL: Local = Local;

disco::register_backend!(LOCAL);

/// The link of a worker that has an arena.
#[derive(Debug)]
struct WithArena {
    arena: Arc<Arena>,
    inner: Arc<dyn Link>,
}

impl Harness for Private {
    fn name(&self) -> &str {
        "local-private"
    }

    fn backend(&self) -> &str {
        LOCAL.name()
    }

    fn worlds(&self) -> Vec<World> {
        [(2, 1), (3, 1), (4, 2)].map(|(workers, groups)| World::new(workers, groups).unwrap()).to_vec()
    }

    fn start(&self, wish: &Wish) -> Result<Box<dyn Session>> {
        let builder = Builder::threads(wish.world.size()).groups(wish.world.groups()).check(wish.check);
        Ok(Box::new(builder.collective_deadline(wish.collective_deadline).start()?))
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn detects_mismatches(&self) -> bool {
        true
    }
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
        let link = Arc::new(WithArena { arena: Arena::new(1)?, inner: seat.link });
        disco_local::BACKEND.connect(Seat { link, ..seat }, at)
    }
}

impl Link for WithArena {
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
