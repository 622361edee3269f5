//! Memory with an owner and a borrow flag.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::device::Device;
use crate::dtype::Element;
use crate::error::{Error, Memory, Result};

/// Alignment of host storage in bytes: a cache line, which vector code and DLPack consumers prefer.
const ALIGN: usize = 64;

/// A range of device or host memory, kept alive by its owner.
///
/// Dropping the storage drops the owner on the same thread, which may be any thread. The owner of device memory makes
/// its context current itself.
pub struct Storage {
    pointer: *mut u8,
    bytes: usize,
    device: Device,
    /// Number of readers, or -1 for one writer.
    borrows: AtomicI32,
    /// Whether a worker got the storage as an argument, so that worker threads may share it.
    is_argument: AtomicBool,
    owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the storage never dereferences the pointer. Code that does holds an `Access`, and `borrows` makes a writing
// access exclusive across threads. The owner is Send and Sync by bound.
unsafe impl Send for Storage {}
// SAFETY: the storage never dereferences the pointer, `borrows` and `is_argument` are atomic, and the owner is Sync by
// bound. Shared references to a storage give its bytes only through an `Access`, which `borrows` makes exclusive for
// writers.
unsafe impl Sync for Storage {}

impl Storage {
    /// Zeroed host memory, aligned to 64 bytes.
    ///
    /// # Errors
    /// The allocation fails.
    pub fn host(bytes: usize) -> Result<Arc<Self>> {
        let block = HostBlock::new(bytes)?;
        let pointer = block.pointer;
        // SAFETY: `pointer` points to `bytes` initialised bytes until the block is dropped, and the storage owns the
        // block.
        Ok(unsafe { Self::from_raw(pointer, bytes, Device::CPU, Box::new(block)) })
    }

    /// The memory of a vector, without a copy. [`Storage::into_owner`] returns the vector.
    pub fn of_vec<T: Element>(elements: Vec<T>) -> Arc<Self> {
        Self::of_owner(elements, Vec::as_mut_slice)
    }

    /// The elements that `elements` borrows from `owner`, without a copy. [`Storage::into_owner`] returns the owner.
    pub fn of_owner<O: Send + 'static, T: Element>(owner: O, elements: impl FnOnce(&mut O) -> &mut [T]) -> Arc<Self> {
        let mut lent = Lent::new(owner);
        let elements = elements(lent.owner());
        let (pointer, bytes) = (elements.as_mut_ptr().cast(), size_of_val(elements));
        // SAFETY: `pointer` points to `bytes` initialised bytes that `elements` borrowed mutably from the owner. The
        // owner has a fixed address, and nothing accesses it until the storage drops it or returns it.
        unsafe { Self::from_raw(pointer, bytes, Device::CPU, Box::new(lent)) }
    }

    /// The owner that [`Storage::of_owner`] or [`Storage::of_vec`] got, of type `O`.
    ///
    /// # Errors
    /// The storage, if other tensors or a running operation share it, or if its owner is not an `O`.
    pub fn into_owner<O: Send + 'static>(self: Arc<Self>) -> Result<O, Arc<Self>> {
        if !self.owner.is::<Lent<O>>() {
            return Err(self);
        }
        let Self { pointer, bytes, device, borrows, is_argument, owner } = Arc::try_unwrap(self)?;
        match owner.downcast::<Lent<O>>() {
            Ok(lent) => Ok(lent.into_owner()),
            // Not reached: the type was compared above.
            Err(owner) => Err(Arc::new(Self { pointer, bytes, device, borrows, is_argument, owner })),
        }
    }

    /// A storage over memory that `owner` keeps alive.
    ///
    /// # Safety
    /// `pointer` is valid for `bytes` initialised bytes on `device`, for reads and writes, until `owner` is dropped,
    /// and nothing else touches them while an [`Access`] is held. [`Storage::owner`] gives shared references to the owner
    /// to all code that can name its type, so these give no access to the bytes.
    pub unsafe fn from_raw(
        pointer: *mut u8,
        bytes: usize,
        device: Device,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Self {
            pointer,
            bytes,
            device,
            borrows: AtomicI32::new(0),
            is_argument: AtomicBool::new(false),
            owner,
        })
    }

    /// Records that a worker got the storage as an argument.
    pub(crate) fn note_argument(&self) {
        // Relaxed suffices: the readers are this thread, and threads that get the storage as an argument later.
        self.is_argument.store(true, Ordering::Relaxed);
    }

    /// Whether a worker got the storage as an argument.
    pub(crate) fn is_argument(&self) -> bool {
        self.is_argument.load(Ordering::Relaxed)
    }

    /// The owner that [`Storage::from_raw`] got, if it is an `O`. A crate recognises its own storages by a private type.
    pub fn owner<O: Any>(&self) -> Option<&O> {
        self.owner.downcast_ref()
    }

    /// Address of the first byte, in the device's address space.
    pub fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Size in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// The device of the memory.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Claims the storage for reading, shared with other readers.
    ///
    /// # Errors
    /// [`Error::Busy`] while a writing view exists.
    pub fn read(self: &Arc<Self>) -> Result<Access> {
        self.claim(false)?;
        Ok(self.claimed(false))
    }

    /// Claims the storage for writing, exclusively.
    ///
    /// # Errors
    /// [`Error::Busy`] while any view exists.
    pub fn write(self: &Arc<Self>) -> Result<Access> {
        self.claim(true)?;
        Ok(self.claimed(true))
    }

    /// Takes a claim. The caller gives it back with [`Storage::release`], or passes it to [`Storage::claimed`].
    pub(crate) fn claim(&self, writes: bool) -> Result<()> {
        if writes { self.claim_write() } else { self.claim_read() }
    }

    /// An [`Access`] for a claim that the caller has taken.
    pub(crate) fn claimed(self: &Arc<Self>, writes: bool) -> Access {
        Access { storage: self.clone(), writes }
    }

    pub(crate) fn release(&self, writes: bool) {
        if writes { self.borrows.store(0, Ordering::Release) } else { _ = self.borrows.fetch_sub(1, Ordering::Release) }
    }

    /// Whether a view or an operation writes to the storage now.
    pub(crate) fn is_written(&self) -> bool {
        self.borrows.load(Ordering::Acquire) < 0
    }

    fn claim_read(&self) -> Result<()> {
        let claim = |n: i32| (0..i32::MAX).contains(&n).then(|| n + 1);
        match self.borrows.fetch_update(Ordering::Acquire, Ordering::Relaxed, claim) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Busy("a view or an operation writes to it")),
        }
    }

    fn claim_write(&self) -> Result<()> {
        match self.borrows.compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(-1) => Err(Error::Busy("a view or an operation writes to it")),
            Err(_) => Err(Error::Busy("a view or an operation reads it")),
        }
    }

    /// Makes the only reader the writer.
    fn upgrade_claim(&self) -> Result<()> {
        let upgraded = self.borrows.compare_exchange(1, -1, Ordering::Acquire, Ordering::Relaxed);
        upgraded.map(drop).map_err(|_| Error::Busy("another view or operation reads it"))
    }
}

crate::format_as!(Debug for Storage, |it| "<{} bytes on {} at {:p}>", it.bytes, it.device, it.pointer);

/// The right to read or to write a storage, which it also keeps alive. Dropping the access releases the storage.
///
/// A communicator holds an access for each tensor of a running operation.
#[must_use]
#[derive(Debug)]
pub struct Access {
    storage: Arc<Storage>,
    writes: bool,
}

impl Access {
    /// The claimed storage.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Makes this an access for writing, without a moment in which the storage is not claimed.
    ///
    /// # Errors
    /// [`Error::Busy`] while there are other readers. The access stays one for reading.
    pub fn upgrade(&mut self) -> Result<()> {
        if !self.writes {
            self.storage.upgrade_claim()?;
            self.writes = true;
        }
        Ok(())
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        self.storage.release(self.writes);
    }
}

/// An owner of lent memory, at an address that does not change when this value moves.
struct Lent<O> {
    /// From `Box::into_raw`. A `Box` would claim exclusive access to an owner that has its elements inside.
    owner: NonNull<O>,
}

// SAFETY: the value owns the `O`, which may be moved to and dropped on another thread.
unsafe impl<O: Send> Send for Lent<O> {}
// SAFETY: no method gives access to the `O` through a shared reference.
unsafe impl<O: Send> Sync for Lent<O> {}

impl<O> Lent<O> {
    fn new(owner: O) -> Self {
        Self { owner: NonNull::from(Box::leak(Box::new(owner))) }
    }

    fn owner(&mut self) -> &mut O {
        // SAFETY: `new` leaked a box of an `O`, which only this value points to.
        unsafe { self.owner.as_mut() }
    }

    fn into_owner(self) -> O {
        let pointer = ManuallyDrop::new(self).owner.as_ptr();
        // SAFETY: `new` leaked the box, and `ManuallyDrop` prevents that `drop` frees it, too.
        *unsafe { Box::from_raw(pointer) }
    }
}

impl<O> Drop for Lent<O> {
    fn drop(&mut self) {
        // SAFETY: `new` leaked the box. `into_owner` does not drop this value.
        drop(unsafe { Box::from_raw(self.owner.as_ptr()) });
    }
}

/// Zeroed memory of the global allocator.
struct HostBlock {
    pointer: *mut u8,
    layout: Layout,
}

// SAFETY: plain memory of the global allocator may be freed on any thread.
unsafe impl Send for HostBlock {}
// SAFETY: no method reads through a shared reference.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    fn new(bytes: usize) -> Result<Self> {
        let no_room = || Error::OutOfMemory { bytes, memory: Memory::Host, why: None };
        // The layout is never empty, so the allocator returns a unique address.
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).map_err(|_| no_room())?;
        // SAFETY: the layout's size is at least 1.
        let pointer = unsafe { alloc_zeroed(layout) };
        if pointer.is_null() { Err(no_room()) } else { Ok(Self { pointer, layout }) }
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.pointer, self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_is_upgraded_unless_another_one_reads() {
        let storage = Storage::host(1).unwrap();
        let (mut first, second) = (storage.read().unwrap(), storage.read().unwrap());
        assert!(matches!(first.upgrade(), Err(Error::Busy(_))));
        assert!(storage.read().is_ok(), "the access still reads");
        drop(second);
        first.upgrade().unwrap();
        first.upgrade().unwrap();
        assert!(matches!(storage.read(), Err(Error::Busy(_))));
        drop(first);
        assert!(storage.write().is_ok());
    }

    #[test]
    fn the_owner_is_found_by_its_type_only() {
        struct Mine;
        // SAFETY: no byte is accessed.
        let storage = unsafe { Storage::from_raw(std::ptr::null_mut(), 0, Device::CPU, Box::new(Mine)) };
        assert!(storage.owner::<Mine>().is_some() && storage.owner::<u8>().is_none());
        assert!(Storage::of_vec(vec![1u8]).owner::<Vec<u8>>().is_none(), "a lent vector is not visible");
    }
}
