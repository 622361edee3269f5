//! The conformance suite over connections, encrypted and in clear, as if two neighbouring ranks were on each machine.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::env;
use std::process::{Command, ExitCode};

use disco_conformance::{Runner, ThreadSessions};
use disco_core::{
    Backend, Communicator, ConnectParams, Probe, Rendezvous, Result, Unavailable, World, register_backend,
};

/// The backend `tcp`, also where all ranks are on one machine.
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
        let machines: Vec<_> = (0..params.world.size()).map(|rank| rank / 2).collect();
        disco_tcp::Communicator::connect_on(params, at, &machines).map(|comm| Box::new(comm) as _)
    }
}

/// The variable that decides about encryption.
const ENCRYPT: &str = "DISCO_ENCRYPT";

/// The tests that also run in clear: those of one dtype.
const IN_CLEAR: &str = "bf16";

fn main() -> ExitCode {
    let is_list = env::args().any(|arg| arg == "--list");
    if env::var_os(ENCRYPT).is_none() && !is_list {
        let mut in_clear = Command::new(env::current_exe().unwrap());
        let status = in_clear.args([IN_CLEAR, "--quiet"]).env(ENCRYPT, "0").status().unwrap();
        if !status.success() {
            return ExitCode::FAILURE;
        }
    }
    Runner::new().backend(ThreadSessions::of("tcp-mesh").exact().detecting_dropped_peers()).main()
}
