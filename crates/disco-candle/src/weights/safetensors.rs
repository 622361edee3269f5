//! Headers of safetensors files.
//!
//! ```text
//! n: u64 little-endian │ n bytes of JSON: name → { dtype, shape, data_offsets: [start, end] } │ data
//! ```
//!
//! The offsets count from the start of the data. The tensors fill the data without gaps and without overlaps.
//! Source: the format's description at <https://github.com/huggingface/safetensors>.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::DType;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::weights::source::io_error;
use crate::weights::{Encoding, TensorInfo, WeightsError};

/// The longest header in bytes: the limit of the format's own reader.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes of the header's length.
const PREFIX_BYTES: u64 = 8;

/// A parsed header.
#[derive(Debug)]
pub(super) struct Header {
    /// The text under `__metadata__`.
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) tensors: Vec<(Box<str>, TensorInfo)>,
    /// Bytes before the data.
    pub(super) bytes: u64,
}

/// Reads the header of a file of `len` bytes.
pub(super) fn read_header(path: &Arc<PathBuf>, mut input: impl Read, len: u64) -> Result<Header, WeightsError> {
    let truncated = |needs: u64| {
        let (file, part) = (path.to_path_buf(), "the header".to_owned());
        WeightsError::Truncated { file, part, needs: 0..needs, len }
    };
    if len < PREFIX_BYTES {
        return Err(truncated(PREFIX_BYTES));
    }
    let mut read =
        |room: &mut [u8]| input.read_exact(room).map_err(|source| io_error(path, "reading the header", source));
    let mut prefix = [0; PREFIX_BYTES as usize];
    read(&mut prefix)?;
    let header_len = u64::from_le_bytes(prefix);
    if header_len > MAX_HEADER_BYTES {
        let problem = format!("its header has {header_len} bytes, and at most {MAX_HEADER_BYTES} are allowed");
        return Err(malformed(path, problem));
    }
    let bytes = PREFIX_BYTES + header_len;
    if bytes > len {
        return Err(truncated(bytes));
    }
    // At most the limit above, and not more than the file has.
    let mut text = vec![0; header_len as usize];
    read(&mut text)?;
    let raw: RawHeader =
        serde_json::from_slice(&text).map_err(|error| malformed(path, format!("its header is not valid: {error}")))?;
    let tensors = check(path, raw.tensors, bytes, len)?;
    Ok(Header { metadata: raw.metadata, tensors, bytes })
}

/// Checks that the tensors fill the data of the file.
fn check(
    path: &Arc<PathBuf>,
    raw: HashMap<String, RawTensor>,
    data: u64,
    len: u64,
) -> Result<Vec<(Box<str>, TensorInfo)>, WeightsError> {
    let mut raw: Vec<_> = raw.into_iter().collect();
    raw.sort_unstable_by(|(a, x), (b, y)| (x.data_offsets, a).cmp(&(y.data_offsets, b)));
    let mut end_of_last = 0;
    let mut tensors = Vec::with_capacity(raw.len());
    for (name, RawTensor { dtype, shape, data_offsets: (start, end) }) in raw {
        let fault = |problem: &str| Err(malformed(path, format!("tensor `{name}` {problem}")));
        if start > end {
            return fault(&format!("has the offsets {start}..{end}, which end before they begin"));
        }
        if start != end_of_last {
            let fault_of = if start < end_of_last { "overlaps the tensor before it" } else { "follows a gap" };
            return fault(&format!("{fault_of}: it begins at {start}, and the tensor before it ends at {end_of_last}"));
        }
        let Some((bits, encoding)) = encoding(&dtype) else {
            let (file, kind) = (path.to_path_buf(), format!("`{dtype}`"));
            return Err(WeightsError::UnknownType { file, tensor: name, kind });
        };
        let Some(bytes) = bytes(&shape, bits) else {
            return fault(&format!("has the shape {shape:?}, whose size in bytes is not a number of 63 bits"));
        };
        if bytes != end - start {
            return fault(&format!("has {} bytes, and {dtype} of shape {shape:?} has {bytes}", end - start));
        }
        // A sum of bytes inside of the file or just beyond its end.
        let needs = data.saturating_add(start)..data.saturating_add(end);
        if needs.end > len {
            let (file, part) = (path.to_path_buf(), format!("tensor `{name}`"));
            return Err(WeightsError::Truncated { file, part, needs, len });
        }
        end_of_last = end;
        let shape = shape.into();
        let info = TensorInfo { shape, encoding, file: path.clone(), source: 0, start: needs.start, bytes };
        tensors.push((name.into(), info));
    }
    let unused = len - data - end_of_last;
    if unused > 0 {
        return Err(malformed(path, format!("its last {unused} bytes belong to no tensor")));
    }
    Ok(tensors)
}

/// Size of a tensor in bytes; `None` if it is not whole bytes, or if a product of dimensions overflows.
pub(super) fn bytes(shape: &[usize], bits: u64) -> Option<u64> {
    // Dimensions of 0 hide no overflow of the others, because products of some dimensions are computed later.
    let product = shape.iter().filter(|dim| **dim > 0).try_fold(bits, |bits, dim| bits.checked_mul(*dim as u64))?;
    let bits = if shape.contains(&0) { 0 } else { product };
    (product <= i64::MAX as u64 && bits.is_multiple_of(8)).then_some(bits / 8)
}

/// Bits per element, and the encoding.
fn encoding(dtype: &str) -> Option<(u64, Encoding)> {
    let dense = |dtype: DType| Some((dtype.size_in_bytes() as u64 * 8, Encoding::Dense(dtype)));
    match dtype {
        "U8" => dense(DType::U8),
        "U32" => dense(DType::U32),
        "I16" => dense(DType::I16),
        "I32" => dense(DType::I32),
        "I64" => dense(DType::I64),
        "F16" => dense(DType::F16),
        "BF16" => dense(DType::BF16),
        "F32" => dense(DType::F32),
        "F64" => dense(DType::F64),
        "F8_E4M3" => dense(DType::F8E4M3),
        "F8_E8M0" => dense(DType::F8E8M0),
        "F4" => Some((4, Encoding::Other("F4"))),
        "F4_E2M1" => Some((4, Encoding::Other("F4_E2M1"))),
        "F6_E2M3" => Some((6, Encoding::Other("F6_E2M3"))),
        "F6_E3M2" => Some((6, Encoding::Other("F6_E3M2"))),
        "F8_E5M2" => Some((8, Encoding::Other("F8_E5M2"))),
        "F8_E4M3FNUZ" => Some((8, Encoding::Other("F8_E4M3FNUZ"))),
        "F8_E5M2FNUZ" => Some((8, Encoding::Other("F8_E5M2FNUZ"))),
        "BOOL" => Some((8, Encoding::Other("BOOL"))),
        "I8" => Some((8, Encoding::Other("I8"))),
        "U16" => Some((16, Encoding::Other("U16"))),
        "U64" => Some((64, Encoding::Other("U64"))),
        "C64" => Some((64, Encoding::Other("C64"))),
        _ => None,
    }
}

pub(super) fn malformed(path: &Path, problem: impl Into<String>) -> WeightsError {
    WeightsError::Malformed { file: path.to_owned(), problem: problem.into() }
}

/// The JSON of a header. A name that appears twice is an error.
struct RawHeader {
    metadata: BTreeMap<String, String>,
    tensors: HashMap<String, RawTensor>,
}

#[derive(serde::Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawHeaderVisitor)
    }
}

struct RawHeaderVisitor;

impl<'de> Visitor<'de> for RawHeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut header = RawHeader { metadata: BTreeMap::new(), tensors: HashMap::new() };
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                header.metadata = map.next_value()?;
                continue;
            }
            if header.tensors.contains_key(&name) {
                return Err(A::Error::custom(format!("tensor `{name}` appears twice")));
            }
            header.tensors.insert(name, map.next_value()?);
        }
        Ok(header)
    }
}
