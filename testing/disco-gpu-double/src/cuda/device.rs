//! Devices, their primary contexts, and the current device of each thread.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Once, OnceLock};

use super::abi::{Code, Context};
use super::arena::Arena;
use super::capture;
use super::hardware::HardwareQueues;
use super::peer::Peers;
use super::pool::Pool;
use super::stream::{self, Stream};
use crate::settings;
use crate::settings::faults::{self, Action};
use crate::sync::lock;

/// All devices, made by `cuInit` for the lifetime of the process.
static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

thread_local! {
    static CURRENT: Cell<Option<&'static Device>> = const { Cell::new(None) };
}

/// A device, which is also its primary context.
pub(crate) struct Device {
    /// The ordinal of the device.
    pub(crate) ordinal: usize,
    /// Bytes in use.
    pub(crate) used: AtomicUsize,
    /// Devices whose memory this device can access.
    pub(crate) peers: Peers,
    /// Hardware queues that its ordinary streams share.
    pub(crate) hardware: HardwareQueues,
    /// The arena, made by the first allocation; `None` if that fails.
    arena: OnceLock<Option<Arena>>,
    retained: AtomicUsize,
    /// Completed once HIP's runtime has retained the context.
    is_retained_for_hip: Once,
    /// The error of the first failed work; 0 if none failed.
    error: AtomicI32,
    default_stream: OnceLock<Arc<Stream>>,
    /// Held by a copy to host memory that is not pinned until its stream has made the copy, as the driver holds a lock of
    /// the context. Meanwhile, other calls wait.
    pub(crate) pageable_copy: Mutex<()>,
    /// The default pool, from which `cuMemAllocAsync` allocates.
    pub(crate) pool: OnceLock<Arc<Pool>>,
}

/// `cuInit`.
pub(crate) fn init() -> Result<(), Code> {
    let settings = settings::read();
    match settings.init() {
        0 => {
            DEVICES.get_or_init(|| (0..settings.devices()).map(Device::new).collect());
            Ok(())
        }
        code => Err(Code(code)),
    }
}

/// All devices, after `cuInit`.
pub(crate) fn all() -> Result<&'static [Device], Code> {
    DEVICES.get().map(Vec::as_slice).ok_or(Code::NOT_INITIALIZED)
}

/// The device with an ordinal.
pub(crate) fn find(ordinal: c_int) -> Result<&'static Device, Code> {
    let devices = all()?;
    usize::try_from(ordinal).ok().and_then(|ordinal| devices.get(ordinal)).ok_or(Code::INVALID_DEVICE)
}

/// The device of a context handle; `None` for null.
pub(crate) fn of_context(context: Context) -> Result<Option<&'static Device>, Code> {
    let devices = all()?;
    if context.is_null() {
        return Ok(None);
    }
    let device = devices.iter().find(|device| device.context() == context && device.retained.load(SeqCst) > 0);
    device.map(Some).ok_or(Code::INVALID_CONTEXT)
}

/// Makes a device current on this thread.
pub(crate) fn make_current(device: Option<&'static Device>) {
    CURRENT.set(device);
}

/// The current device of this thread, if any.
pub(crate) fn current_if_any() -> Option<&'static Device> {
    CURRENT.get()
}

/// The current device of this thread, whose context must be alive.
pub(crate) fn current() -> Result<&'static Device, Code> {
    all()?;
    current_if_any().filter(|device| device.retained.load(SeqCst) > 0).ok_or(Code::INVALID_CONTEXT)
}

/// Begins a call of a function that needs a context: returns the current device, or the injected fault or the device's
/// sticky error.
pub(crate) fn begin_call(function: &str) -> Result<&'static Device, Code> {
    let device = begin_release_call(function)?;
    device.check().map(|()| device)
}

/// Begins a call of a function that releases resources: like [`begin_call`], but ignores the device's sticky error.
pub(crate) fn begin_release_call(function: &str) -> Result<&'static Device, Code> {
    let device = current()?;
    capture::permit(function)?;
    drop(lock(&device.pageable_copy));
    device.fault(function).map(|()| device)
}

impl Device {
    fn new(ordinal: usize) -> Self {
        Self {
            ordinal,
            used: AtomicUsize::new(0),
            peers: Peers::default(),
            hardware: HardwareQueues::default(),
            arena: OnceLock::new(),
            retained: AtomicUsize::new(0),
            is_retained_for_hip: Once::new(),
            error: AtomicI32::new(0),
            default_stream: OnceLock::new(),
            pageable_copy: Mutex::new(()),
            pool: OnceLock::new(),
        }
    }

    /// The injected fault of a function on this device, as an error.
    pub(crate) fn fault(&self, function: &str) -> Result<(), Code> {
        match faults::next(function, self.ordinal) {
            Some(Action::Code(code)) => Err(Code(code)),
            _ => Ok(()),
        }
    }

    /// The arena of the device's memory.
    pub(crate) fn arena(&'static self) -> Option<&'static Arena> {
        self.arena.get_or_init(|| Arena::new().ok()).as_ref()
    }

    /// The handle of its primary context.
    pub(crate) fn context(&self) -> Context {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Retains the primary context.
    pub(crate) fn retain(&self) -> Context {
        self.retained.fetch_add(1, SeqCst);
        self.context()
    }

    /// Retains the context for HIP's runtime: at the first call that needs the device, for the lifetime of the process.
    pub(crate) fn retain_for_hip(&self) {
        self.is_retained_for_hip.call_once(|| {
            self.retain();
        });
    }

    /// Releases the primary context. The last release clears its error; remaining resources stay, so that leaks are
    /// counted.
    pub(crate) fn release(&self) -> Result<(), Code> {
        let fewer = |retained: usize| retained.checked_sub(1);
        let before = self.retained.fetch_update(SeqCst, SeqCst, fewer).map_err(|_| Code::INVALID_CONTEXT)?;
        if before == 1 {
            self.peers.clear();
            self.error.store(0, SeqCst);
        }
        Ok(())
    }

    /// The stream of handle 0.
    pub(crate) fn default_stream(&'static self) -> &'static Arc<Stream> {
        self.default_stream.get_or_init(|| Stream::start(self, false, None))
    }

    /// The default stream, if it was ever used.
    pub(crate) fn default_stream_if_used(&self) -> Option<&Arc<Stream>> {
        self.default_stream.get()
    }

    /// Waits for all work that is submitted to the device's streams now.
    pub(crate) fn synchronize(&'static self) -> Result<(), Code> {
        for stream in stream::of_device(self) {
            stream.synchronize();
        }
        self.check()
    }

    /// Devices that have access to this device's memory.
    pub(crate) fn accessors(&'static self) -> impl Iterator<Item = &'static Device> {
        let devices = DEVICES.get().map(Vec::as_slice).unwrap_or_default();
        devices.iter().filter(|peer| peer.peers.have(self))
    }

    /// Waits for all work that is submitted now to the streams of this device and of peers with access in either
    /// direction. Frees do this, because the memory is also mapped on peers.
    pub(crate) fn synchronize_with_peers(&'static self) -> Result<(), Code> {
        let devices = DEVICES.get().map(Vec::as_slice).unwrap_or_default();
        let peers = self.accessors().chain(devices.iter().filter(|peer| self.peers.have(peer)));
        for peer in peers.filter(|_| settings::read().peer_frees()) {
            // An error of a peer's work stays with the peer.
            _ = peer.synchronize();
        }
        self.synchronize()
    }

    /// Sets the sticky error, unless there is one.
    pub(crate) fn fail(&self, code: Code) {
        // A second failure changes nothing.
        let _ = self.error.compare_exchange(0, code.0, SeqCst, SeqCst);
    }

    /// Whether the device runs no more work, because it has failed or its context was released.
    pub(crate) fn is_gone(&self) -> bool {
        self.check().is_err() || self.retained.load(SeqCst) == 0
    }

    /// Returns the sticky error, if any.
    pub(crate) fn check(&self) -> Result<(), Code> {
        match self.error.load(SeqCst) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }
}
