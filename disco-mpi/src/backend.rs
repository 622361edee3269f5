//! The backend `mpi` in the registry.

use std::sync::atomic::{AtomicU64, Ordering};

use disco_core::{Backend, Communicator, ConnectParams, Probe, Rendezvous, Result, Unavailable, World};

use crate::NAME;
use crate::connect;
use crate::host::Host;
use crate::library;

/// The backend named `mpi`: tensors in host memory, ranks in processes.
#[allow(clippy::exhaustive_structs, reason = "a unit")]
#[derive(Clone, Copy, Debug)]
pub struct Mpi;

/// The backend as a value.
pub static BACKEND: Mpi = Mpi;

disco_core::register_backend!(BACKEND);

impl Backend for Mpi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        library::Mpi::get().map(|mpi| mpi.about().probe())
    }

    fn rendezvous(&self, _: &World) -> Result<Rendezvous> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        library::Mpi::get()?;
        Rendezvous::new(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    fn connect(&self, params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
        if let Some(error) = Host::failure() {
            return Err(error);
        }
        library::with!(library::Mpi::get()?, mpi => connect::connect(mpi, params, at))
    }
}
