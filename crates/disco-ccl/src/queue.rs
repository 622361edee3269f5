//! A worker's stream and its events.

#![allow(unsafe_code)]

use std::any::Any;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::device_api::Event;
use disco_core::tensor::Storage;
use disco_core::{Device, DeviceKind, Error, Result, Tensor};

use crate::driver::CopyKind;
use crate::event::OwnedEvent;
use crate::pinned;
use crate::pinned_claims::PinnedClaims;
use crate::runtime::Graph;
use crate::runtime::Runtime;
use crate::staging::Staging;

/// The reason that a capture gives when it refuses waits.
pub(crate) const CAPTURE_DOES_NOT_RUN: &str = "captured work runs when its graph is launched: synchronize after that";
/// Polls before the wait sleeps between polls, and the sleep.
const POLLS_BEFORE_SLEEP: u32 = 2000;
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// One worker's stream on one device.
pub struct Queue {
    runtime: Arc<Runtime>,
    recorded: u64,
    /// Events that the stream was not seen to pass.
    recorded_events: VecDeque<(Event, OwnedEvent)>,
    /// Events for reuse.
    free_events: Vec<OwnedEvent>,
    staging: Staging,
    pinned_claims: PinnedClaims,
}

impl Queue {
    /// Makes the queue of a runtime's stream.
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self {
            runtime,
            recorded: 0,
            recorded_events: VecDeque::new(),
            free_events: Vec::new(),
            staging: Staging::default(),
            pinned_claims: PinnedClaims::default(),
        }
    }

    /// Downcasts a worker's queue on a device of this kind.
    ///
    /// # Errors
    /// The queue is on another kind of device.
    pub fn of<'a>(queue: &'a mut (dyn disco_core::Queue + 'static), kind: DeviceKind) -> Result<&'a mut Self> {
        let device = queue.device();
        let queue: &mut dyn Any = queue;
        let queue = queue.downcast_mut().filter(|_| device.kind == kind);
        queue.ok_or_else(|| Error::invalid(format!("{device} is no {kind} device")))
    }

    /// The device, its stream and its memory.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Captures the work that `work` gives to the stream: see [`Runtime::capture`], which does not borrow the queue. Of
    /// the queue's own methods, `copy_within` can be captured, and all others are refused.
    ///
    /// # Errors
    /// As [`Runtime::capture`].
    pub fn capture(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<Graph> {
        let runtime = self.runtime.clone();
        runtime.capture(|| work(self))
    }

    /// Checks the tensors of a copy: their sizes are equal, and each is on the host or on this device, as `host` says.
    /// Makes the device current.
    fn check_copy(&self, operation: &str, dst: &Tensor, src: &Tensor, host: [bool; 2]) -> Result<()> {
        // User code may have made another device current.
        self.runtime.make_current()?;
        if host.contains(&true) {
            let why = "a graph can't copy host tensors: copy before the capture or after a launch";
            self.runtime.refuse_in_capture(operation, why)?;
        }
        let device = self.runtime.device();
        for (tensor, is_host) in [dst, src].into_iter().zip(host) {
            let expected = if is_host { Device::CPU } else { device };
            if tensor.device() != expected {
                return Err(Error::invalid(format!("{operation}: {tensor} is not on {expected}")));
            }
            if !tensor.is_contiguous() {
                return Err(Error::invalid(format!("{operation}: {tensor} is not contiguous")));
            }
        }
        if dst.byte_len() == src.byte_len() {
            Ok(())
        } else {
            Err(Error::invalid(format!("{operation}: can't copy {src} into {dst}")))
        }
    }

    /// Copies between pinned host memory and the device, by one asynchronous copy of the driver. The storage of `host`
    /// is claimed until the stream has passed the copy.
    ///
    /// # Errors
    /// [`Error::Busy`]: the program views `host`; errors of the driver, after which the claim stays until the stream has
    /// passed a later event.
    ///
    /// # Safety
    /// `device` has as many bytes as `host`, which is in pinned memory, on this device, and its memory is freed in stream
    /// order.
    unsafe fn copy_pinned(&mut self, host: &Tensor, device: *mut u8, kind: CopyKind) -> Result<()> {
        let is_out = kind == CopyKind::ToHost;
        let behind = self.pinned_claims.claim(&self.runtime, host.storage(), is_out, self.recorded)?;
        let (to, from) = if is_out { (host.data(), device) } else { (device, host.data()) };
        // SAFETY: the caller guarantees that `device` is valid for the copy. The claim keeps the memory of `host`.
        unsafe { self.runtime.driver().copy(to, from, host.byte_len(), kind) }?;
        behind.record()
    }

    /// Whether a host tensor is in memory that is pinned for this device.
    fn is_pinned(&self, tensor: &Tensor) -> bool {
        pinned::is_pinned(tensor.storage(), self.runtime.device().kind)
    }

    fn wait(&self, deadline: Duration) -> Result<()> {
        let (start, mut polls) = (Instant::now(), 0);
        while !self.runtime.is_idle()? {
            polls += 1;
            if start.elapsed() > deadline {
                let state = self.runtime.stalled_on();
                let state = state.unwrap_or_else(|| format!("work on {} is not done", self.runtime.device()));
                return Err(Error::Deadline { operation: "synchronize".into(), after: deadline, state });
            }
            if polls > POLLS_BEFORE_SLEEP { thread::sleep(POLL_INTERVAL) } else { thread::yield_now() }
        }
        self.runtime.check()
    }
}

impl disco_core::Queue for Queue {
    fn device(&self) -> Device {
        self.runtime.device()
    }

    fn alloc(&mut self, bytes: usize) -> Result<Arc<Storage>> {
        self.runtime.make_current()?;
        let storage = self.runtime.alloc(bytes)?;
        self.runtime.clear(&storage).map(|()| storage)
    }

    fn alloc_pinned(&mut self, bytes: usize) -> Result<Arc<Storage>> {
        self.runtime.make_current()?;
        self.runtime.refuse_in_capture("allocation", "allocate tensors before the capture")?;
        pinned::alloc(&self.runtime, bytes)
    }

    fn copy_in(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        self.check_copy("copy to device", dst, src, [false, true])?;
        if src.byte_len() == 0 {
            return Ok(());
        }
        self.pinned_claims.release_passed()?;
        if self.is_pinned(src) {
            // SAFETY: `dst` has as many bytes as `src`, on this device, and its memory is freed in stream order.
            return unsafe { self.copy_pinned(src, dst.data(), CopyKind::ToDevice) };
        }
        let bytes = src.bytes()?;
        // SAFETY: `dst` has as many bytes as `src`, on this device, and its memory is freed in stream order.
        unsafe { self.staging.copy_in(&self.runtime, dst.data(), &bytes) }
    }

    fn copy_out(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        self.check_copy("copy to host", dst, src, [true, false])?;
        if src.byte_len() == 0 {
            return Ok(());
        }
        self.pinned_claims.release_passed()?;
        if self.is_pinned(dst) {
            // SAFETY: `src` has as many bytes as `dst`, on this device, and its memory is freed in stream order.
            return unsafe { self.copy_pinned(dst, src.data(), CopyKind::ToHost) };
        }
        // SAFETY: `src` has as many bytes as `dst`, on this device, and its memory is freed in stream order.
        unsafe { self.staging.copy_out(&self.runtime, dst, src.data()) }
    }

    fn copy_within(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        self.check_copy("copy on device", dst, src, [false, false])?;
        if !dst.needs_copy_of(src)? {
            return Ok(());
        }
        [dst, src].into_iter().for_each(|tensor| self.runtime.keep(|| tensor.storage().clone()));
        // SAFETY: both tensors have this number of bytes on this device, and their memory is freed in stream order.
        unsafe { self.runtime.copy(dst.data(), src.data(), dst.byte_len()) }
    }

    fn record(&mut self) -> Result<Event> {
        self.runtime.make_current()?;
        self.runtime.refuse_in_capture("record", "the host can't query an event of a graph")?;
        let mut event = self.free_events.pop().map_or_else(|| OwnedEvent::new(&self.runtime), Ok)?;
        event.record()?;
        self.recorded += 1;
        self.recorded_events.push_back((Event(self.recorded), event));
        Ok(Event(self.recorded))
    }

    fn poll(&mut self, event: Event) -> Result<bool> {
        self.runtime.refuse_in_capture(
            "poll",
            "the driver ends a capture whose thread queries an event: poll after the capture",
        )?;
        let at = self.recorded_events.iter().position(|(open, _)| *open == event);
        let at = at.ok_or_else(|| Error::state(format!("{event:?} was not recorded on this queue")))?;
        let passed = self.recorded_events[at].1.is_passed();
        if matches!(passed, Ok(false)) {
            return passed;
        }
        self.free_events.extend(self.recorded_events.remove(at).map(|(_, owned)| owned));
        if passed.is_ok() {
            self.pinned_claims.release_before(event);
        }
        self.runtime.check().and(passed)
    }

    fn synchronize(&mut self, deadline: Duration) -> Result<()> {
        self.runtime.refuse_in_capture("synchronize", CAPTURE_DOES_NOT_RUN)?;
        self.wait(deadline)?;
        self.runtime.make_current()?;
        self.pinned_claims.release_all();
        self.runtime.read_device_times(true);
        self.staging.finish_copies()
    }

    fn raw(&self) -> *mut c_void {
        self.runtime.stream()
    }
}

impl Drop for Queue {
    /// Does not wait: the memory of running copies is kept until they are over.
    fn drop(&mut self) {
        if !self.runtime.is_idle().unwrap_or(false) {
            self.runtime.drop_when_unused((mem::take(&mut self.staging), mem::take(&mut self.pinned_claims)));
        }
    }
}

disco_core::format_as!(Debug for Queue, |it| "<queue on {}>", it.runtime.device());
