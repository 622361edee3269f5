//! The backend `local` with tensors in private memory, which peers can't reach, as between processes.

use std::sync::Arc;

use disco::{Backend, Communicator, Probe, Result, Unavailable, World};
use disco_conformance::ThreadSessions;
use disco_core::shared_memory::Arena;
use disco_core::{ConnectParams, Link, backend::Rendezvous};

/// The harness of the backend.
pub(crate) fn sessions() -> ThreadSessions {
    let worlds = [(2, 1), (3, 1), (4, 2)].map(|(workers, groups)| World::new(workers, groups).unwrap());
    ThreadSessions::of(LOCAL_PRIVATE.name())
        .with_worlds(worlds)
        .exact()
        .detecting_mismatches()
        .detecting_dropped_peers()
}

/// The backend: workers allocate tensors without an arena, and connect with one.
#[derive(Debug)]
struct LocalPrivate;

static LOCAL_PRIVATE: LocalPrivate = LocalPrivate;

disco_core::register_backend!(LOCAL_PRIVATE);

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
