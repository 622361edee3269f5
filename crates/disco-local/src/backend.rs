//! The backend `local`.

use disco_core::{Backend, ConnectParams, Probe, Rendezvous, Result, Unavailable, World};

use crate::NAME;
use crate::communicator::Communicator;
use crate::meeting::Token;

/// The backend named `local`: tensors in host memory, ranks in threads of one process or in processes of one machine.
/// Always available.
#[allow(clippy::exhaustive_structs, reason = "a unit")]
#[derive(Clone, Copy, Debug)]
pub struct Local;

/// The backend as a value.
pub static BACKEND: Local = Local;

disco_core::register_backend!(BACKEND);

impl Backend for Local {
    fn name(&self) -> &'static str {
        NAME
    }

    fn spans_machines(&self) -> bool {
        false
    }

    fn joins_nodes_of_one_machine(&self) -> bool {
        true
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        Ok(Probe::new("built in", env!("CARGO_PKG_VERSION")))
    }

    fn rendezvous(&self, _: &World) -> Result<Rendezvous> {
        Rendezvous::new(Token::fresh().to_bytes())
    }

    fn connect(&self, params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn disco_core::Communicator>> {
        Communicator::connect(params, at).map(|comm| Box::new(comm) as _)
    }
}
