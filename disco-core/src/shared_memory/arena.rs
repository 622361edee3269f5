//! Allocator of host tensors that peer processes can map.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use range_alloc::RangeAllocator;

use super::{Segment, os};
use crate::device::Device;
use crate::error::{Error, Memory, Result};
use crate::sync;
use crate::tensor::Storage;

/// Alignment of allocations in bytes: a pair of cache lines.
const ALIGN: usize = 128;

/// Allocates the shared tensors of one process in one [`Segment`], so that a peer maps all of them at once and
/// addresses each by its offset.
///
/// The segment reserves as much address space as the machine has memory. Each rank maps the segments of all ranks of
/// the machine, so all segments together are limited to 32 TiB. Limits of the process (`ulimit -f`, `ulimit -v`) make it
/// smaller. Pages are allocated on first use and kept for later
/// allocations.
#[derive(Debug)]
pub struct Arena {
    segment: Arc<Segment>,
    /// Number of ranks on this machine, each with an arena.
    ranks: usize,
    ranges: Mutex<Ranges>,
    /// Bytes of allocated ranges.
    used: AtomicUsize,
}

#[derive(Debug)]
struct Ranges {
    free: RangeAllocator<usize>,
    /// End of the range with allocated pages, which may contain old data.
    committed: usize,
}

/// Address space of the arenas of all ranks of a machine, in bytes: a quarter of that of a process, since a program may
/// have several sessions.
const MAX_ADDRESS_BYTES: usize = 32 << 40;

impl Arena {
    /// An empty arena on a machine with `ranks` ranks.
    ///
    /// # Errors
    /// The segment can't be reserved.
    pub fn new(ranks: usize) -> Result<Arc<Self>> {
        let bytes = span(os::memory(), ranks, os::limit(ranks));
        let segment = Arc::new(Segment::reserve(bytes)?);
        Ok(Arc::new(Self {
            segment,
            ranks,
            ranges: Mutex::new(Ranges { free: RangeAllocator::new(0..bytes), committed: 0 }),
            used: AtomicUsize::new(0),
        }))
    }

    /// The segment that peers map.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Allocates zeroed host memory for a tensor; dropping the storage frees it.
    ///
    /// # Errors
    /// The arena is full, or the system has too little memory.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Arc<Storage>> {
        let (storage, used) = self.alloc_for_result(bytes)?;
        // SAFETY: nothing else has the storage yet, and it is at least `used` bytes long.
        unsafe { storage.pointer().write_bytes(0, used) };
        Ok(storage)
    }

    /// As [`Arena::alloc`], without writing zeros: the first bytes, as many as it returns, may be those of a dropped tensor.
    pub(crate) fn alloc_for_result(self: &Arc<Self>, bytes: usize) -> Result<(Arc<Storage>, usize)> {
        let no_room = || {
            let (span, ranks) = (self.segment.byte_len(), self.ranks);
            let limited = if span < self::span(os::memory(), ranks, None) {
                " within the limits of this process (`ulimit -f`, `ulimit -v`)"
            } else {
                ""
            };
            let why = format!(
                "all tensors of a worker have {span} bytes together where {ranks} workers share a machine{limited}; private \
                 memory (`Tensor::zeros`) has no such limit"
            );
            Error::OutOfMemory { bytes, memory: Memory::Shared, why: Some(why) }
        };
        let size = bytes.max(1).checked_next_multiple_of(ALIGN).ok_or_else(no_room)?;
        let (range, used) = {
            let mut ranges = self.ranges();
            let range = ranges.free.allocate_range(size).map_err(|_| no_room())?;
            let used = ranges.committed.clamp(range.start, range.end) - range.start;
            if range.end > ranges.committed {
                if let Err(error) = self.segment.commit(ranges.committed..range.end) {
                    ranges.free.free_range(range);
                    return Err(error);
                }
                ranges.committed = range.end;
            }
            (range, used)
        };
        let pointer = self.segment.pointer().wrapping_add(range.start);
        self.used.fetch_add(range.len(), Ordering::Relaxed);
        let owner = Block { arena: self.clone(), range };
        // SAFETY: the range has pages. `owner` keeps the arena, and so the mapping, alive, and the range is allocated again
        // only after `owner` is dropped. Peers access the memory only while an access is held on their behalf.
        let storage = unsafe { Storage::from_raw(pointer, bytes, Device::CPU, Box::new(owner)) };
        Ok((storage, used))
    }

    /// Bytes of all tensors that are alive.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The offset of `pointer` in the segment, if the segment contains the `bytes` bytes from `pointer` on.
    pub fn offset_of(&self, pointer: *const u8, bytes: usize) -> Option<usize> {
        let offset = pointer.addr().checked_sub(self.segment.pointer().addr())?;
        (offset.checked_add(bytes)? <= self.segment.byte_len()).then_some(offset)
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        sync::lock(&self.ranges)
    }
}

/// Address space of one arena, in bytes, for `ranks` ranks on a machine with `memory` bytes, in a process that permits at
/// most `limit` bytes: a multiple of 2 MiB pages.
fn span(memory: usize, ranks: usize, limit: Option<usize>) -> usize {
    const HUGE_PAGE: usize = 2 << 20;
    let share = (MAX_ADDRESS_BYTES / ranks.max(1)).min(limit.unwrap_or(usize::MAX)) / HUGE_PAGE * HUGE_PAGE;
    memory.next_power_of_two().min(share).max(HUGE_PAGE)
}

/// The memory of one tensor.
struct Block {
    arena: Arc<Arena>,
    range: Range<usize>,
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.used.fetch_sub(self.range.len(), Ordering::Relaxed);
        self.arena.ranges().free.free_range(self.range.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::tensor::Tensor;

    #[test]
    fn tensors_are_zeroed_disjoint_and_have_offsets() {
        let arena = Arena::new(1).unwrap();
        let tensor = |arena: &Arc<Arena>| Tensor::from_storage(arena.alloc(40).unwrap(), DType::F32, [10]).unwrap();
        let (a, b) = (tensor(&arena), tensor(&arena));
        a.view_mut::<f32>().unwrap().fill(1.0);
        b.view_mut::<f32>().unwrap().fill(2.0);
        assert_eq!(a.to_vec::<f32>().unwrap(), [1.0; 10]);
        let offset = |tensor: &Tensor| arena.offset_of(tensor.data(), tensor.byte_len());
        assert_eq!((offset(&a), offset(&b)), (Some(0), Some(128)));
        let elsewhere = Tensor::zeros(DType::F32, [10]).unwrap();
        assert_eq!(offset(&elsewhere), None);
        drop(a);
        let again = tensor(&arena);
        assert_eq!((offset(&again), again.to_vec::<f32>().unwrap()), (Some(0), vec![0.0; 10]));
    }

    #[test]
    fn memory_for_a_result_is_not_zeroed() {
        let arena = Arena::new(1).unwrap();
        let tensor = |storage| Tensor::from_storage(storage, DType::F32, [10]).unwrap();
        tensor(arena.alloc(40).unwrap()).view_mut::<f32>().unwrap().fill(1.0);
        let again = tensor(arena.alloc_for_result(40).unwrap().0);
        assert_eq!(again.to_vec::<f32>().unwrap(), [1.0; 10]);
        let fresh = tensor(arena.alloc_for_result(40).unwrap().0);
        assert_eq!(fresh.to_vec::<f32>().unwrap(), [0.0; 10]);
    }

    #[test]
    fn a_tensor_keeps_its_arena_alive() {
        let tensor = Tensor::from_storage(Arena::new(1).unwrap().alloc(8).unwrap(), DType::F64, [1]).unwrap();
        tensor.view_mut::<f64>().unwrap()[0] = 3.0;
        assert_eq!(tensor.to_vec::<f64>().unwrap(), [3.0]);
    }

    #[test]
    fn an_allocation_larger_than_the_arena_is_an_error() {
        let arena = Arena::new(1).unwrap();
        for bytes in [usize::MAX, arena.segment().byte_len() + 1] {
            assert!(arena.alloc(bytes).unwrap_err().to_string().starts_with("no room for"));
        }
        assert!(arena.alloc(0).is_ok());
    }

    #[test]
    fn arenas_of_all_ranks_of_a_machine_with_1_tib_fit_in_the_address_space() {
        let span = |memory, ranks| span(memory, ranks, None);
        assert_eq!((span(1 << 40, 8), span(24 << 30, 126)), (1 << 40, 32 << 30), "as much as the machine has");
        for ranks in [33, 126, 1000] {
            let mapped: Result<Vec<Segment>> = (0..ranks).map(|_| Segment::reserve(span(1 << 40, ranks))).collect();
            mapped.unwrap();
        }
    }

    #[test]
    fn the_error_of_a_full_arena_names_its_size_and_the_alternative() {
        let arena = Arena::new(1 << 20).unwrap();
        let refused = arena.alloc(33 << 20).unwrap_err().to_string();
        assert_eq!(
            refused,
            "no room for 34603008 bytes of shared memory: all tensors of a worker have 33554432 bytes together where \
             1048576 workers share a machine; private memory (`Tensor::zeros`) has no such limit"
        );
    }
}
