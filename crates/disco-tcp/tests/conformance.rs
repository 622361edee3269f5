//! The conformance suite over connections of one machine, encrypted and in clear.

use std::process::ExitCode;

use disco_conformance::{Runner, ThreadSessions};
use disco_core::{
    Backend, Communicator, ConnectParams, Probe, Rendezvous, Result, Unavailable, World, register_backend,
};

/// The backend `tcp` without the shared memory of ranks on one machine.
struct Mesh;

static MESH: Mesh = Mesh;

register_backend!(MESH);

impl Backend for Mesh {
    fn name(&self) -> &'static str {
        "tcp-mesh"
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        disco_tcp::BACKEND.probe()
    }

    fn rendezvous(&self, world: &World) -> Result<Rendezvous> {
        disco_tcp::BACKEND.rendezvous(world)
    }

    fn connect(&self, params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
        disco_tcp::Communicator::connect(params, at).map(|comm| Box::new(comm) as _)
    }
}

fn main() -> ExitCode {
    Runner::new().backend(ThreadSessions::of("tcp-mesh").exact().detecting_dropped_peers()).main()
}
