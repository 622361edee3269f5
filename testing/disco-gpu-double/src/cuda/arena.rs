//! Device memory: one sparse memory file (memfd) per device, which other processes may open. Each allocated block is
//! preceded by a stamp, a number that no other block has.

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

/// Size of each device's address range. Larger than the device's memory, so that fragmentation does not exhaust it.
const ADDRESS_SPACE_BYTES: usize = 1 << 36;
/// Minimum alignment of CUDA's allocations, and the distance of a stamp from the bytes of its block.
const ALIGNMENT: usize = 512;
/// A multiple of every page's size.
const PAGE: usize = 1 << 16;
/// Freed blocks of at least this size return their memory to the system.
const PUNCH_HOLE_BYTES: usize = 1 << 20;
/// Name of the memory files of arenas.
const FILE_NAME: &str = "gpu-double";

/// A device's memory.
pub(crate) struct Arena {
    file: OwnedFd,
    mapping: Mapping,
    free: Mutex<RangeAllocator<usize>>,
}

/// A block of device memory, mapped in this process. The memory lives as long as this value, even after it was retired.
pub(crate) struct Block {
    stamp: u64,
    /// Address of the stamp.
    start: NonNull<u8>,
    bytes: usize,
    backing: Backing,
}

/// Location of a block, for other processes.
#[derive(Clone, Copy, Debug, serde::Deserialize, PartialEq, Eq, serde::Serialize)]
pub(crate) struct BlockLocator {
    /// File descriptor in the process that owns the memory.
    pub(crate) file: u32,
    /// Offset of the stamp in the file.
    pub(crate) offset: u64,
    /// Size of the block.
    pub(crate) bytes: u64,
    /// The stamp.
    pub(crate) stamp: u64,
}

enum Backing {
    /// Memory of this process's arena.
    Own { arena: &'static Arena, range: Range<usize> },
    /// Memory of another process.
    Opened { process: u32, locator: BlockLocator, _mapping: Mapping },
}

/// A mapped part of a memory file.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: no reference to the mapped bytes outlives the mapping, on any thread.
unsafe impl Send for Mapping {}
// SAFETY: no reference to the mapped bytes outlives the mapping. Bytes are accessed by raw pointers only, like device
// memory.
unsafe impl Sync for Mapping {}
// SAFETY: a block owns its mapping, or uses that of an arena, which is never unmapped.
unsafe impl Send for Block {}
// SAFETY: a mapping is `Sync`, and the stamp is accessed atomically.
unsafe impl Sync for Block {}

impl Arena {
    /// Creates an empty arena.
    pub(crate) fn new() -> Result<Self> {
        let file = rustix::fs::memfd_create(FILE_NAME, MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, ADDRESS_SPACE_BYTES as u64)?;
        let mapping = Mapping::new(&file, 0, ADDRESS_SPACE_BYTES)?;
        Ok(Self { file, mapping, free: Mutex::new(RangeAllocator::new(0..ADDRESS_SPACE_BYTES)) })
    }

    /// Allocates a block and stamps it.
    pub(crate) fn allocate(&'static self, bytes: usize) -> Option<Block> {
        let whole = bytes.checked_next_multiple_of(ALIGNMENT)?.checked_add(ALIGNMENT)?;
        let range = lock(&self.free).allocate_range(whole).ok()?;
        let start = self.mapping.at(range.start);
        // 0 marks a block without a stamp.
        let stamp = RandomState::new().hash_one(()) | 1;
        let block = Block { stamp, start, bytes, backing: Backing::Own { arena: self, range } };
        block.word().store(stamp, SeqCst);
        Some(block)
    }

    fn free(&self, range: Range<usize>) {
        let pages = range.start.next_multiple_of(PAGE)..range.end / PAGE * PAGE;
        if range.len() >= PUNCH_HOLE_BYTES && !pages.is_empty() {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // If this fails, the memory is kept for the next block at these addresses.
            _ = rustix::fs::fallocate(&self.file, hole, pages.start as u64, pages.len() as u64);
        }
        lock(&self.free).free_range(range);
    }
}

impl Block {
    /// Opens a block of another process. `None` if the block was retired or the process has ended.
    pub(crate) fn open(process: u32, locator: &BlockLocator) -> Option<Self> {
        let (offset, bytes) = (usize::try_from(locator.offset).ok()?, usize::try_from(locator.bytes).ok()?);
        let end = offset.checked_add(ALIGNMENT)?.checked_add(bytes)?;
        if offset % ALIGNMENT != 0 || bytes == 0 || end > ADDRESS_SPACE_BYTES {
            return None;
        }
        let mut path = String::new();
        write!(path, "/proc/{process}/fd/{}", locator.file).ok()?;
        let target = rustix::fs::readlink(path.as_str(), Vec::new()).ok()?;
        if !target.to_bytes().starts_with(format!("/memfd:{FILE_NAME} ").as_bytes()) {
            return None;
        }
        let file = rustix::fs::open(path.as_str(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let is_whole = rustix::fs::fstat(&file).ok()?.st_size as u64 == ADDRESS_SPACE_BYTES as u64;
        let first = offset / PAGE * PAGE;
        let mapping = is_whole.then(|| Mapping::new(&file, first, end.next_multiple_of(PAGE) - first))?.ok()?;
        let start = mapping.at(offset - first);
        let backing = Backing::Opened { process, locator: *locator, _mapping: mapping };
        let block = Self { stamp: locator.stamp, start, bytes, backing };
        block.is_live().then_some(block)
    }

    /// The locator for other processes; `None` if the block belongs to another process.
    pub(crate) fn locator(&self) -> Option<BlockLocator> {
        let Backing::Own { arena, range } = &self.backing else { return None };
        let file = u32::try_from(arena.file.as_raw_fd()).ok()?;
        Some(BlockLocator { file, offset: range.start as u64, bytes: self.bytes as u64, stamp: self.stamp })
    }

    /// The process that owns the memory, and the locator.
    pub(crate) fn origin(&self) -> Option<(u32, BlockLocator)> {
        match &self.backing {
            Backing::Own { .. } => self.locator().map(|locator| (process::id(), locator)),
            Backing::Opened { process, locator, .. } => Some((*process, *locator)),
        }
    }

    /// Whether the block still has its stamp.
    pub(crate) fn is_live(&self) -> bool {
        self.word().load(SeqCst) == self.stamp
    }

    /// Clears the stamp, for all processes.
    pub(crate) fn retire(&self) {
        self.word().store(0, SeqCst);
    }

    /// Address of the first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        // SAFETY: the block's bytes follow the stamp's `ALIGNMENT` bytes in the same mapping.
        unsafe { self.start.add(ALIGNMENT) }
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the mapping lives as long as the block, and blocks begin at multiples of 512 bytes.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().cast()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Backing::Own { arena, range } = &self.backing {
            arena.free(range.clone());
        }
    }
}

impl Mapping {
    fn new(file: &OwnedFd, offset: usize, bytes: usize) -> Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: without a fixed address, the kernel chooses an unused range.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, flags, file, offset as u64) }?;
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, bytes })
    }

    /// The address at an offset, which must be inside.
    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes, "outside of the mapping");
        // SAFETY: all callers pass an offset inside the mapping.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and no address in it is used any more.
        // If this fails, the range stays mapped.
        _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
