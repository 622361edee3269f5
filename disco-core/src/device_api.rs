//! Memory, copies and streams of one kind of device.

use std::any::Any;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result, Unavailable};
use crate::shared_memory::Arena;
use crate::tensor::{Storage, Tensor};

/// The API of a device kind. The host is built in; the crates of CUDA and HIP register theirs, as backends do.
pub trait DeviceApi: Debug + Send + Sync + 'static {
    /// The device kind.
    fn kind(&self) -> DeviceKind;

    /// Number of devices of this kind that the process sees.
    ///
    /// # Errors
    /// There is no working driver.
    fn count(&self) -> Result<usize, Unavailable>;

    /// Makes a device current on the calling thread and creates a stream on it.
    ///
    /// # Errors
    /// There is no such device, or the driver fails.
    fn bind(&self, device: Device) -> Result<Box<dyn Queue>>;
}

/// A worker's stream on a device. Stays on the thread that made it.
///
/// Operations execute in the order of the calls. Tensors are contiguous; both tensors of a copy have the same number of
/// bytes. A vendor's crate downcasts a queue, as [`Any`], to its own type to get the vendor's stream.
///
/// # Pinned memory
/// A copy between an ordinary host tensor and a device goes through memory of the queue, which the host fills or empties.
/// A copy of a tensor in pinned memory ([`Queue::alloc_pinned`]), or of a window of it, is one asynchronous copy of the
/// driver. The stream reads or writes the tensor after the call has returned. Therefore the queue claims the storage until
/// the stream has passed the last copy of it:
///
/// - [`Queue::copy_in`] claims the storage for reading, [`Queue::copy_out`] for writing. Until the claim ends, views that
///   it excludes fail with [`Error::Busy`]: the copy may still be running. Views that exclude the claim make the copy fail
///   with [`Error::Busy`]. The claim is for the whole storage, so use two allocations for double buffering.
/// - All copies of one queue share its claim, because they run in order.
/// - The claim ends in [`Queue::synchronize`], in a [`Queue::poll`] that returns true for an event behind the last copy,
///   and, if the stream has passed the last copy, in this queue's next copy from or to the host. The synchronisation of a
///   communicator does not end it.
/// - The claim keeps the memory alive if the tensor or the queue is dropped.
pub trait Queue: Any + Debug {
    /// The device.
    fn device(&self) -> Device;

    /// Allocates zeroed device memory.
    ///
    /// # Errors
    /// The device has too little free memory.
    fn alloc(&mut self, bytes: usize) -> Result<Arc<Storage>>;

    /// Allocates device memory with any content, for the result of an operation that writes all of it. Without an
    /// implementation of its own it is [`Queue::alloc`].
    ///
    /// # Errors
    /// As [`Queue::alloc`].
    fn alloc_for_result(&mut self, bytes: usize) -> Result<Arc<Storage>> {
        self.alloc(bytes)
    }

    /// Allocates zeroed host memory for copies: [pinned memory](Queue#pinned-memory) if the device has such memory,
    /// ordinary memory otherwise. Use it for tensors that are copied many times: an allocation takes longer than a copy of
    /// as many bytes, the system can't swap pinned memory out, and while the process has a communicator, dropped pinned
    /// memory is kept for the next allocation of the same size.
    ///
    /// # Errors
    /// The host has too little memory, or the driver fails.
    fn alloc_pinned(&mut self, bytes: usize) -> Result<Arc<Storage>> {
        Storage::host(bytes)
    }

    /// Copies from the host to the device. Reads the source before it returns, unless the source is in [pinned
    /// memory](Queue#pinned-memory).
    ///
    /// # Errors
    /// The sizes differ, a view writes to the source ([`Error::Busy`]), or the driver fails.
    fn copy_in(&mut self, dst: &Tensor, src: &Tensor) -> Result<()>;

    /// Copies from the device to the host; complete after [`Queue::synchronize`], or once the claim of [pinned
    /// memory](Queue#pinned-memory) has ended.
    ///
    /// # Errors
    /// As [`Queue::copy_in`]. While the program views the target, this call fails with [`Error::Busy`] if the target is
    /// in [pinned memory](Queue#pinned-memory), otherwise the synchronisation does.
    fn copy_out(&mut self, dst: &Tensor, src: &Tensor) -> Result<()>;

    /// Copies within the device, also between windows of one storage.
    ///
    /// # Errors
    /// The sizes differ, the tensors overlap in part, or the driver fails.
    fn copy_within(&mut self, dst: &Tensor, src: &Tensor) -> Result<()>;

    /// Records an event at this point of the stream.
    ///
    /// # Errors
    /// The driver fails.
    fn record(&mut self) -> Result<Event>;

    /// Whether the stream has passed an event. After it has returned true, the event is no longer valid.
    ///
    /// # Errors
    /// The event belongs to another queue, or the driver reports that earlier work failed.
    fn poll(&mut self, event: Event) -> Result<bool>;

    /// Waits for all work on the stream.
    ///
    /// # Errors
    /// [`Error::Deadline`], or the driver fails.
    fn synchronize(&mut self, deadline: Duration) -> Result<()>;

    /// The vendor's stream handle; null on the host.
    fn raw(&self) -> *mut c_void;
}

/// An event recorded in a [`Queue`].
#[allow(clippy::exhaustive_structs, reason = "queues make them: a number and nothing else")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub u64);

/// An entry of a device kind in the registry.
#[allow(clippy::exhaustive_structs, reason = "crates that register a device kind write one")]
#[derive(Clone, Copy, Debug)]
pub struct DeviceEntry(pub &'static dyn DeviceApi);

inventory::collect!(DeviceEntry);

inventory::submit! { DeviceEntry(&Host) }

/// The API of a device's kind.
///
/// # Errors
/// [`Error::Unavailable`] if no crate of this program registers the kind.
pub fn find(kind: DeviceKind) -> Result<&'static dyn DeviceApi> {
    let found = inventory::iter::<DeviceEntry>.into_iter().map(|entry| entry.0).find(|api| api.kind() == kind);
    found.ok_or_else(|| {
        let tried = vec![("the device kinds compiled into this program".into(), "not among them".into())];
        Error::Unavailable(Unavailable { tried, ..Unavailable::new(format!("device kind `{kind}`")) })
    })
}

/// Host memory.
#[allow(clippy::exhaustive_structs, reason = "a unit")]
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl DeviceApi for Host {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn count(&self) -> Result<usize, Unavailable> {
        Ok(1)
    }

    fn bind(&self, device: Device) -> Result<Box<dyn Queue>> {
        match device {
            Device::CPU => Ok(host_queue(None)),
            other => Err(Error::invalid(format!("{other} is not the host"))),
        }
    }
}

/// The host's queue. It allocates in `arena` if there is one.
pub(crate) fn host_queue(arena: Option<Arc<Arena>>) -> Box<dyn Queue> {
    Box::new(HostQueue { arena, recorded: 0, open: VecDeque::new() })
}

/// The host's queue: each operation is complete when its call returns.
struct HostQueue {
    arena: Option<Arc<Arena>>,
    recorded: u64,
    open: VecDeque<Event>,
}

crate::format_as!(Debug for HostQueue, |_| "<host queue>");

impl Queue for HostQueue {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn alloc(&mut self, bytes: usize) -> Result<Arc<Storage>> {
        match &self.arena {
            Some(arena) => arena.alloc(bytes),
            None => Storage::host(bytes),
        }
    }

    fn alloc_for_result(&mut self, bytes: usize) -> Result<Arc<Storage>> {
        match &self.arena {
            Some(arena) => arena.alloc_for_result(bytes).map(|(storage, _)| storage),
            None => Storage::host(bytes),
        }
    }

    fn copy_in(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        dst.copy_from(src)
    }

    fn copy_out(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        dst.copy_from(src)
    }

    fn copy_within(&mut self, dst: &Tensor, src: &Tensor) -> Result<()> {
        dst.copy_from(src)
    }

    fn record(&mut self) -> Result<Event> {
        self.recorded += 1;
        self.open.push_back(Event(self.recorded));
        Ok(Event(self.recorded))
    }

    fn poll(&mut self, event: Event) -> Result<bool> {
        match self.open.iter().position(|open| *open == event) {
            Some(at) => Ok(self.open.remove(at).is_some()),
            None => Err(Error::state(format!("{event:?} was not recorded on this queue"))),
        }
    }

    fn synchronize(&mut self, _: Duration) -> Result<()> {
        Ok(())
    }

    fn raw(&self) -> *mut c_void {
        std::ptr::null_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn the_host_is_always_available() {
        let mut queue = find(DeviceKind::Cpu).unwrap().bind(Device::CPU).unwrap();
        assert_eq!(queue.alloc(10).unwrap().byte_len(), 10);
        let event = queue.record().unwrap();
        assert!(queue.poll(event).unwrap());
        assert!(queue.poll(event).is_err(), "a passed mark is forgotten");
    }

    #[test]
    fn pinned_memory_of_the_host_is_zeroed_ordinary_memory() {
        let mut queue = find(DeviceKind::Cpu).unwrap().bind(Device::CPU).unwrap();
        let storage = queue.alloc_pinned(5).unwrap();
        assert!(storage.device().is_host());
        let tensor = Tensor::from_storage(storage, DType::U8, [5]).unwrap();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), [0; 5]);
        queue.copy_out(&tensor, &Tensor::from_slice(&[1u8, 2, 3, 4, 5], [5]).unwrap()).unwrap();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), [1, 2, 3, 4, 5], "the copy is over");
    }

    #[test]
    fn windows_of_one_storage_are_copied_unless_they_overlap() {
        let mut queue = find(DeviceKind::Cpu).unwrap().bind(Device::CPU).unwrap();
        let all = Tensor::from_slice(&[1i32, 2, 3, 4, 5], [5]).unwrap();
        let window = |start| all.window(start, [2]).unwrap();
        queue.copy_within(&window(3), &window(0)).unwrap();
        queue.copy_within(&window(0), &window(0)).unwrap();
        assert_eq!(all.to_vec::<i32>().unwrap(), [1, 2, 3, 1, 2]);
        let error = queue.copy_within(&window(1), &window(0)).unwrap_err().to_string();
        assert!(error.ends_with(", which overlap"), "{error}");
        let view = all.view::<i32>().unwrap();
        assert!(matches!(queue.copy_within(&window(3), &window(0)), Err(Error::Busy(_))));
        drop(view);
    }

    #[test]
    fn finding_an_absent_device_kind_returns_unavailable() {
        let absent = find(DeviceKind::Rocm).err().unwrap();
        assert!(absent.to_string().starts_with("device kind `rocm` is not available"), "{absent}");
    }
}
