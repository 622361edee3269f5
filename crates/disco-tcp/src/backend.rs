//! The backend `tcp`.

use disco_core::{Backend, ConnectParams, Probe, Rendezvous, Result, Unavailable, World};

use crate::NAME;
use crate::communicator::Communicator;
use crate::rendezvous::Meeting;

/// The backend named `tcp`: tensors in host memory, ranks on any number of machines. Always available. In a session of one
/// machine, its communicators are those of `local`.
#[allow(clippy::exhaustive_structs, reason = "a unit")]
#[derive(Clone, Copy, Debug)]
pub struct Tcp;

/// The backend as a value.
pub static BACKEND: Tcp = Tcp;

disco_core::register_backend!(BACKEND);

impl Backend for Tcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        Ok(Probe::new("built in", env!("CARGO_PKG_VERSION")))
    }

    fn rendezvous(&self, world: &World) -> Result<Rendezvous> {
        Meeting::fresh(disco_local::BACKEND.rendezvous(world)?)?.write()
    }

    fn connect(&self, params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn disco_core::Communicator>> {
        if params.world.nodes() == 1 {
            return disco_local::BACKEND.connect(params, Meeting::read(at)?.local());
        }
        Communicator::connect(params, at).map(|comm| Box::new(comm) as _)
    }
}
