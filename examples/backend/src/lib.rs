//! The backend `mailbox`: ranks are threads of one process, and tensors travel through [`std::sync::mpsc`] channels.
//!
//! The chapter "Writing a backend" of Disco's guide explains this crate. A program uses it with `use disco_mailbox as
//! _;` and `session.init_ccl("mailbox", &[])`.

mod collective;
mod communicator;
mod endpoint;
mod hub;

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use disco_core::{Backend, Communicator, ConnectParams, Probe, Rendezvous, Result, Unavailable, World};

/// The backend's name, for `init_ccl` and for error texts.
const NAME: &str = "mailbox";

/// The backend `mailbox`.
#[derive(Clone, Copy, Debug)]
pub struct Mailbox;

/// The backend as a value.
pub static BACKEND: Mailbox = Mailbox;

disco_core::register_backend!(BACKEND);

impl Backend for Mailbox {
    fn name(&self) -> &'static str {
        NAME
    }

    fn spans_machines(&self) -> bool {
        false
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        Ok(Probe::new("built in", env!("CARGO_PKG_VERSION")))
    }

    /// Runs once, on the controller. Each `init_ccl` has its own number, by which its ranks find each other. With the
    /// process id, `connect` recognises ranks of other processes.
    fn rendezvous(&self, _: &World) -> Result<Rendezvous> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Rendezvous::new((u64::from(process) << 32 | u64::from(number)).to_le_bytes())
    }

    /// Runs on every worker.
    fn connect(&self, params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
        Ok(Box::new(communicator::MailboxCommunicator::connect(params, at)?))
    }
}
