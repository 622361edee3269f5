//! Headers of GGUF files.
//!
//! ```text
//! "GGUF" │ version: u32 │ number of tensors │ number of metadata entries
//!        │ metadata: key, type: u32, value …
//!        │ tensors: name, number of dimensions: u32, dimensions (innermost first), type: u32, offset: u64 …
//!        │ zeros up to `general.alignment` │ data
//! ```
//!
//! Numbers are little-endian; counts, lengths and dimensions have 32 bits in version 1 and 64 bits in versions 2 and 3.
//! The result is candle's [`Content`]. candle's own reader is not used: it divides by an alignment of zero, keeps the last
//! of two tensors of one name, and lets a byte of the file take the memory of a whole [`Value`].
//! Source: the format's description at <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use candle_core::Shape;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, DEFAULT_ALIGNMENT, TensorInfo as GgufInfo, Value, VersionedMagic};

use crate::weights::safetensors::{bytes, malformed};
use crate::weights::source::io_error;
use crate::weights::{Codes, Encoding, TensorInfo, WeightsError};

/// First bytes of a file.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";

/// The kind of a file whose version has its bytes in the other order.
const BIG_ENDIAN: &str =
    "a big-endian GGUF file, which is not read; convert the original model on a little-endian machine";

/// The longest header in bytes.
const MAX_HEADER_BYTES: u64 = 1 << 28;

/// The memory that the elements of all arrays of a header may take, each that of a [`Value`], if it is more than three times
/// the file. The largest vocabularies take 42 MB.
const MAX_ARRAY_BYTES: u64 = 64 << 20;

/// The most dimensions of a tensor: `GGML_MAX_DIMS`.
const MAX_DIMS: u32 = 4;

/// The deepest nesting of arrays.
const MAX_DEPTH: usize = 8;

/// A parsed header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) content: Content,
    pub(super) tensors: Vec<(String, TensorInfo)>,
    /// Bytes of the header, without the zeros behind it.
    pub(super) bytes: u64,
}

/// A tensor as the header describes it.
struct Entry {
    shape: Vec<usize>,
    ggml: GgmlType,
    /// Position in the data.
    offset: u64,
}

impl Entry {
    /// The description that candle's [`Content`] has; `None` for a type that candle can't hold.
    fn of_candle(self) -> Option<GgufInfo> {
        let Encoding::Ggml(ggml_dtype) = self.ggml.encoding else { return None };
        Some(GgufInfo { ggml_dtype, shape: Shape::from(self.shape), offset: self.offset })
    }
}

/// Reads the header of a file of `len` bytes.
pub(super) fn read_header(path: &Arc<Path>, input: impl Read, len: u64) -> Result<Header, WeightsError> {
    let mut reader = Reader { path, input, position: 0, len, wide: true, elements: 0 };
    let magic = reader.array::<4>()?;
    if magic != MAGIC {
        return Err(malformed(path, "it does not begin with `GGUF`"));
    }
    let magic = match reader.u32()? {
        1 => VersionedMagic::GgufV1,
        2 => VersionedMagic::GgufV2,
        3 => VersionedMagic::GgufV3,
        version if (1..=3).contains(&version.swap_bytes()) => {
            return Err(WeightsError::Foreign { path: path.to_path_buf(), what: BIG_ENDIAN });
        }
        version => return Err(malformed(path, format!("it has version {version} of GGUF, and 1, 2 and 3 are known"))),
    };
    reader.wide = magic != VersionedMagic::GgufV1;
    let tensor_count = reader.count()?;
    let metadata_count = reader.count()?;
    // An entry of the metadata has at least a length, a type and a byte; one of a tensor two more numbers.
    let length_bytes = if reader.wide { 8 } else { 4 };
    reader.expect_room("metadata entries", metadata_count, length_bytes + 5)?;
    reader.expect_room("tensors", tensor_count, length_bytes + 16)?;
    let mut metadata = HashMap::new();
    for _ in 0..metadata_count {
        let key = reader.string()?;
        let kind = reader.u32()?;
        let value = reader.value(&key, kind, 0)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(malformed(path, format!("its metadata has `{key}` twice")));
        }
    }
    let alignment = alignment(path, &metadata)?;
    let mut entries = HashMap::new();
    for _ in 0..tensor_count {
        let (name, entry) = reader.tensor()?;
        if entries.contains_key(&name) {
            return Err(malformed(path, format!("tensor `{name}` appears twice")));
        }
        entries.insert(name, entry);
    }
    let bytes = reader.position;
    let tensor_data_offset = bytes.next_multiple_of(alignment);
    let tensors = check(path, &entries, tensor_data_offset, alignment, len)?;
    let tensor_infos = entries.into_iter().filter_map(|(name, entry)| Some((name, entry.of_candle()?))).collect();
    let content = Content { magic, metadata, tensor_infos, tensor_data_offset };
    Ok(Header { content, tensors, bytes })
}

/// The alignment of the data: a power of two below 2³².
fn alignment(path: &Path, metadata: &HashMap<String, Value>) -> Result<u64, WeightsError> {
    let Some(value) = metadata.get("general.alignment") else { return Ok(DEFAULT_ALIGNMENT) };
    let alignment = match value {
        Value::U8(value) => u64::from(*value),
        Value::U16(value) => u64::from(*value),
        Value::U32(value) => u64::from(*value),
        Value::I8(value) => u64::try_from(*value).unwrap_or(0),
        Value::I16(value) => u64::try_from(*value).unwrap_or(0),
        Value::I32(value) => u64::try_from(*value).unwrap_or(0),
        _ => 0,
    };
    if alignment.is_power_of_two() {
        return Ok(alignment);
    }
    Err(malformed(path, format!("its `general.alignment` is {value:?}, which is not a power of two")))
}

/// Checks that the tensors are inside of the file and do not overlap.
fn check(
    path: &Arc<Path>,
    entries: &HashMap<String, Entry>,
    data: u64,
    alignment: u64,
    len: u64,
) -> Result<Vec<(String, TensorInfo)>, WeightsError> {
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_unstable_by(|(a, x), (b, y)| (x.offset, a).cmp(&(y.offset, b)));
    let mut end_of_last = 0;
    let mut tensors = Vec::with_capacity(sorted.len());
    for (name, Entry { shape, ggml: GgmlType { encoding, block, bytes: bytes_of_block }, offset }) in sorted {
        let fault = |problem: &str| Err(malformed(path, format!("tensor `{name}` {problem}")));
        let (start, block) = (*offset, *block);
        if block > 1 && !shape.last().is_some_and(|dim| dim.is_multiple_of(block)) {
            if let Encoding::Other(_) = encoding {
                let (file, tensor) = (path.to_path_buf(), name.clone());
                return Err(WeightsError::Unsupported { file, tensor, encoding: *encoding });
            }
            return fault(&format!(
                "has the shape {shape:?}, whose last dimension is not whole blocks of {block} elements"
            ));
        }
        // The bound on the elements' bits, which is larger than the size of any block's elements, bounds every product.
        let Some(elements) = bytes(shape, 64).map(|bytes| bytes / 8) else {
            return fault(&format!("has the shape {shape:?}, whose size in bytes is not a number of 63 bits"));
        };
        let bytes = elements / block as u64 * *bytes_of_block as u64;
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
        let (shape, encoding, file) = (shape.clone(), *encoding, path.clone());
        let info = TensorInfo { shape, encoding, file, source: 0, start: needs.start, bytes };
        tensors.push((name.clone(), info));
    }
    Ok(tensors)
}

/// A header that is being read. No length of the header leads to more memory than the file has bytes left.
struct Reader<'a, R> {
    path: &'a Path,
    input: R,
    position: u64,
    len: u64,
    /// Whether counts have 64 bits.
    wide: bool,
    /// Elements of arrays so far.
    elements: u64,
}

impl<R: Read> Reader<'_, R> {
    fn fill(&mut self, room: &mut [u8]) -> Result<(), WeightsError> {
        let needs = self.position..self.position + room.len() as u64;
        if needs.end > self.len {
            let (file, part) = (self.path.to_owned(), "the header".to_owned());
            return Err(WeightsError::Truncated { file, part, needs, len: self.len });
        }
        if needs.end > MAX_HEADER_BYTES {
            return Err(self.fault(format!("its header has more than {MAX_HEADER_BYTES} bytes")));
        }
        self.position = needs.end;
        self.input.read_exact(room).map_err(|source| io_error(self.path, "reading the header", source))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WeightsError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
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

    fn string(&mut self) -> Result<String, WeightsError> {
        let len = self.count()?;
        self.expect_room("bytes of a string", len, 1)?;
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes)?;
        // As in candle's reader: some programs end strings with zeros or cut them inside of a character.
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    fn value(&mut self, key: &str, kind: u32, depth: usize) -> Result<Value, WeightsError> {
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.array()?)),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => match self.array()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [byte] => return Err(self.fault(format!("its metadata entry `{key}` has the truth value {byte}"))),
            },
            8 => Value::String(self.string()?),
            9 => Value::Array(self.values(key, depth)?),
            10 => Value::U64(self.u64()?),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            kind => return Err(self.fault(format!("its metadata entry `{key}` has the unknown type {kind}"))),
        })
    }

    fn values(&mut self, key: &str, depth: usize) -> Result<Vec<Value>, WeightsError> {
        if depth == MAX_DEPTH {
            return Err(self.fault(format!("its metadata entry `{key}` nests more than {MAX_DEPTH} arrays")));
        }
        let kind = self.u32()?;
        let len = self.count()?;
        // An element has at least one byte.
        self.expect_room("elements of an array", len, 1)?;
        self.elements += len;
        let most = MAX_ARRAY_BYTES.max(self.len.saturating_mul(3)) / size_of::<Value>() as u64;
        if self.elements > most {
            return Err(self.fault(format!("its arrays have more than {most} elements")));
        }
        let mut values = Vec::with_capacity(len as usize);
        for _ in 0..len {
            values.push(self.value(key, kind, depth + 1)?);
        }
        Ok(values)
    }

    fn tensor(&mut self) -> Result<(String, Entry), WeightsError> {
        let name = self.string()?;
        let dims = self.u32()?;
        if dims > MAX_DIMS {
            return Err(
                self.fault(format!("tensor `{name}` has {dims} dimensions, and at most {MAX_DIMS} are allowed"))
            );
        }
        let mut shape = Vec::with_capacity(dims as usize);
        for _ in 0..dims {
            // A dimension beyond the address space is refused with its product.
            shape.push(usize::try_from(self.count()?).unwrap_or(usize::MAX));
        }
        shape.reverse();
        let code = self.u32()?;
        let Some(ggml) = ggml_type(code) else {
            let (file, kind) = (self.path.to_owned(), format!("{code} of GGML"));
            return Err(WeightsError::UnknownType { file, tensor: name, kind });
        };
        Ok((name, Entry { shape, ggml, offset: self.u64()? }))
    }

    fn fault(&self, problem: String) -> WeightsError {
        malformed(self.path, problem)
    }
}

/// A type of elements.
struct GgmlType {
    encoding: Encoding,
    /// Elements per block.
    block: usize,
    /// Bytes per block.
    bytes: usize,
}

/// A code of `enum ggml_type`.
fn ggml_type(code: u32) -> Option<GgmlType> {
    if let Some(dtype) = candle_dtype(code) {
        return Some(GgmlType { encoding: Encoding::Ggml(dtype), block: dtype.block_size(), bytes: dtype.type_size() });
    }
    let (_, name, block, bytes) = *OTHER_TYPES.iter().find(|(known, ..)| *known == code)?;
    let encoding = Codes::of(name).map_or(Encoding::Other(name), Encoding::Codes);
    Some(GgmlType { encoding, block, bytes })
}

/// Codes of the types that candle can hold.
fn candle_dtype(code: u32) -> Option<GgmlDType> {
    Some(match code {
        0 => GgmlDType::F32,
        1 => GgmlDType::F16,
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        9 => GgmlDType::Q8_1,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        15 => GgmlDType::Q8K,
        30 => GgmlDType::BF16,
        _ => return None,
    })
}

/// The types that candle can't hold: code, name, elements and bytes per block. Source: `GGML_QUANT_SIZES` of llama.cpp's
/// package `gguf`; the four that are blocks of Q4_0 and IQ4_NL in another order are of older releases.
const OTHER_TYPES: [(u32, &str, usize, usize); 23] = [
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (31, "Q4_0_4_4", 32, 18),
    (32, "Q4_0_4_8", 32, 18),
    (33, "Q4_0_8_8", 32, 18),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (36, "IQ4_NL_4_4", 32, 18),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_are_expanded_have_the_sizes_of_their_types() {
        let expanded =
            OTHER_TYPES.iter().filter_map(|(_, name, block, bytes)| Some((Codes::of(name)?, (*block, *bytes))));
        let expanded: Vec<_> = expanded.collect();
        assert_eq!(expanded.len(), 13);
        assert!(expanded.iter().all(|(codes, sizes)| codes.block() == *sizes));
    }
}
