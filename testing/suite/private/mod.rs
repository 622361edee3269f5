//! The backend `local` with tensors in private memory, which peers can't reach, as between processes.

use std::sync::Arc;

use disco::{Backend, Builder, Communicator, Probe, Result, Session, Unavailable, World};
use disco_conformance::{Harness, SessionSpec};
use disco_core::shared_memory::Arena;
use disco_core::{ConnectParams, Link, backend::Rendezvous};

/// The harness of the backend `local-private`.
#[derive(Debug)]
pub(crate) struct Private;

/// The backend: workers allocate tensors without an arena, and connect with one.
#[derive(Debug)]
struct LocalPrivate;

static LOCAL_PRIVATE: LocalPrivate = LocalPrivate;

disco_core::register_backend!(LOCAL_PRIVATE);

impl Harness for Private {
    fn name(&self) -> &str {
        "local-private"
    }

    fn backend(&self) -> &str {
        LOCAL_PRIVATE.name()
    }

    fn worlds(&self) -> Vec<World> {
        [(2, 1), (3, 1), (4, 2)].map(|(workers, groups)| World::new(workers, groups).unwrap()).to_vec()
    }

    fn start(&self, spec: &SessionSpec) -> Result<Box<dyn Session>> {
        let builder = Builder::threads(spec.world.size()).groups(spec.world.groups()).check(spec.check);
        Ok(Box::new(builder.collective_deadline(spec.collective_deadline).start()?))
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn detects_mismatches(&self) -> bool {
        true
    }

    fn detects_dropped_peers(&self) -> bool {
        true
    }
}

impl Backend for LocalPrivate {
    fn name(&self) -> &'static str {
        "local-private"
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        disco_local::BACKEND.probe()
    }

    fn rendezvous(&self, world: &World) -> Result<Rendezvous> {
        disco_local::BACKEND.rendezvous(world)
    }

    fn connect(&self, mut params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
        params.link = Arc::new(Link::clone(&params.link).in_arena(Arena::new(1)?));
        disco_local::BACKEND.connect(params, at)
    }
}
