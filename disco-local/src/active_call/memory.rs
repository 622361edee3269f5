//! Memory of ranks, as addresses: this file and `kernel` hold the unsafe code of this crate.

#![allow(unsafe_code)]

use std::ptr;

use disco_core::{DType, Error, Reduction, Result, Tensor};
use smallvec::SmallVec;

use crate::NAME;
use crate::address_space::AddressSpace;
use crate::board::{Board, Piece};
use crate::group::Group;
use crate::kernel::{self, Fold};

/// The most bytes that are touched between two looks at the failure flag, of all tensors together.
const MAX_BLOCK_BYTES: usize = 1 << 20;
/// What the blocks of several tensors are a multiple of, in bytes.
const PAGE_BYTES: usize = 4096;

/// As many as that need no allocation.
type InlineVec<T> = SmallVec<[T; 16]>;

/// A stretch of host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    data: *mut u8,
    bytes: usize,
}

impl Region {
    /// Nothing.
    pub(crate) const EMPTY: Self = Self { data: ptr::null_mut(), bytes: 0 };

    /// The elements of a contiguous host tensor, which operations were checked to have.
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self { data: tensor.data(), bytes: tensor.byte_len() }
    }

    /// Size in bytes.
    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }

    /// Whether both are the same bytes.
    pub(crate) fn is(self, other: Self) -> bool {
        self.data == other.data && self.bytes == other.bytes
    }

    /// `bytes` bytes from `start` on.
    ///
    /// # Errors
    /// They are not all in this region.
    pub(crate) fn part(self, start: usize, bytes: usize) -> Result<Self> {
        match start.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(Self { data: self.data.wrapping_add(start), bytes }),
            _ => Err(Error::protocol(format!("{bytes} bytes at {start} are not in a region of {}", self.bytes))),
        }
    }

    /// Block `index` of `size` equal ones.
    ///
    /// # Errors
    /// As [`Region::part`].
    pub(crate) fn block(self, index: usize, size: usize) -> Result<Self> {
        let bytes = self.bytes / size;
        self.part(index * bytes, bytes)
    }

    /// Share `index` of `size`: they differ by at most a cache line, and begin at one if the region does.
    ///
    /// # Errors
    /// As [`Region::part`].
    pub(crate) fn share(self, index: usize, size: usize) -> Result<Self> {
        const LINE_BYTES: usize = 64;
        let lines = self.bytes.div_ceil(LINE_BYTES);
        let start = |index: usize| (lines * index / size * LINE_BYTES).min(self.bytes);
        self.part(start(index), start(index + 1) - start(index))
    }

    /// Where it is, for the board.
    pub(super) fn location(self, address_space: &AddressSpace) -> u64 {
        if self.bytes == 0 { 0 } else { address_space.location(self.data, self.bytes) }
    }

    /// What `rank` has published.
    ///
    /// # Errors
    /// It is not in that rank's memory.
    pub(super) fn find(address_space: &AddressSpace, rank: usize, location: u64, bytes: u64) -> Result<Self> {
        let bytes = bytes as usize;
        if bytes == 0 { Ok(Self::EMPTY) } else { Ok(Self { data: address_space.find(rank, location, bytes)?, bytes }) }
    }

    /// A piece of `rank`'s staging area; nothing where there is none.
    pub(super) fn staged(board: &Board, rank: usize, piece: Piece) -> Self {
        let range = board.piece(rank, piece);
        let segment = board.segment().filter(|segment| range.end <= segment.byte_len());
        segment.map_or(Self::EMPTY, |segment| Self {
            data: segment.pointer().wrapping_add(range.start),
            bytes: range.len(),
        })
    }
}

/// The right of one rank to touch memory, in the middle of its [`Turn`](super::Turn): its own tensors, and between two
/// points what its peers have published.
///
/// Regions passed in are parts of the tensors of this rank's call or letter, of what peers have posted for the same
/// collective, of this rank's own buffers, or of staging areas, which are there as long as the group.
pub(crate) struct Memory<'t> {
    group: &'t Group,
    rank: usize,
    /// Whether results go past the caches.
    stream: bool,
    /// Touches this rank's own memory alone, which no failure takes away.
    own: bool,
}

impl<'t> Memory<'t> {
    /// For [`Turn`](super::Turn) alone, which borrows itself mutably for it: it can't end the right meanwhile.
    pub(super) fn new(group: &'t Group, rank: usize) -> Self {
        Self { group, rank, stream: false, own: false }
    }

    /// The same for memory of this rank alone: what its peers did not fail to do is done, whatever fails now.
    pub(super) fn own(self) -> Self {
        Self { own: true, ..self }
    }

    /// The same, with results that go past the caches if `stream`.
    pub(crate) fn streaming(self, stream: bool) -> Self {
        Self { stream, ..self }
    }

    /// Copies `from` over `to`, which is as large. The very same bytes are left alone.
    pub(crate) fn copy(&self, to: Region, from: Region) -> Result<()> {
        same_size(to, from)?;
        if to.is(from) {
            return Ok(());
        }
        self.each_block(to.bytes, 2, |start, bytes| {
            let (to, from) = (to.data.wrapping_add(start), from.data.wrapping_add(start));
            // SAFETY: both lie in regions whose owners are inside the same call, or this rank, hold claims, so that
            // nobody views them, and keep them while this rank is listed as touching. The schedule gives `to` no other
            // reader or writer, and `from` no writer, before the next point.
            unsafe { kernel::copy(from, to, bytes, self.stream) };
        })
    }

    /// Overwrites the outputs with the reduction of the inputs. All are of one size; an input may be an output.
    pub(crate) fn reduce(
        &self,
        dtype: DType,
        reduction: Reduction,
        inputs: impl IntoIterator<Item = Result<Region>>,
        outputs: impl IntoIterator<Item = Result<Region>>,
    ) -> Result<()> {
        let (mut from, mut to) = (InlineVec::<*const u8>::new(), InlineVec::<*mut u8>::new());
        let mut size = None;
        let mut check = |region: Region| match *size.get_or_insert(region.bytes) == region.bytes {
            true => Ok(region.data),
            false => Err(sizes_differ()),
        };
        for input in inputs {
            from.push(check(input?)?.cast_const());
        }
        for output in outputs {
            to.push(check(output?)?);
        }
        let mut known = true;
        self.each_block(size.unwrap_or(0), from.len() + to.len(), |start, bytes| {
            let (first, count) = (start / dtype.size(), bytes / dtype.size());
            let fold = Fold { dtype, reduction, inputs: &from, outputs: &to, first, count, stream: self.stream };
            // SAFETY: as in `copy`, for inputs and outputs; blocks and regions hold whole elements; no two outputs are of
            // one rank, and `Op::check` has refused tensors of one rank that overlap in part.
            known &= unsafe { kernel::reduce(fold) };
        })?;
        match known {
            true => Ok(()),
            false => {
                let operation = format!("reduction {reduction}");
                Err(Error::Unsupported { backend: NAME, operation, dtype: Some(dtype) })
            }
        }
    }

    /// Exchanges two regions of one size.
    pub(crate) fn swap(&self, a: Region, b: Region) -> Result<()> {
        same_size(a, b)?;
        self.each_block(a.bytes, 2, |start, bytes| {
            let (a, b) = (a.data.wrapping_add(start), b.data.wrapping_add(start));
            // SAFETY: as for `to` in `copy`, both; they belong to different ranks.
            unsafe { kernel::swap(a, b, bytes) };
        })
    }

    /// Fills `into` with the beginning of this rank's own region.
    pub(crate) fn read(&self, own: Region, into: &mut [u8]) -> Result<()> {
        let from = own.part(0, into.len())?;
        // SAFETY: this rank holds a claim on its own tensor, and nobody writes to it before the next point.
        unsafe { ptr::copy(from.data, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Overwrites the beginning of this rank's own region.
    pub(crate) fn write(&self, own: Region, from: &[u8]) -> Result<()> {
        let to = own.part(0, from.len())?;
        // SAFETY: as in `read`, and nobody reads it either.
        unsafe { ptr::copy(from.as_ptr(), to.data, from.len()) };
        Ok(())
    }

    /// Passes blocks of `bytes` bytes of so many tensors on, as starts and sizes, unless something fails.
    fn each_block(&self, bytes: usize, tensors: usize, mut touch: impl FnMut(usize, usize)) -> Result<()> {
        let block = (MAX_BLOCK_BYTES / tensors.max(1)).next_multiple_of(PAGE_BYTES);
        for start in (0..bytes).step_by(block) {
            if !self.own {
                self.group.check(self.rank)?;
            }
            touch(start, block.min(bytes - start));
        }
        Ok(())
    }
}

fn same_size(a: Region, b: Region) -> Result<()> {
    if a.bytes == b.bytes { Ok(()) } else { Err(sizes_differ()) }
}

fn sizes_differ() -> Error {
    Error::protocol("ranks published regions of different sizes for one operation")
}

/// A region of this thread's own bytes.
impl From<&mut [u8]> for Region {
    fn from(bytes: &mut [u8]) -> Self {
        Self { data: bytes.as_mut_ptr(), bytes: bytes.len() }
    }
}
