//! Devices, their primary contexts, and which of them each thread has.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Once, OnceLock};

use super::abi::{Code, Context};
use super::arena::Arena;
use super::capture;
use super::hardware::HardwareQueues;
use super::peer::Peers;
use super::pool::Pool;
use super::stream::{self, Stream};
use crate::settings;
use crate::settings::faults::{self, Action};

/// Made by `cuInit`, for as long as the process lives.
static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

thread_local! {
    static CURRENT: Cell<Option<&'static Device>> = const { Cell::new(None) };
}

/// One device, which is also its primary context.
pub(crate) struct Device {
    /// Its number.
    pub(crate) ordinal: usize,
    /// Bytes in use.
    pub(crate) used: AtomicUsize,
    /// Whose memory it may touch besides its own.
    pub(crate) peers: Peers,
    /// What its ordinary streams share.
    pub(crate) hardware: HardwareQueues,
    /// Made by the first allocation, if there is room for it.
    arena: OnceLock<Option<Arena>>,
    retained: AtomicUsize,
    /// Set once HIP's runtime has its hold.
    held: Once,
    /// What a piece of work has failed with; 0: none has.
    error: AtomicI32,
    default_stream: OnceLock<Arc<Stream>>,
    /// What `cuMemAllocAsync` allocates from.
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

/// The device of a number.
pub(crate) fn find(ordinal: c_int) -> Result<&'static Device, Code> {
    let devices = all()?;
    usize::try_from(ordinal).ok().and_then(|ordinal| devices.get(ordinal)).ok_or(Code::INVALID_DEVICE)
}

/// The device whose context is this; none for no context.
pub(crate) fn of_context(context: Context) -> Result<Option<&'static Device>, Code> {
    let devices = all()?;
    if context.is_null() {
        return Ok(None);
    }
    let device = devices.iter().find(|device| device.context() == context && device.retained.load(SeqCst) > 0);
    device.map(Some).ok_or(Code::INVALID_CONTEXT)
}

/// Makes a device this thread's.
pub(crate) fn make_current(device: Option<&'static Device>) {
    CURRENT.set(device);
}

/// The device of this thread, if it has one.
pub(crate) fn current_if_any() -> Option<&'static Device> {
    CURRENT.get()
}

/// The device of this thread, whose context must still be there.
pub(crate) fn current() -> Result<&'static Device, Code> {
    all()?;
    current_if_any().filter(|device| device.retained.load(SeqCst) > 0).ok_or(Code::INVALID_CONTEXT)
}

/// What every function of a context begins with: its device, unless it is to fail by a test's wish, or for what has failed
/// before.
pub(crate) fn enter(function: &str) -> Result<&'static Device, Code> {
    let device = enter_failed(function)?;
    device.check().map(|()| device)
}

/// The same for functions that give back what there is, even if something has failed before.
pub(crate) fn enter_failed(function: &str) -> Result<&'static Device, Code> {
    let device = current()?;
    capture::permit(function)?;
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
            held: Once::new(),
            error: AtomicI32::new(0),
            default_stream: OnceLock::new(),
            pool: OnceLock::new(),
        }
    }

    /// Whether a function is to fail on it by a test's wish.
    pub(crate) fn fault(&self, function: &str) -> Result<(), Code> {
        match faults::next(function, self.ordinal) {
            Some(Action::Code(code)) => Err(Code(code)),
            _ => Ok(()),
        }
    }

    /// The memory that allocations are of.
    pub(crate) fn arena(&'static self) -> Option<&'static Arena> {
        self.arena.get_or_init(|| Arena::new().ok()).as_ref()
    }

    /// The handle of its primary context.
    pub(crate) fn context(&self) -> Context {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// One more user of the primary context.
    pub(crate) fn retain(&self) -> Context {
        self.retained.fetch_add(1, SeqCst);
        self.context()
    }

    /// HIP's runtime is a user too, from the first call that needs the device, for as long as the process lives.
    pub(crate) fn hold(&self) {
        self.held.call_once(|| {
            self.retain();
        });
    }

    /// One user less. After the last one the context has no error any more; what is left in it stays, for leaks to be counted.
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

    /// The same, if anything was ever given to it.
    pub(crate) fn default_stream_if_used(&self) -> Option<&Arc<Stream>> {
        self.default_stream.get()
    }

    /// Waits for all that its streams have now.
    pub(crate) fn synchronize(&'static self) -> Result<(), Code> {
        for stream in stream::of_device(self) {
            stream.synchronize();
        }
        self.check()
    }

    /// Devices that have access to its memory.
    pub(crate) fn accessors(&'static self) -> impl Iterator<Item = &'static Device> {
        let devices = DEVICES.get().map(Vec::as_slice).unwrap_or_default();
        devices.iter().filter(|peer| peer.peers.have(self))
    }

    /// Waits for all that its streams have now, and those of devices that have access to its memory or whose memory it has access to: a
    /// free does, since the memory is mapped there, too.
    pub(crate) fn synchronize_with_peers(&'static self) -> Result<(), Code> {
        let devices = DEVICES.get().map(Vec::as_slice).unwrap_or_default();
        let peers = self.accessors().chain(devices.iter().filter(|peer| self.peers.have(peer)));
        for peer in peers.filter(|_| settings::read().peer_frees()) {
            // An error of a peer's work is the peer's.
            _ = peer.synchronize();
        }
        self.synchronize()
    }

    /// Fails, now and from now on. The first failure is the one that stays.
    pub(crate) fn fail(&self, code: Code) {
        // A second failure changes nothing.
        let _ = self.error.compare_exchange(0, code.0, SeqCst, SeqCst);
    }

    /// Whether nothing more comes of its work: it has failed, or its context has no user any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.check().is_err() || self.retained.load(SeqCst) == 0
    }

    /// The failure that stays.
    pub(crate) fn check(&self) -> Result<(), Code> {
        match self.error.load(SeqCst) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }
}
