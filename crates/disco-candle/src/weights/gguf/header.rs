//! The reader of headers.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::quantized::gguf_file::DEFAULT_ALIGNMENT;

use super::metadata::{self, ARRAY, BOOL, Metadata, STRING};
use super::types::{GgmlType, ggml_type};
use crate::weights::safetensors::{bytes, malformed};
use crate::weights::source::io_error;
use crate::weights::{Encoding, TensorInfo, WeightsError};

/// First bytes of a file.
pub(in crate::weights) const MAGIC: [u8; 4] = *b"GGUF";

/// The kind of a file whose version has its bytes in the other order.
const BIG_ENDIAN: &str =
    "a big-endian GGUF file, which is not read; convert the original model on a little-endian machine";

/// The longest header in bytes. Positions in it have 32 bits.
const MAX_HEADER_BYTES: u64 = 1 << 28;

/// The most dimensions of a tensor: `GGML_MAX_DIMS`.
const MAX_DIMS: u32 = 4;

/// The deepest nesting of arrays.
const MAX_DEPTH: usize = 8;

/// A parsed header.
#[derive(Debug)]
pub(in crate::weights) struct Header {
    pub(in crate::weights) metadata: Metadata,
    pub(in crate::weights) tensors: Vec<(Box<str>, TensorInfo)>,
    /// Bytes of the header, without the zeros behind it.
    pub(in crate::weights) bytes: u64,
}

/// Reads the header of a file of `len` bytes.
pub(in crate::weights) fn read_header(path: &Arc<PathBuf>, input: impl Read, len: u64) -> Result<Header, WeightsError> {
    let mut reader = Reader { path, input, position: 0, len, wide: true, kept: Vec::new() };
    let magic = reader.array::<4>()?;
    if magic != MAGIC {
        return Err(malformed(path, "it does not begin with `GGUF`"));
    }
    let version = reader.u32()?;
    match version {
        1..=3 => reader.wide = version > 1,
        version if (1..=3).contains(&version.swap_bytes()) => {
            return Err(WeightsError::Foreign { path: path.to_path_buf(), what: BIG_ENDIAN });
        }
        version => return Err(malformed(path, format!("it has version {version} of GGUF, and 1, 2 and 3 are known"))),
    }
    let tensor_count = reader.count()?;
    let metadata_count = reader.count()?;
    // An entry of the metadata has at least a length, a type and a byte; one of a tensor two more numbers.
    let length_bytes = if reader.wide { 8 } else { 4 };
    reader.expect_room("metadata entries", metadata_count, length_bytes + 5)?;
    reader.expect_room("tensors", tensor_count, length_bytes + 16)?;
    let metadata = reader.metadata(metadata_count)?;
    let alignment = alignment(path, &metadata)?;
    // The metadata has taken some of the room.
    reader.expect_room("tensors", tensor_count, length_bytes + 16)?;
    let mut tensors = Vec::with_capacity(tensor_count as usize);
    for _ in 0..tensor_count {
        tensors.push(reader.tensor()?);
    }
    let bytes = reader.position;
    tensors.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    if let Some(twice) = tensors.windows(2).find(|two| two[0].0 == two[1].0) {
        return Err(malformed(path, format!("tensor `{}` appears twice", twice[0].0)));
    }
    check(path, &mut tensors, bytes.next_multiple_of(alignment), alignment, len)?;
    Ok(Header { metadata, tensors, bytes })
}

/// The alignment of the data: a power of two below 2³².
fn alignment(path: &Path, metadata: &Metadata) -> Result<u64, WeightsError> {
    let Some(value) = metadata.get("general.alignment") else { return Ok(DEFAULT_ALIGNMENT) };
    match value.integer().and_then(|alignment| u32::try_from(alignment).ok()) {
        Some(alignment) if alignment.is_power_of_two() => Ok(alignment.into()),
        _ => Err(malformed(path, format!("its `general.alignment` is {value:?}, which is not a power of two"))),
    }
}

/// Checks that the tensors are inside of the file and do not overlap, and moves their positions from the data's begin to the file's.
fn check(
    path: &Path,
    tensors: &mut [(Box<str>, TensorInfo)],
    data: u64,
    alignment: u64,
    len: u64,
) -> Result<(), WeightsError> {
    tensors.sort_unstable_by(|(a, x), (b, y)| (x.start, a).cmp(&(y.start, b)));
    let mut end_of_last = 0;
    for (name, info) in tensors {
        let fault = |problem: &str| Err(malformed(path, format!("tensor `{name}` {problem}")));
        let (start, bytes) = (info.start, info.bytes);
        if !start.is_multiple_of(alignment) {
            return fault(&format!("begins at {start}, which is not a multiple of the alignment {alignment}"));
        }
        if start < end_of_last && bytes > 0 {
            let overlap = "overlaps the tensor before it";
            return fault(&format!("{overlap}: it begins at {start}, and the tensor before it ends at {end_of_last}"));
        }
        let needs = data.saturating_add(start)..data.saturating_add(start).saturating_add(bytes);
        if needs.end > len && bytes > 0 {
            let (file, part) = (path.to_path_buf(), format!("tensor `{name}`"));
            return Err(WeightsError::Truncated { file, part, needs, len });
        }
        end_of_last = end_of_last.max(start.saturating_add(bytes));
        info.start = needs.start;
    }
    Ok(())
}

/// A header that is being read. No length of the header leads to more memory than the file has bytes left.
struct Reader<'a, R> {
    path: &'a Arc<PathBuf>,
    input: R,
    position: u64,
    len: u64,
    /// Whether counts have 64 bits.
    wide: bool,
    /// The bytes that were read since they were taken last.
    kept: Vec<u8>,
}

impl<R: Read> Reader<'_, R> {
    /// Reads the next `len` bytes, and keeps them.
    fn read(&mut self, len: u64) -> Result<&[u8], WeightsError> {
        let needs = self.position..self.position.saturating_add(len);
        if needs.end > self.len {
            let (file, part) = (self.path.to_path_buf(), "the header".to_owned());
            return Err(WeightsError::Truncated { file, part, needs, len: self.len });
        }
        if needs.end > MAX_HEADER_BYTES {
            return Err(self.fault(format!("its header has more than {MAX_HEADER_BYTES} bytes")));
        }
        self.position = needs.end;
        let (begin, len) = (self.kept.len(), len as usize);
        if self.kept.capacity() - begin < len {
            // A vector that doubles would take three times its bytes while they move.
            self.kept.reserve_exact(len.max(begin / 4));
        }
        self.kept.resize(begin + len, 0);
        let read = &mut self.kept[begin..];
        self.input.read_exact(read).map_err(|source| io_error(self.path, "reading the header", source))?;
        Ok(read)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WeightsError> {
        let mut array = [0; N];
        array.copy_from_slice(self.read(N as u64)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, WeightsError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, WeightsError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count, a length or a dimension.
    fn count(&mut self) -> Result<u64, WeightsError> {
        if self.wide { self.u64() } else { self.u32().map(u64::from) }
    }

    /// Checks that `count` entries of at least `each` bytes fit into the rest of the header.
    fn expect_room(&self, of: &str, count: u64, each: u64) -> Result<(), WeightsError> {
        let left = self.len.min(MAX_HEADER_BYTES).saturating_sub(self.position);
        if count.saturating_mul(each) <= left {
            return Ok(());
        }
        Err(self.fault(format!(
            "its header announces {count} {of} at byte {}, and has room for {left} bytes",
            self.position
        )))
    }

    fn text(&mut self) -> Result<&[u8], WeightsError> {
        let len = self.count()?;
        self.expect_room("bytes of a string", len, 1)?;
        self.read(len)
    }

    fn metadata(&mut self, count: u64) -> Result<Metadata, WeightsError> {
        self.kept.clear();
        let mut entries = Vec::with_capacity(count as usize);
        for _ in 0..count {
            entries.push(self.kept.len() as u32);
            let key = metadata::text(self.text()?).into_owned();
            let kind = self.u32()?;
            self.value(&key, kind, 0)?;
        }
        let bytes = std::mem::take(&mut self.kept).into_boxed_slice();
        let twice = |key| self.fault(format!("its metadata has `{key}` twice"));
        Metadata::new(bytes, self.wide, entries).map_err(twice)
    }

    /// Reads the value of `key` and checks it.
    fn value(&mut self, key: &str, kind: u32, depth: usize) -> Result<(), WeightsError> {
        match kind {
            STRING => self.text().map(drop),
            ARRAY => self.values(key, depth),
            kind => self.numbers(key, kind, 1),
        }
    }

    fn values(&mut self, key: &str, depth: usize) -> Result<(), WeightsError> {
        if depth == MAX_DEPTH {
            return Err(self.fault(format!("its metadata entry `{key}` nests more than {MAX_DEPTH} arrays")));
        }
        let kind = self.u32()?;
        let len = self.count()?;
        // An element has at least one byte.
        self.expect_room("elements of an array", len, 1)?;
        match kind {
            STRING | ARRAY => (0..len).try_for_each(|_| self.value(key, kind, depth + 1)),
            kind => self.numbers(key, kind, len),
        }
    }

    fn numbers(&mut self, key: &str, kind: u32, count: u64) -> Result<(), WeightsError> {
        let Some(size) = metadata::size(kind) else {
            return Err(self.fault(format!("its metadata entry `{key}` has the unknown type {kind}")));
        };
        let bytes = self.read(count.saturating_mul(size as u64))?;
        match bytes.iter().find(|byte| kind == BOOL && **byte > 1).copied() {
            Some(byte) => Err(self.fault(format!("its metadata entry `{key}` has the truth value {byte}"))),
            None => Ok(()),
        }
    }

    /// A tensor, whose position is that in the data.
    fn tensor(&mut self) -> Result<(Box<str>, TensorInfo), WeightsError> {
        self.kept.clear();
        let name: Box<str> = metadata::text(self.text()?).into();
        let dims = self.u32()?;
        if dims > MAX_DIMS {
            return Err(
                self.fault(format!("tensor `{name}` has {dims} dimensions, and at most {MAX_DIMS} are allowed"))
            );
        }
        // A dimension beyond the address space is refused with its product.
        let dim = |_| Ok(usize::try_from(self.count()?).unwrap_or(usize::MAX));
        let mut shape = (0..dims).map(dim).collect::<Result<Box<[usize]>, WeightsError>>()?;
        shape.reverse();
        let code = self.u32()?;
        let Some(ggml) = ggml_type(code) else {
            let (file, kind) = (self.path.to_path_buf(), format!("{code} of GGML"));
            return Err(WeightsError::UnknownType { file, tensor: name.into(), kind });
        };
        let bytes = self.bytes_of(&name, &shape, &ggml)?;
        let (encoding, file, start) = (ggml.encoding, self.path.clone(), self.u64()?);
        Ok((name, TensorInfo { shape, encoding, file, source: 0, start, bytes }))
    }

    /// Bytes of a tensor.
    fn bytes_of(&self, name: &str, shape: &[usize], ggml: &GgmlType) -> Result<u64, WeightsError> {
        let GgmlType { encoding, block, bytes: bytes_of_block } = *ggml;
        if block > 1 && !shape.last().is_some_and(|dim| dim.is_multiple_of(block)) {
            if let Encoding::Other(_) = encoding {
                let (file, tensor) = (self.path.to_path_buf(), name.to_owned());
                return Err(WeightsError::Unsupported { file, tensor, encoding });
            }
            return Err(self.fault(format!(
                "tensor `{name}` has the shape {shape:?}, whose last dimension is not whole blocks of {block} elements"
            )));
        }
        // The bound on the elements' bits, which is larger than the size of any block's elements, bounds every product.
        let Some(elements) = bytes(shape, 64).map(|bytes| bytes / 8) else {
            let size = "whose size in bytes is not a number of 63 bits";
            return Err(self.fault(format!("tensor `{name}` has the shape {shape:?}, {size}")));
        };
        Ok(elements / block as u64 * bytes_of_block as u64)
    }

    fn fault(&self, problem: String) -> WeightsError {
        malformed(self.path, problem)
    }
}
