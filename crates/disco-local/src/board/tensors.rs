//! Posted tensors: areas of the board into which ranks copy tensors that are too large for a post.
//!
//! Each rank has two areas. The tensor of collective `number` is in area `number % 2`, and the areas follow the rule of
//! the posts: a rank fills an area for collective `number + 2` after all ranks have posted `number + 1`, and each rank
//! posts `number + 1` after it has read all tensors of collective `number`.

use disco_core::{OpKind, processors};

use super::{Board, LINE_WORDS, tensor_areas};

/// The most bytes of a posted tensor.
pub(crate) const MAX_TENSOR_BYTES: usize = 8 << 10;
/// The most bytes if each rank has a processor. A synchronisation is cheap then, so that it soon costs less than the
/// copies to and from the areas.
const MAX_SPACIOUS_BYTES: usize = 1 << 10;
/// Words of an area. One more line than the tensor, so that equal offsets of areas do not share cache sets.
pub(super) const AREA_WORDS: usize = MAX_TENSOR_BYTES / 8 + LINE_WORDS;

impl Board {
    /// The most bytes that a rank posts in a collective with one synchronisation: the same on all ranks, because the
    /// rank that makes the board decides it. Smaller for some operations, for which the zero-copy schedule was faster from
    /// these sizes on.
    pub(crate) fn tensor_bytes(&self, kind: OpKind) -> usize {
        let is_spacious = self.tensor_bytes == MAX_SPACIOUS_BYTES;
        match kind {
            // Each rank computes the whole result.
            OpKind::AllReduce if is_spacious => self.tensor_bytes / 2,
            OpKind::AllReduce | OpKind::AllGather if !is_spacious => self.tensor_bytes / 4,
            OpKind::Reduce | OpKind::ReduceScatter if !is_spacious => self.tensor_bytes / 2,
            _ => self.tensor_bytes,
        }
    }

    /// The area of `rank` for the tensor of collective `number`: its first byte, and its size in bytes.
    pub(crate) fn tensor_area(&self, rank: usize, number: u64) -> (*mut u8, usize) {
        let start = tensor_areas(self.size) + (2 * rank + number as usize % 2) * AREA_WORDS;
        let words = self.span(start, AREA_WORDS);
        (words.as_ptr().cast_mut().cast(), MAX_TENSOR_BYTES)
    }
}

/// The limit for a new board.
pub(super) fn limit(size: usize) -> usize {
    if size > processors() { MAX_TENSOR_BYTES } else { MAX_SPACIOUS_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_take_turns_post_larger_tensors() {
        let [spacious, turns] = [1, processors() + 1].map(Board::new);
        let limits = |kind| [&spacious, &turns].map(|board| board.tensor_bytes(kind));
        assert_eq!(limits(OpKind::AllReduce), [512, 2048]);
        assert_eq!(limits(OpKind::AllGather), [1024, 2048]);
        assert_eq!(limits(OpKind::Reduce), [1024, 4096]);
        assert_eq!(limits(OpKind::Broadcast), [1024, 8192]);
        assert_eq!(spacious.tensor_area(0, 1).1, MAX_TENSOR_BYTES);
    }
}
