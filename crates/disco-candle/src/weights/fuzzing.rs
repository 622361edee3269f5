//! Entry points of the fuzz targets.

use std::path::PathBuf;
use std::sync::Arc;

use crate::weights::layout::Layout;
use crate::weights::{Part, TensorInfo, WeightsError, gguf, safetensors};

/// Parses `bytes` as a file of GGUF or safetensors, and checks that every tensor and every row is inside of the file.
///
/// # Errors
/// Headers that break the rules of their format.
pub fn header(bytes: &[u8]) -> Result<(), WeightsError> {
    let (path, len) = (Arc::new(PathBuf::from("fuzzed")), bytes.len() as u64);
    let tensors = if bytes.starts_with(&gguf::MAGIC) {
        gguf::read_header(&path, bytes, len)?.tensors
    } else {
        safetensors::read_header(&path, bytes, len)?.tensors
    };
    for (name, info) in tensors {
        inside(&name, &info, &Part::Whole, len);
        for (dim, len_of_dim) in info.shape().iter().enumerate() {
            for range in [0..0, 0..len_of_dim.div_ceil(2), len_of_dim / 2..*len_of_dim] {
                inside(&name, &info, &Part::Range { dim, range }, len);
            }
        }
    }
    Ok(())
}

fn inside(name: &str, info: &TensorInfo, part: &Part, len: u64) {
    let Ok(layout) = Layout::new(name, info, part) else { return };
    let mut bytes = 0;
    for segment in layout.segments() {
        assert!(segment.start <= segment.end && segment.end <= len, "{name} {part}: {segment:?} of {len}");
        bytes += segment.end - segment.start;
    }
    assert_eq!(bytes, layout.bytes, "{name} {part}");
    assert!(bytes <= info.bytes(), "{name} {part}");
}
