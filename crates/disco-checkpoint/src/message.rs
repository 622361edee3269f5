//! Orders of the controller, and answers of the workers, as JSON.

use std::io;
use std::path::{Path, PathBuf};

use disco_core::WorkerId;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;
use crate::error::Error;
use crate::layout::Layout;

/// The order to write a shard.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The folder of the shards. It exists.
    pub(crate) folder: PathBuf,
    pub(crate) step: u64,
    /// Whether the worker keeps the memory of the copies for its next save.
    pub(crate) reuses_memory: bool,
    /// Name and layout of each tensor. The tensors are the arguments behind the order.
    pub(crate) tensors: Vec<(String, Layout)>,
}

/// The order to load tensors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// The folder of the checkpoint.
    pub(crate) checkpoint: PathBuf,
    pub(crate) tensors: Vec<(String, Layout)>,
}

/// The state of a worker's shard.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Progress {
    Writing { bytes: u64 },
    Done,
    Failed(Fault),
}

/// The answer of a worker to a question about its save.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer<T> {
    Known(T),
    /// The worker has joined the session after the save began, with this epoch.
    New {
        epoch: u64,
    },
}

/// The result of a worker's save.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// None if the worker had nothing to write.
    pub(crate) shard: Option<Written>,
    /// For each tensor of the order; none if the worker has none.
    pub(crate) tensors: Vec<Option<Seen>>,
}

/// A complete shard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Written {
    pub(crate) bytes: u64,
    pub(crate) header_bytes: u64,
    pub(crate) header_crc32: Checksum,
}

/// A worker's tensor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// The checksum of a sample of the bytes, the same for equal tensors. The sample is empty if no other worker has this
    /// part.
    pub(crate) sample: Checksum,
    /// Position in the shard and checksum, if this worker has written the tensor.
    pub(crate) written: Option<(u64, Checksum)>,
}

/// The failure of a worker to save or to load. It is a value, so that the session goes on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Fault {
    Io { path: PathBuf, operation: String, code: Option<i32>, text: String },
    Damaged { path: PathBuf, problem: String },
    Tensor { tensor: String, problem: String },
}

impl Fault {
    pub(crate) fn io(path: impl Into<PathBuf>, operation: &str, error: &io::Error) -> Self {
        let (path, operation) = (path.into(), operation.to_owned());
        Self::Io { path, operation, code: error.raw_os_error(), text: error.to_string() }
    }

    pub(crate) fn damaged(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.into(), problem: problem.into() }
    }

    pub(crate) fn tensor(tensor: &str, problem: impl ToString) -> Self {
        Self::Tensor { tensor: tensor.into(), problem: problem.to_string() }
    }

    /// The error for the program, which saves or loads `checkpoint`.
    pub(crate) fn into_error(self, checkpoint: &Path, worker: Option<WorkerId>) -> Error {
        match self {
            Self::Io { path, operation, code, text } => {
                let source = code.map_or_else(|| io::Error::other(text), io::Error::from_raw_os_error);
                Error::Io { worker, path, operation, source }
            }
            Self::Damaged { path, problem } => Error::Damaged { worker, path, problem },
            Self::Tensor { tensor, problem } => {
                Error::Tensor { worker, checkpoint: checkpoint.into(), tensor, problem }
            }
        }
    }
}
