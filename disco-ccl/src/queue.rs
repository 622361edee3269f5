//! A worker's stream, and marks in it.

#![allow(unsafe_code)]

use std::any::Any;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::device_api::Event;
use disco_core::tensor::Storage;
use disco_core::{Device, DeviceKind, Error, Result, Tensor};

use crate::driver::Mark;
use crate::runtime::Graph;
use crate::runtime::Runtime;
use crate::staging::Staging;

/// The reason why a capture refuses waits.
pub(crate) const NOTHING_RUNS: &str = "captured work runs when its graph is launched: synchronize after that";
/// How long a queue that is dropped waits for copies to the host.
const LIMIT: Duration = Duration::from_secs(5);
/// Looks before pauses begin, and between later ones.
const SPINS: u32 = 2000;
const PAUSE: Duration = Duration::from_micros(50);

/// One worker's stream on one device.
pub struct Queue {
    runtime: Arc<Runtime>,
    recorded: u64,
    /// Marks that were not seen passed.
    open: VecDeque<(Event, Mark)>,
    /// Marks to be set again.
    spare: Vec<Mark>,
    staging: Staging,
}

impl Queue {
    /// Of a runtime's stream.
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, recorded: 0, open: VecDeque::new(), spare: Vec::new(), staging: Staging::default() }
    }

    /// The one behind a worker's queue on a kind of device.
    ///
    /// # Errors
    /// It is on another.
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

    /// Captures the work that `work` gives to the stream: see [`Runtime::capture`], which does not borrow the queue. Of the queue's own methods,
    /// `copy_within` can be captured, and all others are refused.
    ///
    /// # Errors
    /// As [`Runtime::capture`].
    pub fn capture(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<Graph> {
        let runtime = self.runtime.clone();
        runtime.capture(|| work(self))
    }

    /// Refuses tensors that are not as large, and where they should be: on the host, or on this device, which is current from now on.
    fn check_copy(&self, operation: &str, dst: &Tensor, src: &Tensor, host: [bool; 2]) -> Result<()> {
        // User code may have made another device current.
        self.runtime.enter()?;
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
        match dst.byte_len() == src.byte_len() {
            true => Ok(()),
            false => Err(Error::invalid(format!("{operation}: can't copy {src} into {dst}"))),
        }
    }

    fn wait(&self, deadline: Duration) -> Result<()> {
        let (start, mut looks) = (Instant::now(), 0);
        while !self.runtime.is_idle()? {
            looks += 1;
            if start.elapsed() > deadline {
                let state = self.runtime.stuck();
                let state = state.unwrap_or_else(|| format!("work on {} is not done", self.runtime.device()));
                return Err(Error::Deadline { operation: "synchronize".into(), after: deadline, state });
            }
            if looks > SPINS { thread::sleep(PAUSE) } else { thread::yield_now() }
        }
        self.runtime.check()
    }
}

impl disco_core::Queue for Queue {
    fn device(&self) -> Device {
        self.runtime.device()
    }

    fn alloc(&mut self, bytes: usize) -> Result<Arc<Storage>> {
        self.runtime.enter()?;
        let storage = self.runtime.alloc(bytes)?;
        self.runtime.clear(&storage).map(|()| storage)
    }

    fn copy_in(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        self.check_copy("copy to device", dst, src, [false, true])?;
        if src.byte_len() == 0 {
            return Ok(());
        }
        let bytes = src.bytes()?;
        // SAFETY: the tensor is as many bytes of this device's memory, whose freeing waits for the stream.
        unsafe { self.staging.copy_in(&self.runtime, dst.data(), &bytes) }
    }

    fn copy_out(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        self.check_copy("copy to host", dst, src, [true, false])?;
        if src.byte_len() == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.staging.copy_out(&self.runtime, dst, src.data()) }
    }

    fn copy_within(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        self.check_copy("copy on device", dst, src, [false, false])?;
        [dst, src].into_iter().for_each(|tensor| self.runtime.keep(|| tensor.storage().clone()));
        // SAFETY: both are as many bytes of this device's memory, whose freeing waits for the stream.
        unsafe { self.runtime.copy(dst.data(), src.data(), dst.byte_len()) }
    }

    fn record(&mut self) -> Result<Event> {
        self.runtime.enter()?;
        self.runtime.refuse_in_capture("record", "the host can't query an event of a graph")?;
        let mark = match self.spare.pop() {
            Some(mark) => mark,
            None => self.runtime.driver().mark()?,
        };
        // SAFETY: it is there.
        if let Err(error) = unsafe { self.runtime.driver().record(mark) } {
            self.spare.push(mark);
            return Err(error);
        }
        self.recorded += 1;
        self.open.push_back((Event(self.recorded), mark));
        Ok(Event(self.recorded))
    }

    fn poll(&mut self, event: Event) -> Result<bool> {
        self.runtime.refuse_in_capture(
            "poll",
            "the driver ends a capture whose thread queries an event: poll after the capture",
        )?;
        let at = self.open.iter().position(|(open, _)| *open == event);
        let at = at.ok_or_else(|| Error::state(format!("{event:?} was not recorded on this queue")))?;
        // SAFETY: the mark is there.
        let passed = unsafe { self.runtime.driver().has_passed(self.open[at].1) };
        if !matches!(passed, Ok(false)) {
            self.spare.extend(self.open.remove(at).map(|(_, mark)| mark));
            self.runtime.check()?;
        }
        passed
    }

    fn synchronize(&mut self, deadline: Duration) -> Result<()> {
        self.runtime.refuse_in_capture("synchronize", NOTHING_RUNS)?;
        self.wait(deadline)?;
        self.runtime.enter()?;
        self.staging.arrive()
    }

    fn raw(&self) -> *mut c_void {
        self.runtime.stream()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.staging.is_lent() && self.wait(LIMIT).is_err() {
            tracing::warn!(device = %self.runtime.device(), "copies are not done; their memory is kept for ever");
            self.staging.forget();
        }
        for mark in self.open.drain(..).map(|(_, mark)| mark).chain(self.spare.drain(..)) {
            // SAFETY: it was made here, and is destroyed once.
            unsafe { self.runtime.driver().destroy(mark) };
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<queue on {}>", self.runtime.device())
    }
}
