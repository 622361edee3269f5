//! Where a process allocates tensors that its peers can map.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use range_alloc::RangeAllocator;

use super::{Segment, os};
use crate::device::Device;
use crate::error::{Error, Memory, Result};
use crate::sync;
use crate::tensor::Storage;

/// Alignment of what is allocated: pairs of cache lines.
const ALIGN: usize = 128;

/// Tensors of one process in one [`Segment`], so that a peer maps all of them at once and knows each by its offset.
///
/// The segment spans as many addresses as the machine has bytes of memory, or fewer where many ranks share a machine, since
/// each of them maps the segments of all: together they have at most 32 TiB. Pages come when they are first allocated and
/// stay for the next allocation.
#[derive(Debug)]
pub struct Arena {
    segment: Arc<Segment>,
    /// Ranks of this machine, each with an arena.
    ranks: usize,
    ranges: Mutex<Ranges>,
}

#[derive(Debug)]
struct Ranges {
    free: RangeAllocator<usize>,
    /// Everything before it has pages, and may have been written to.
    committed: usize,
}

/// Addresses, in bytes, of the arenas of all ranks of a machine: a quarter of those that a process has, since a program may
/// have several sessions.
const ADDRESSES: usize = 32 << 40;

impl Arena {
    /// An arena without a tensor, on a machine with so many `ranks`, whose arenas a process may all map.
    ///
    /// # Errors
    /// The system refuses the segment.
    pub fn new(ranks: usize) -> Result<Arc<Self>> {
        let bytes = span(os::memory(), ranks);
        let segment = Arc::new(Segment::reserve(bytes)?);
        Ok(Arc::new(Self {
            segment,
            ranks,
            ranges: Mutex::new(Ranges { free: RangeAllocator::new(0..bytes), committed: 0 }),
        }))
    }

    /// What peers map.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Zeroed host memory for a tensor, which goes back when it is dropped.
    ///
    /// # Errors
    /// The arena is full, or the system has no pages.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Arc<Storage>> {
        let no_room = || {
            let (span, ranks) = (self.segment.byte_len(), self.ranks);
            let why = format!(
                "all tensors of a worker have {span} bytes together where {ranks} workers share a machine; private memory \
                 (`Tensor::zeros`) has no such limit"
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
        let owner = Block { arena: self.clone(), range };
        // SAFETY: the range has pages, is ours alone until `owner` is dropped, and `used` is at most its size.
        unsafe { pointer.write_bytes(0, used) };
        // SAFETY: the memory is mapped as long as the arena lives, which `owner` has a share in, and nobody else gets the
        // range before `owner` is dropped. Peers that map it touch it only while an access is held for them.
        Ok(unsafe { Storage::from_raw(pointer, bytes, Device::CPU, Box::new(owner)) })
    }

    /// Where `bytes` bytes from `pointer` on lie in the segment, if they do.
    pub fn offset_of(&self, pointer: *const u8, bytes: usize) -> Option<usize> {
        let offset = pointer.addr().checked_sub(self.segment.pointer().addr())?;
        (offset.checked_add(bytes)? <= self.segment.byte_len()).then_some(offset)
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        sync::lock(&self.ranges)
    }
}

/// Bytes of the arena of each of `ranks` ranks on a machine with so much memory: a whole number of 2 MiB pages.
fn span(memory: usize, ranks: usize) -> usize {
    const HUGE_PAGE: usize = 2 << 20;
    let share = ADDRESSES / ranks.max(1) / HUGE_PAGE * HUGE_PAGE;
    memory.next_power_of_two().min(share).max(HUGE_PAGE)
}

/// The memory of one tensor.
struct Block {
    arena: Arc<Arena>,
    range: Range<usize>,
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.ranges().free.free_range(self.range.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::tensor::Tensor;

    #[test]
    fn tensors_are_zeroed_apart_and_known_by_their_offsets() {
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
    fn a_tensor_keeps_its_arena() {
        let tensor = Tensor::from_storage(Arena::new(1).unwrap().alloc(8).unwrap(), DType::F64, [1]).unwrap();
        tensor.view_mut::<f64>().unwrap()[0] = 3.0;
        assert_eq!(tensor.to_vec::<f64>().unwrap(), [3.0]);
    }

    #[test]
    fn no_room_is_an_error() {
        let arena = Arena::new(1).unwrap();
        for bytes in [usize::MAX, arena.segment().byte_len() + 1] {
            assert!(arena.alloc(bytes).unwrap_err().to_string().starts_with("no room for"));
        }
        assert!(arena.alloc(0).is_ok());
    }

    #[test]
    fn arenas_of_all_ranks_of_a_machine_with_1_tib_fit_in_the_address_space() {
        assert_eq!((span(1 << 40, 8), span(24 << 30, 126)), (1 << 40, 32 << 30), "as much as the machine has");
        for ranks in [33, 126, 1000] {
            let mapped: Result<Vec<Segment>> = (0..ranks).map(|_| Segment::reserve(span(1 << 40, ranks))).collect();
            mapped.unwrap();
        }
    }

    #[test]
    fn a_full_arena_says_how_large_it_is_and_what_else_there_is() {
        let arena = Arena::new(1 << 20).unwrap();
        let refused = arena.alloc(33 << 20).unwrap_err().to_string();
        assert_eq!(
            refused,
            "no room for 34603008 bytes of shared memory: all tensors of a worker have 33554432 bytes together where \
             1048576 workers share a machine; private memory (`Tensor::zeros`) has no such limit"
        );
    }
}
