//! Copies of results to the host, each waited for alone: later work of the device goes on meanwhile.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::CudaStorage;
use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor};
use disco_core::device_api::Event;
use disco_core::{Device, Element, Queue};

use crate::collective::contiguous_range;
use crate::comm::Comm;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::error::to_candle;
use crate::lend;

/// How long a wait polls without a pause.
const SPINNING: Duration = Duration::from_millis(20);
/// After this time, the communicator waits, which ends at its deadline and names the rank that is missing.
const POLLING: Duration = Duration::from_secs(1);
/// The pause between two polls.
const PAUSE: Duration = Duration::from_micros(50);

/// Host memory for copies of results, which is used again and again.
#[derive(Debug, Default)]
pub struct Reader {
    free: Vec<disco_core::Tensor>,
}

/// A copy to the host under way.
#[derive(Debug)]
pub struct Reading {
    host: disco_core::Tensor,
    event: Event,
}

/// The copy, as an operation of candle, which has access to the storage.
struct Read<'a> {
    queue: RefCell<&'a mut dyn Queue>,
    host: &'a disco_core::Tensor,
    #[cfg(feature = "cuda")]
    comm: &'a Comm,
}

impl Reader {
    /// Begins the copy of a contiguous tensor, behind all work on its device so far. `queue` is that of the worker, on the
    /// tensor's device.
    ///
    /// # Errors
    /// The tensor is on another device than the queue; errors of the driver.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only streams need a communicator"))]
    pub fn begin<T: Element>(&mut self, tensor: &Tensor, comm: &Comm, queue: &mut dyn Queue) -> Result<Reading> {
        let len = tensor.elem_count();
        let fits = |host: &disco_core::Tensor| host.dtype() == T::DTYPE && host.elements() == len;
        let host = match self.free.iter().position(fits) {
            Some(at) => self.free.swap_remove(at),
            None => disco_core::Tensor::in_new_storage(T::DTYPE, [len as i64], |bytes| queue.alloc_pinned(bytes))
                .map_err(to_candle)?,
        };
        tensor.inplace_op1(&Read {
            queue: RefCell::new(&mut *queue),
            host: &host,
            #[cfg(feature = "cuda")]
            comm,
        })?;
        let event = queue.record().map_err(to_candle)?;
        Ok(Reading { host, event })
    }

    /// The elements, once the copy is done.
    ///
    /// # Errors
    /// [`Error::Deadline`](disco_core::Error::Deadline) with the missing rank; a collective before the copy has failed;
    /// errors of the driver.
    pub fn finish<T: Element>(&mut self, reading: Reading, comm: &Comm, queue: &mut dyn Queue) -> Result<Vec<T>> {
        let (start, mut has_waited) = (Instant::now(), false);
        while !queue.poll(reading.event).map_err(to_candle)? {
            match start.elapsed() {
                waited if waited < SPINNING => thread::yield_now(),
                waited if waited < POLLING || has_waited => thread::sleep(PAUSE),
                _ => {
                    comm.synchronize().map_err(to_candle)?;
                    has_waited = true;
                }
            }
        }
        let elements = reading.host.to_vec();
        self.free.push(reading.host);
        elements.map_err(to_candle)
    }
}

impl Read<'_> {
    fn copy(&self, lent: &disco_core::Tensor) -> disco_core::Result<()> {
        let mut queue = self.queue.borrow_mut();
        match (queue.device(), lent.device()) {
            (on, Device::CPU) if on != Device::CPU => self.host.copy_from(lent),
            _ => queue.copy_out(self.host, lent),
        }
    }
}

impl InplaceOp1 for Read<'_> {
    fn name(&self) -> &'static str {
        "read"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let range = contiguous_range(self.name(), layout)?;
        lend::lend_storage(storage, range, |lent| self.copy(lent)).map_err(to_candle)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let range = contiguous_range(self.name(), layout)?;
        let stream = cuda::stream(self.comm, &mut **self.queue.borrow_mut()).map_err(to_candle)?;
        cuda::lend_storage(&stream, storage, range, |lent| self.copy(lent)).map_err(to_candle)
    }
}
