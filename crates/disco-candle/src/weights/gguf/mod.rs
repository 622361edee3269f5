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
//! candle's own reader is not used: it divides by an alignment of zero, keeps the last of two tensors of one name, and lets a
//! byte of the file take the memory of a whole value. Here, [`Metadata`] keeps the bytes of the file, and a [`Value`] is
//! decoded when it is asked for, so that opening a file takes less than four times the bytes of its header.
//! Source: the format's description at <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod header;
mod metadata;
mod types;

pub(super) use header::{MAGIC, read_header};
pub use metadata::{Array, Metadata, Value};
