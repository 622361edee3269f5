//! Positions in a file of the bytes of a part.

use std::ops::Range;

use crate::weights::{Encoding, Part, TensorInfo, WeightsError};

/// Pieces below this size are copied from a memory map: a system call for each costs more than its copy.
const SHORT_PIECE_BYTES: u64 = 16 << 10;

/// The bytes of a part: ranges that repeat with a stride.
pub(super) struct Layout {
    /// Shape of the elements that the bytes hold: of the part, or of the blocks that cover it.
    pub(super) shape: Vec<usize>,
    /// Bytes of the part in the file.
    pub(super) bytes: u64,
    /// Position of the first repetition.
    start: u64,
    /// Number of repetitions, and the distance between them.
    repeat: u64,
    stride: u64,
    /// Positions of the ranges relative to the start of a repetition.
    ranges: Vec<Range<u64>>,
}

impl Layout {
    /// The bytes of `part`. Ranges along the last dimension are rounded to whole blocks, outwards.
    pub(super) fn new(name: &str, info: &TensorInfo, part: &Part) -> Result<Self, WeightsError> {
        check(name, info, part)?;
        let Some((block, block_bytes)) = info.encoding.block() else {
            return Err(unsupported(name, info));
        };
        let shape = info.shape();
        let Some((dim, ranges)) = part.ranges().filter(|(dim, ranges)| !is_whole(ranges, shape[*dim])) else {
            let whole = 0..info.bytes;
            return Ok(Self {
                shape: shape.to_vec(),
                bytes: info.bytes,
                start: info.start,
                repeat: 1,
                stride: info.bytes,
                ranges: vec![whole],
            });
        };
        let last = dim + 1 == shape.len();
        // Elements along the dimension in one step, and the bytes of a step.
        let unit = if last { block } else { 1 };
        let inner: usize = shape[dim + 1..].iter().product();
        let step = if last { block_bytes } else { inner / block * block_bytes } as u64;
        let steps = |range: &Range<usize>| {
            if range.is_empty() { 0..0 } else { range.start / unit..range.end.div_ceil(unit) }
        };
        let covered: Vec<Range<usize>> = ranges.iter().map(steps).collect();
        let mut cut_shape = shape.to_vec();
        cut_shape[dim] = covered.iter().map(Range::len).sum::<usize>() * unit;
        let ranges: Vec<_> =
            covered.into_iter().map(|range| range.start as u64 * step..range.end as u64 * step).collect();
        let repeat = shape[..dim].iter().product::<usize>() as u64;
        let bytes = repeat * ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        let stride = (shape[dim] / unit) as u64 * step;
        Ok(Self { shape: cut_shape, bytes, start: info.start, repeat, stride, ranges })
    }

    /// Whether the bytes are many short pieces.
    pub(super) fn is_scattered(&self) -> bool {
        let pieces = self.repeat * self.ranges.len() as u64;
        pieces > 1 && self.bytes / pieces < SHORT_PIECE_BYTES
    }

    /// End of the last byte in the file.
    pub(super) fn end(&self) -> u64 {
        let last = self.ranges.iter().map(|range| range.end).max().unwrap_or(0);
        if self.bytes == 0 { self.start } else { self.start + (self.repeat - 1) * self.stride + last }
    }

    /// Positions in the file, in the order of the elements.
    pub(super) fn segments(&self) -> impl Iterator<Item = Range<u64>> {
        // An empty part has no segment, however often it repeats.
        let repeat = if self.bytes == 0 { 0 } else { self.repeat };
        (0..repeat).flat_map(move |index| {
            let start = self.start + index * self.stride;
            self.ranges.iter().map(move |range| start + range.start..start + range.end)
        })
    }
}

/// Whether the ranges are one that covers a dimension of `len` elements.
fn is_whole(ranges: &[Range<usize>], len: usize) -> bool {
    matches!(ranges, [range] if *range == (0..len))
}

fn check(name: &str, info: &TensorInfo, part: &Part) -> Result<(), WeightsError> {
    let Some(problem) = part.problem(info.shape()) else { return Ok(()) };
    Err(WeightsError::NoSuchPart {
        file: info.file().into(),
        tensor: name.to_owned(),
        shape: info.shape.to_vec(),
        part: part.to_string(),
        problem,
    })
}

pub(super) fn unsupported(name: &str, info: &TensorInfo) -> WeightsError {
    WeightsError::Unsupported { file: info.file().into(), tensor: name.to_owned(), encoding: info.encoding }
}

/// The first range along the last dimension that begins or ends inside of a block.
pub(super) fn cut_block(info: &TensorInfo, part: &Part) -> Option<(usize, Range<usize>)> {
    let (Encoding::Ggml(_) | Encoding::Codes(_), Some((dim, ranges))) = (info.encoding, part.ranges()) else {
        return None;
    };
    let (block, _) = info.encoding.block()?;
    let is_cut = |at: usize| !at.is_multiple_of(block);
    let inside = |range: &&Range<usize>| !range.is_empty() && (is_cut(range.start) || is_cut(range.end));
    let range = ranges.iter().find(inside)?;
    (dim + 1 == info.shape.len()).then(|| (block, range.clone()))
}
