//! A vendor's backend as the registry has it.

use std::fmt;
use std::sync::OnceLock;

use disco_core::{
    Communicator, ConnectParams, DType, DeviceKind, Probe, Queue, Rendezvous, Result, Shape, Tensor, Unavailable, World,
};

use crate::library::{Library, Vendor};

/// A library and the devices that it works on: each vendor's crate has one.
pub struct Backend {
    vendor: Vendor,
    kind: DeviceKind,
    details: fn() -> Result<Details, Unavailable>,
    library: OnceLock<Result<&'static Library, Unavailable>>,
}

/// What users may want to see of driver and devices.
pub type Details = Vec<(String, String)>;

impl Backend {
    /// That of a vendor, on devices of a kind, whose driver and devices `details` tells, or why there are none.
    pub const fn new(vendor: Vendor, kind: DeviceKind, details: fn() -> Result<Details, Unavailable>) -> Self {
        Self { vendor, kind, details, library: OnceLock::new() }
    }

    /// The library, looked for once: for those who call it themselves, too.
    ///
    /// # Errors
    /// Every candidate and why it would not do.
    pub fn library(&self) -> Result<&'static Library, Unavailable> {
        let find = || Library::find(self.vendor).map(|library| &*Box::leak(Box::new(library)));
        self.library.get_or_init(find).clone()
    }

    /// A zeroed tensor like [`WorkerContext::empty`](disco_core::WorkerContext::empty) makes, in memory that the library has allocated
    /// (`ncclMemAlloc`): where [registered](crate::Extension::register), its fastest ways are open to it. For the stream of this
    /// queue alone.
    ///
    /// # Errors
    /// An impossible shape, no room, a queue of another kind of device, no library.
    pub fn empty(&self, queue: &mut (dyn Queue + 'static), dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        self.library()?.empty(queue, self.kind, dtype, shape.into())
    }
}

impl disco_core::Backend for Backend {
    fn name(&self) -> &'static str {
        self.vendor.backend
    }

    fn device_kind(&self) -> DeviceKind {
        self.kind
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        let (library, details) = (self.library()?, (self.details)()?);
        let version = format!("{} {}", self.vendor.library, library.version());
        Ok(Probe::new(library.file(), version).with_details(details))
    }

    fn rendezvous(&self, _: &World) -> Result<Rendezvous> {
        self.library()?.rendezvous()
    }

    fn connect(&self, params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
        Ok(Box::new(self.library()?.connect(self.kind, params, at)?))
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<backend {}>", self.vendor.backend)
    }
}
