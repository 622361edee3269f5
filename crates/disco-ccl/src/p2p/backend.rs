//! A vendor's backend with peer-to-peer memory.

use disco_core::{Communicator, ConnectParams, DeviceKind, Probe, Rendezvous, Result, Unavailable, World};

use super::fast_path::Vendor;

/// A backend that wraps the vendor's plain backend. Operations that are faster over memory that ranks of a machine
/// share use that memory; all other operations go through the library. It has the options of the plain backend.
pub struct Backend {
    name: &'static str,
    inner: &'static crate::Backend,
    vendor: Vendor,
}

impl Backend {
    /// A backend named `name` that wraps `inner`.
    pub const fn new(name: &'static str, inner: &'static crate::Backend, vendor: Vendor) -> Self {
        Self { name, inner, vendor }
    }
}

impl disco_core::Backend for Backend {
    fn name(&self) -> &'static str {
        self.name
    }

    fn device_kind(&self) -> DeviceKind {
        self.inner.device_kind()
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        self.inner.probe()
    }

    fn rendezvous(&self, world: &World) -> Result<Rendezvous> {
        self.inner.rendezvous(world)
    }

    fn connect(&self, params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
        let deadline = params.connect_deadline;
        let mut comm = self.inner.library()?.connect(self.device_kind(), params, at)?;
        comm.find_fast_path(self.vendor, deadline)?;
        Ok(Box::new(comm))
    }
}

disco_core::format_as!(Debug for Backend, |it| "<backend {}>", it.name);
