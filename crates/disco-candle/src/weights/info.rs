//! Facts about one tensor, from the header of its file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::DType;
use candle_core::quantized::GgmlDType;

use super::codes::Codes;

/// Encoding of a tensor's elements in its file.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Elements one by one, of safetensors.
    Dense(DType),
    /// Elements of GGUF; all but F32, F16 and BF16 are in quantisation blocks along the last dimension.
    Ggml(GgmlDType),
    /// Blocks of GGUF along the last dimension that candle can't hold; they are expanded or packed anew while they are read.
    Codes(Codes),
    /// Elements that candle can't hold, with their name in safetensors or in GGML. Such a tensor can't be read.
    Other(&'static str),
}

impl Encoding {
    /// The element type of elements that are stored one by one.
    pub fn dense(self) -> Option<DType> {
        match self {
            Self::Dense(dtype) => Some(dtype),
            Self::Ggml(GgmlDType::F32) => Some(DType::F32),
            Self::Ggml(GgmlDType::F16) => Some(DType::F16),
            Self::Ggml(GgmlDType::BF16) => Some(DType::BF16),
            Self::Ggml(_) | Self::Codes(_) | Self::Other(_) => None,
        }
    }

    /// The type of the blocks that [`read_quantized`](crate::weights::Weights::read_quantized) gives: that of the file, or
    /// Q8_0 for [`Codes`](Self::Codes) whose runs of 32 elements have one scale.
    pub fn quantized(self) -> Option<GgmlDType> {
        match self {
            Self::Ggml(dtype) => Some(dtype),
            Self::Codes(codes) => (codes.run() == GgmlDType::Q8_0.block_size()).then_some(GgmlDType::Q8_0),
            Self::Dense(_) | Self::Other(_) => None,
        }
    }

    /// Elements with one scale of [`Codes`](Self::Codes), which [`read_runs`](crate::weights::Weights::read_runs) gives.
    pub fn run(self) -> Option<usize> {
        if let Self::Codes(codes) = self { Some(codes.run()) } else { None }
    }

    /// Elements per block and bytes per block. Encodings that can't be read are `None`.
    pub(super) fn block(self) -> Option<(usize, usize)> {
        match self {
            Self::Dense(dtype) => Some((1, dtype.size_in_bytes())),
            Self::Ggml(dtype) => Some((dtype.block_size(), dtype.type_size())),
            Self::Codes(codes) => Some(codes.block()),
            Self::Other(_) => None,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(dtype) => f.write_str(dtype.as_str()),
            Self::Ggml(dtype) => write!(f, "GGML {dtype:?}"),
            Self::Codes(codes) => write!(f, "GGML {}", codes.name()),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// Shape, encoding and position of a tensor.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub(super) shape: Box<[usize]>,
    pub(super) encoding: Encoding,
    pub(super) file: Arc<PathBuf>,
    /// Index of the file in the opened files.
    pub(super) source: usize,
    /// Position of the first byte in the file.
    pub(super) start: u64,
    /// Length of the whole tensor.
    pub(super) bytes: u64,
}

impl TensorInfo {
    /// Dimensions, outermost first: the last dimension is contiguous.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Encoding of the elements in the file.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The file that has the tensor.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Length of the whole tensor in the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
