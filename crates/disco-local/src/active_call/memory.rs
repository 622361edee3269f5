//! Memory of ranks, as addresses. The unsafe code of this crate is in this file, `kernel` and `board/memory.rs`.

#![allow(unsafe_code)]

use std::ptr;

use disco_core::op::Merge;
use disco_core::{DType, Error, Reduction, Result, Tensor};
use smallvec::SmallVec;

use crate::NAME;
use crate::address_space::AddressSpace;
use crate::board::{Board, Piece};
use crate::group::Group;
use crate::kernel::{self, Fold};

/// The most bytes, of all tensors together, that are accessed between two checks of the failure flag.
const MAX_BLOCK_BYTES: usize = 1 << 20;
/// Blocks are multiples of this size.
const PAGE_BYTES: usize = 4096;

/// A vector of up to 16 entries without an allocation.
pub(crate) type InlineVec<T> = SmallVec<[T; 16]>;

/// A range of host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    data: *mut u8,
    bytes: usize,
}

impl Region {
    /// The empty region.
    pub(crate) const EMPTY: Self = Self { data: ptr::null_mut(), bytes: 0 };

    /// The elements of a contiguous host tensor. `enqueue` has checked that its tensors are contiguous host tensors.
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
    /// The range exceeds this region.
    pub(crate) fn part(self, start: usize, bytes: usize) -> Result<Self> {
        match start.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(Self { data: self.data.wrapping_add(start), bytes }),
            _ => {
                Err(Error::protocol(format!("{bytes} bytes at offset {start} exceed a region of {} bytes", self.bytes)))
            }
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

    /// Share `index` of `size`. The sizes of shares differ by at most one [unit](crate::parts::unit), and each begins at
    /// a multiple of it.
    ///
    /// # Errors
    /// As [`Region::part`].
    pub(crate) fn share(self, index: usize, size: usize, unit: usize) -> Result<Self> {
        let units = self.bytes.div_ceil(unit);
        let start = |index: usize| (units * index / size * unit).min(self.bytes);
        self.part(start(index), start(index + 1) - start(index))
    }

    /// The location that this rank publishes for the region.
    pub(super) fn location(self, address_space: &AddressSpace) -> u64 {
        if self.bytes == 0 { 0 } else { address_space.location(self.data, self.bytes) }
    }

    /// The region that `rank` has published as `location`.
    ///
    /// # Errors
    /// It is not inside that rank's arena.
    pub(super) fn find(address_space: &AddressSpace, rank: usize, location: u64, bytes: u64) -> Result<Self> {
        let bytes = bytes as usize;
        if bytes == 0 { Ok(Self::EMPTY) } else { Ok(Self { data: address_space.find(rank, location, bytes)?, bytes }) }
    }

    /// The area of `rank` for its posted tensor of collective `number`.
    pub(super) fn posted(board: &Board, rank: usize, number: u64) -> Self {
        let (data, bytes) = board.tensor_area(rank, number);
        Self { data, bytes }
    }

    /// A piece of `rank`'s staging area; empty if the board has no staging areas.
    pub(super) fn staged(board: &Board, rank: usize, piece: Piece) -> Self {
        let range = board.piece(rank, piece);
        let segment = board.segment().filter(|segment| range.end <= segment.byte_len());
        segment.map_or(Self::EMPTY, |segment| Self {
            data: segment.pointer().wrapping_add(range.start),
            bytes: range.len(),
        })
    }
}

/// The permission of one rank to access memory during its [`ActiveCall`](super::ActiveCall): its own tensors, and
/// between two synchronisations the memory that its peers have published.
///
/// Callers pass only regions that are parts of the tensors of this rank's call or message, of tensors that peers have
/// published for the same collective, of this rank's own buffers, or of the areas of the board (posted tensors and
/// staging), which live as long as the group.
pub(crate) struct Memory<'t> {
    group: &'t Group,
    rank: usize,
    /// Whether results are written with streaming stores, which bypass the caches.
    stream: bool,
    /// Restricted to this rank's own memory, which stays valid after a failure.
    own: bool,
}

impl<'t> Memory<'t> {
    /// For [`ActiveCall`](super::ActiveCall) only. The call is mutably borrowed meanwhile, so it can't end the access.
    pub(super) fn new(group: &'t Group, rank: usize) -> Self {
        Self { group, rank, stream: false, own: false }
    }

    /// Restricts the access to memory of this rank. Such accesses don't check for a failure: all contributions of peers
    /// have arrived, so the operation completes even if the group fails now.
    pub(super) fn own(self) -> Self {
        Self { own: true, ..self }
    }

    /// Writes results with streaming stores if `stream`.
    pub(crate) fn streaming(self, stream: bool) -> Self {
        Self { stream, ..self }
    }

    /// Copies `from` to `to`, which has the same size. Does nothing if both are the same region.
    pub(crate) fn copy(&self, to: Region, from: Region) -> Result<()> {
        same_size(to, from)?;
        if to.is(from) {
            return Ok(());
        }
        self.each_block(to.bytes, 2, |start, bytes| {
            let (to, from) = (to.data.wrapping_add(start), from.data.wrapping_add(start));
            // SAFETY: both ranges are inside regions of ranks in the same call. These ranks hold claims, so the regions
            // have no views, and they keep the claims while this rank is marked as accessing. The schedule gives `to`
            // no other reader or writer, and `from` no writer, until the next synchronisation.
            unsafe { kernel::copy(from, to, bytes, self.stream) };
        })
    }

    /// Overwrites the outputs with the reduction of the inputs. All have the same size; an output may be one of the
    /// inputs.
    pub(crate) fn reduce(
        &self,
        dtype: DType,
        reduction: Reduction,
        inputs: impl IntoIterator<Item = Result<Region>>,
        outputs: impl IntoIterator<Item = Result<Region>>,
    ) -> Result<()> {
        let mut pointers = Pointers::default();
        pointers.fill(inputs, outputs)?;
        let (Pointers { from, to, .. }, bytes) = (&pointers, pointers.bytes);
        let mut known = true;
        self.each_block(bytes, from.len() + to.len(), |start, bytes| {
            let (first, count) = (start / dtype.size(), bytes / dtype.size());
            let fold = Fold { dtype, reduction, inputs: from, outputs: to, first, count, stream: self.stream };
            // SAFETY: the regions are claimed as in `copy`: the schedule gives inputs no writer, and outputs no other
            // reader or writer, until the next synchronisation. Blocks and regions hold whole elements. No two outputs
            // belong to one rank, and `Op::check` has refused tensors of one rank that overlap in part.
            known &= unsafe { kernel::reduce(fold) };
        })?;
        if known {
            Ok(())
        } else {
            let operation = format!("reduction {reduction}");
            Err(Error::Unsupported { backend: NAME, operation, dtype: Some(dtype) })
        }
    }

    /// Overwrites the outputs with the inputs, merged in their order by the function of a program. All have the same
    /// size; an output may be one of the inputs. The function gets copies, so it never sees memory of peers.
    #[cold]
    pub(crate) fn merge(
        &self,
        merge: &Merge<'_>,
        inputs: impl IntoIterator<Item = Result<Region>>,
        outputs: impl IntoIterator<Item = Result<Region>>,
    ) -> Result<()> {
        let mut pointers = Pointers::default();
        pointers.fill(inputs, outputs)?;
        let (Pointers { from, to, .. }, bytes) = (&pointers, pointers.bytes);
        let Some((first, others)) = from.split_first() else { return Ok(()) };
        let row = merge.row_bytes();
        let block = (MAX_BLOCK_BYTES / (from.len() + to.len()) / row).max(1) * row;
        let most = block.min(bytes);
        let mut copies = vec![0u64; 2 * most.div_ceil(size_of::<u64>())];
        let (into, next) = copies.split_at_mut(most.div_ceil(size_of::<u64>()));
        let (into, next) = (bytemuck::cast_slice_mut::<_, u8>(into), bytemuck::cast_slice_mut::<_, u8>(next));
        for start in (0..bytes).step_by(block) {
            let count = block.min(bytes - start);
            let (into, next) = (&mut into[..count], &mut next[..count]);
            self.check()?;
            // SAFETY: the regions are claimed as in `copy`, and `into` has `count` bytes of this thread.
            unsafe { kernel::copy(first.wrapping_add(start), into.as_mut_ptr(), count, false) };
            for other in others {
                self.check()?;
                // SAFETY: as for the first input.
                unsafe { kernel::copy(other.wrapping_add(start), next.as_mut_ptr(), count, false) };
                merge.merge(into, next)?;
            }
            // The group may have failed while the function ran.
            self.check()?;
            for output in to {
                // SAFETY: the regions are claimed as in `copy`, and `into` has `count` bytes of this thread.
                unsafe { kernel::copy(into.as_ptr(), output.wrapping_add(start), count, self.stream) };
            }
        }
        Ok(())
    }

    /// Exchanges two regions of one size.
    pub(crate) fn swap(&self, a: Region, b: Region) -> Result<()> {
        same_size(a, b)?;
        self.each_block(a.bytes, 2, |start, bytes| {
            let (a, b) = (a.data.wrapping_add(start), b.data.wrapping_add(start));
            // SAFETY: the regions are claimed as in `copy`, and the schedule gives both no other reader or writer until
            // the next synchronisation. They belong to different ranks, so they don't overlap.
            unsafe { kernel::swap(a, b, bytes) };
        })
    }

    /// Fills `into` with the beginning of this rank's own region.
    pub(crate) fn read(&self, own: Region, into: &mut [u8]) -> Result<()> {
        let from = own.part(0, into.len())?;
        // SAFETY: this rank holds a claim on its own tensor, and the schedule gives it no writer until the next
        // synchronisation. `from` has as many bytes as `into`.
        unsafe { ptr::copy(from.data, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Overwrites the beginning of this rank's own region.
    pub(crate) fn write(&self, own: Region, from: &[u8]) -> Result<()> {
        let to = own.part(0, from.len())?;
        // SAFETY: this rank holds a claim on its own tensor, and the schedule gives it no other reader or writer until
        // the next synchronisation. `to` has as many bytes as `from`.
        unsafe { ptr::copy(from.as_ptr(), to.data, from.len()) };
        Ok(())
    }

    /// Returns an error if the group has failed, unless this rank accesses no memory of peers.
    fn check(&self) -> Result<()> {
        if self.own { Ok(()) } else { self.group.check(self.rank) }
    }

    /// Splits `bytes` bytes of each of `tensors` tensors into blocks and calls `access` with the start and size of
    /// each. Stops with an error if the group fails.
    fn each_block(&self, bytes: usize, tensors: usize, mut access: impl FnMut(usize, usize)) -> Result<()> {
        let block = (MAX_BLOCK_BYTES / tensors.max(1)).next_multiple_of(PAGE_BYTES);
        for start in (0..bytes).step_by(block) {
            self.check()?;
            access(start, block.min(bytes - start));
        }
        Ok(())
    }
}

/// The addresses of the inputs and outputs of a reduction, and the size in bytes that all have. Filled in place: a move
/// would cost as much as a small reduction.
#[derive(Default)]
struct Pointers {
    from: InlineVec<*const u8>,
    to: InlineVec<*mut u8>,
    bytes: usize,
}

impl Pointers {
    #[inline(always)]
    fn fill(
        &mut self,
        inputs: impl IntoIterator<Item = Result<Region>>,
        outputs: impl IntoIterator<Item = Result<Region>>,
    ) -> Result<()> {
        let mut bytes = None;
        let mut check = |region: Region| {
            if *bytes.get_or_insert(region.bytes) == region.bytes { Ok(region.data) } else { Err(sizes_differ()) }
        };
        for input in inputs {
            self.from.push(check(input?)?.cast_const());
        }
        for output in outputs {
            self.to.push(check(output?)?);
        }
        self.bytes = bytes.unwrap_or(0);
        Ok(())
    }
}

fn same_size(a: Region, b: Region) -> Result<()> {
    if a.bytes == b.bytes { Ok(()) } else { Err(sizes_differ()) }
}

fn sizes_differ() -> Error {
    Error::protocol("ranks published regions of different sizes for one operation")
}

/// The region of bytes that this thread owns.
impl From<&mut [u8]> for Region {
    fn from(bytes: &mut [u8]) -> Self {
        Self { data: bytes.as_mut_ptr(), bytes: bytes.len() }
    }
}
