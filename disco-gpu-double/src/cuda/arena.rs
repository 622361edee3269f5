//! Where device memory lies: in one sparse file in memory for each device, which other processes may open. Each block of it is
//! behind a stamp, a number that no other block has, for as long as it is allocated.

#![allow(unsafe_code)]

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process;
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use range_alloc::RangeAllocator;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags};
use rustix::io::Result;
use rustix::mm::{MapFlags, ProtFlags};

use crate::sync::lock;

/// Addresses of each device, used or not: more than the bytes that it has, so that no order of blocks uses them up.
const ROOM: usize = 1 << 36;
/// What CUDA aligns allocations to, at least. The stamp is so far in front of a block's bytes.
const ALIGNMENT: usize = 512;
/// A multiple of every page's size.
const PAGE: usize = 1 << 16;
/// Blocks from this size on leave no memory behind.
const LARGE: usize = 1 << 20;
/// By this name a file of an arena's is known.
const NAME: &str = "gpu-double";

/// A device's memory.
pub(crate) struct Arena {
    file: OwnedFd,
    mapping: Mapping,
    free: Mutex<RangeAllocator<usize>>,
}

/// Bytes of a device, at an address of this process. They stay for as long as somebody has the block, retired or not.
pub(crate) struct Block {
    stamp: u64,
    /// Where the stamp is.
    start: NonNull<u8>,
    bytes: usize,
    home: Home,
}

/// Where a block is to be found by another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The number that the file has in the process whose memory it is.
    pub(crate) file: u32,
    /// Where the stamp is in the file.
    pub(crate) offset: u64,
    /// Of the block.
    pub(crate) bytes: u64,
    /// The stamp.
    pub(crate) stamp: u64,
}

enum Home {
    /// A device of this process.
    Own { arena: &'static Arena, range: Range<usize> },
    /// One of another.
    Opened { process: u32, place: Place, _mapping: Mapping },
}

/// Part of a file in memory.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: bytes of a mapping are touched by no reference that outlives it, whoever has it.
unsafe impl Send for Mapping {}
// SAFETY: as above; who writes at the same time as another leaves bytes of either, as on a device.
unsafe impl Sync for Mapping {}
// SAFETY: it has its mapping, or that of an arena, which stays.
unsafe impl Send for Block {}
// SAFETY: as of mappings.
unsafe impl Sync for Block {}

impl Arena {
    /// All of it is free.
    pub(crate) fn new() -> Result<Self> {
        let file = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, ROOM as u64)?;
        let mapping = Mapping::new(&file, 0, ROOM)?;
        Ok(Self { file, mapping, free: Mutex::new(RangeAllocator::new(0..ROOM)) })
    }

    /// A block with a stamp.
    pub(crate) fn allocate(&'static self, bytes: usize) -> Option<Block> {
        let whole = bytes.checked_next_multiple_of(ALIGNMENT)?.checked_add(ALIGNMENT)?;
        let range = lock(&self.free).allocate_range(whole).ok()?;
        let start = self.mapping.at(range.start);
        // 0 is the stamp of none.
        let stamp = RandomState::new().hash_one(()) | 1;
        let block = Block { stamp, start, bytes, home: Home::Own { arena: self, range } };
        block.word().store(stamp, SeqCst);
        Some(block)
    }

    fn free(&self, range: Range<usize>) {
        let pages = range.start.next_multiple_of(PAGE)..range.end / PAGE * PAGE;
        if range.len() >= LARGE && !pages.is_empty() {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Without one the memory is kept for the next block there.
            _ = rustix::fs::fallocate(&self.file, hole, pages.start as u64, pages.len() as u64);
        }
        lock(&self.free).free_range(range);
    }
}

impl Block {
    /// A block of another process, which has been neither retired, nor has the process ended.
    pub(crate) fn open(process: u32, place: &Place) -> Option<Self> {
        let (offset, bytes) = (usize::try_from(place.offset).ok()?, usize::try_from(place.bytes).ok()?);
        let end = offset.checked_add(ALIGNMENT)?.checked_add(bytes)?;
        if offset % ALIGNMENT != 0 || bytes == 0 || end > ROOM {
            return None;
        }
        let mut path = String::new();
        write!(path, "/proc/{process}/fd/{}", place.file).ok()?;
        let target = rustix::fs::readlink(path.as_str(), Vec::new()).ok()?;
        if !target.to_bytes().starts_with(format!("/memfd:{NAME} ").as_bytes()) {
            return None;
        }
        let file = rustix::fs::open(path.as_str(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let is_whole = rustix::fs::fstat(&file).ok()?.st_size as u64 == ROOM as u64;
        let first = offset / PAGE * PAGE;
        let mapping = is_whole.then(|| Mapping::new(&file, first, end.next_multiple_of(PAGE) - first))?.ok()?;
        let start = mapping.at(offset - first);
        let home = Home::Opened { process, place: *place, _mapping: mapping };
        let block = Self { stamp: place.stamp, start, bytes, home };
        block.is_live().then_some(block)
    }

    /// Where other processes find it; none, if it is of another itself.
    pub(crate) fn place(&self) -> Option<Place> {
        let Home::Own { arena, range } = &self.home else { return None };
        let file = u32::try_from(arena.file.as_raw_fd()).ok()?;
        Some(Place { file, offset: range.start as u64, bytes: self.bytes as u64, stamp: self.stamp })
    }

    /// The process whose memory it is, and where others find it there.
    pub(crate) fn origin(&self) -> Option<(u32, Place)> {
        match &self.home {
            Home::Own { .. } => self.place().map(|place| (process::id(), place)),
            Home::Opened { process, place, .. } => Some((*process, *place)),
        }
    }

    /// Whether its stamp is still there.
    pub(crate) fn is_live(&self) -> bool {
        self.word().load(SeqCst) == self.stamp
    }

    /// Takes the stamp off, for all processes.
    pub(crate) fn retire(&self) {
        self.word().store(0, SeqCst);
    }

    /// Where its bytes begin.
    pub(crate) fn base(&self) -> NonNull<u8> {
        // SAFETY: there are as many bytes in front of the block's.
        unsafe { self.start.add(ALIGNMENT) }
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the mapping is there for as long as the block is, and blocks begin at multiples of 512 bytes.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().cast()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Home::Own { arena, range } = &self.home {
            arena.free(range.clone());
        }
    }
}

impl Mapping {
    fn new(file: &OwnedFd, offset: usize, bytes: usize) -> Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: it is put where nothing is.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, flags, file, offset as u64) }?;
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, bytes })
    }

    /// An address in it.
    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes, "outside of the mapping");
        // SAFETY: it is inside, by those who ask.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nobody has an address of it any more.
        // What is not unmapped stays where it is.
        _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
