//! A vendor's backend, as the registry of backends has it.

use std::sync::OnceLock;

use disco_core::{
    Communicator, ConnectParams, DType, DeviceKind, Probe, Queue, Rendezvous, Result, Shape, Tensor, Unavailable, World,
};

use crate::library::{Library, Vendor};

/// A vendor's library and its kind of devices. Each vendor's crate has one static value.
pub struct Backend {
    vendor: Vendor,
    kind: DeviceKind,
    details: fn() -> Result<Details, Unavailable>,
    library: OnceLock<Result<&'static Library, Unavailable>>,
}

/// Names and values for the user: the driver's version, and the name of each device.
pub type Details = Vec<(String, String)>;

impl Backend {
    /// The backend of a vendor, for devices of one kind. `details` describes the driver and the devices, or returns why
    /// there are none.
    pub const fn new(vendor: Vendor, kind: DeviceKind, details: fn() -> Result<Details, Unavailable>) -> Self {
        Self { vendor, kind, details, library: OnceLock::new() }
    }

    /// The vendor's library. The first call searches for it; later calls return the same result.
    ///
    /// # Errors
    /// [`Unavailable`] lists each candidate and the reason why it was rejected.
    pub fn library(&self) -> Result<&'static Library, Unavailable> {
        let find = || Library::find(self.vendor).map(|library| &*Box::leak(Box::new(library)));
        self.library.get_or_init(find).clone()
    }

    /// Makes a zeroed tensor, like [`WorkerContext::empty`](disco_core::WorkerContext::empty), in memory that the
    /// library allocates (`ncclMemAlloc`). If the tensor is also [registered](crate::Extension::register), the library
    /// can use its fastest transports. Only the stream of `queue` may use the tensor.
    ///
    /// # Errors
    /// An invalid shape; no memory; `queue` is on another kind of device; the library is not available.
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

disco_core::format_as!(Debug for Backend, |it| "<backend {}>", it.vendor.backend);
