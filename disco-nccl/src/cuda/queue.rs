//! A worker's stream, and marks in it.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};
use disco_ccl::Runtime;
use disco_core::device_api::Event;
use disco_core::tensor::Storage;
use disco_core::{Device, Error, Result, Tensor};

use super::error::check;
use super::staging::Staging;
use super::stream::Stream;

/// How long a queue that is dropped waits for copies to the host.
const LIMIT: Duration = Duration::from_secs(5);
/// Looks before pauses begin, and between later ones.
const SPINS: u32 = 2000;
const PAUSE: Duration = Duration::from_micros(50);

/// One worker's stream on one CUDA device.
pub struct Queue {
    stream: Arc<Stream>,
    recorded: u64,
    /// Marks that were not seen passed.
    open: VecDeque<(Event, sys::CUevent)>,
    /// Marks to be set again.
    spare: Vec<sys::CUevent>,
    staging: Staging,
}

impl Queue {
    pub(super) fn new(stream: Arc<Stream>) -> Self {
        Self { stream, recorded: 0, open: VecDeque::new(), spare: Vec::new(), staging: Staging::default() }
    }

    pub(super) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Refuses tensors that are not as large, and where they should be: on the host, or on this device, which is current from now on.
    fn check_copy(&self, operation: &str, dst: &Tensor, src: &Tensor, host: [bool; 2]) -> Result<()> {
        // User code may have made another device current.
        self.stream.enter()?;
        let device = self.stream.device();
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
        while !self.stream.is_idle()? {
            looks += 1;
            if start.elapsed() > deadline {
                let state = format!("work on {} is not done", self.stream.device());
                return Err(Error::Deadline { operation: "synchronize".into(), after: deadline, state });
            }
            if looks > SPINS { thread::sleep(PAUSE) } else { thread::yield_now() }
        }
        Ok(())
    }
}

impl disco_core::Queue for Queue {
    fn device(&self) -> Device {
        self.stream.device()
    }

    fn alloc(&mut self, bytes: usize) -> Result<Arc<Storage>> {
        self.stream.enter()?;
        let storage = self.stream.alloc(bytes)?;
        self.stream.clear(&storage).map(|()| storage)
    }

    fn copy_in(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        self.check_copy("copy to device", dst, src, [false, true])?;
        if src.byte_len() == 0 {
            return Ok(());
        }
        let bytes = src.bytes()?;
        // SAFETY: the tensor is as many bytes of this device's memory, whose freeing waits for the stream.
        unsafe { self.staging.copy_in(self.stream.pool(), dst.data(), &bytes) }
    }

    fn copy_out(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        self.check_copy("copy to host", dst, src, [true, false])?;
        if src.byte_len() == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.staging.copy_out(self.stream.pool(), dst, src.data()) }
    }

    fn copy_within(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        self.check_copy("copy on device", dst, src, [false, false])?;
        if src.byte_len() == 0 {
            return Ok(());
        }
        // SAFETY: both are as many bytes of this device's memory, whose freeing waits for the stream.
        unsafe { self.stream.copy(dst.data(), src.data(), dst.byte_len()) }
    }

    fn record(&mut self) -> Result<Event> {
        self.stream.enter()?;
        let mark = match self.spare.pop() {
            Some(mark) => mark,
            None => check("cuEventCreate", result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING))?,
        };
        // SAFETY: both are there, on one device.
        if let Err(error) = check("cuEventRecord", unsafe { result::event::record(mark, self.stream.cu_stream()) }) {
            self.spare.push(mark);
            return Err(error);
        }
        self.recorded += 1;
        self.open.push_back((Event(self.recorded), mark));
        Ok(Event(self.recorded))
    }

    fn poll(&mut self, event: Event) -> Result<bool> {
        let at = self.open.iter().position(|(open, _)| *open == event);
        let at = at.ok_or_else(|| Error::invalid(format!("{event:?} was not recorded on this queue")))?;
        // SAFETY: the mark is there.
        match unsafe { sys::cuEventQuery(self.open[at].1) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => {
                self.spare.extend(self.open.remove(at).map(|(_, mark)| mark));
                check("cuEventQuery", result.result()).map(|()| true)
            }
        }
    }

    fn synchronize(&mut self, deadline: Duration) -> Result<()> {
        self.wait(deadline)?;
        self.stream.enter()?;
        self.stream.pool().trim();
        self.staging.arrive()
    }

    fn raw(&self) -> *mut c_void {
        self.stream.cu_stream().cast()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.staging.is_lent() && self.wait(LIMIT).is_err() {
            tracing::warn!(device = %self.stream.device(), "copies are not done; their memory is kept for ever");
            self.staging.forget();
        }
        for mark in self.open.drain(..).map(|(_, mark)| mark).chain(self.spare.drain(..)) {
            // SAFETY: it was made here, and is destroyed once.
            _ = unsafe { result::event::destroy(mark) };
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<queue on {}>", self.stream.device())
    }
}
