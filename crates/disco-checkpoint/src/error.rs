//! Errors of checkpoints.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use disco_core::WorkerId;
use disco_core::suggestion::did_you_mean;

/// Result with the [`enum@Error`] of checkpoints.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure to save or to load a checkpoint. Each text names the checkpoint or the file, the tensor and the worker,
/// where they are known.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The session failed.
    #[error("checkpoint `{}`: {operation}: {source}", checkpoint.display())]
    Session {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The operation that failed.
        operation: &'static str,
        /// The error of the session.
        source: disco_core::Error,
    },
    /// Workers were lost while they wrote their shards. New workers may have replaced them since.
    #[error("checkpoint `{}` was not saved, because {} not complete: {source}", checkpoint.display(), Shards(files))]
    Lost {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The shards of the lost workers.
        files: Vec<String>,
        /// The loss.
        source: disco_core::Error,
    },
    /// A file or folder can't be read or written, or a worker can't copy its tensors for a file.
    #[error("{}`{}`: {operation} failed: {source}", Prefix(worker), path.display())]
    Io {
        /// The worker that read or wrote; none for the controller.
        worker: Option<WorkerId>,
        /// The file or folder.
        path: PathBuf,
        /// The operation.
        operation: String,
        /// The error of the system; [`io::ErrorKind::Other`] with a text for other causes.
        source: io::Error,
    },
    /// A checkpoint is incomplete, or its bytes differ from the saved bytes.
    #[error("{}`{}` is damaged: {problem}", Prefix(worker), path.display())]
    Damaged {
        /// The worker that read the file; none for the controller.
        worker: Option<WorkerId>,
        /// The damaged file, or the checkpoint.
        path: PathBuf,
        /// The damage.
        problem: String,
    },
    /// The folder has a valid checkpoint of this step.
    #[error(
        "`{}` exists already; save under another step or into another folder, or remove the checkpoint first",
        checkpoint.display()
    )]
    Exists {
        /// The checkpoint.
        checkpoint: PathBuf,
    },
    /// Another program has written the index with a format that this program does not know.
    #[error("`{}` has version {version}, and this program reads version {known}", path.display())]
    Version {
        /// The index.
        path: PathBuf,
        /// Its version.
        version: u64,
        /// The version of this program.
        known: u64,
    },
    /// No checkpoint of the folder can be loaded.
    #[error("`{}` has no checkpoint that can be loaded: {}", folder.display(), Reasons(refused))]
    NoneValid {
        /// The folder.
        folder: PathBuf,
        /// All its checkpoints, the newest first.
        refused: Vec<Refused>,
    },
    /// A tensor can't be saved as its layout says, or can't be loaded in the requested layout.
    #[error("{}`{}`: tensor `{tensor}`: {problem}", Prefix(worker), checkpoint.display())]
    Tensor {
        /// The worker with the fault; none for a fault of the call, or of several workers.
        worker: Option<WorkerId>,
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The tensor.
        tensor: String,
        /// The reason.
        problem: String,
    },
    /// The checkpoint has no tensor of this name.
    #[error("`{}` has no tensor `{tensor}`{}", checkpoint.display(), did_you_mean(similar.as_deref()))]
    UnknownTensor {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The name that was asked for.
        tensor: String,
        /// The most similar name that exists.
        similar: Option<String>,
    },
    /// The number of ranks does not divide the elements of a dimension.
    #[error(
        "`{}`: tensor `{tensor}` of shape {shape:?} can't be split over {ranks} ranks: dimension {dim} has {} elements, \
         which {ranks} does not divide",
        checkpoint.display(), shape.get(*dim).copied().unwrap_or(0)
    )]
    Uneven {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape of the whole tensor.
        shape: Vec<usize>,
        /// The dimension.
        dim: usize,
        /// Number of ranks of this session.
        ranks: usize,
    },
    /// A tensor that differs on each worker was saved by another number of workers.
    #[error(
        "`{}`: tensor `{tensor}` is different on each worker; {saved} workers saved it, and this session has {workers}; \
         load it with {saved} workers, or load the other tensors only",
        checkpoint.display()
    )]
    OtherWorld {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The tensor.
        tensor: String,
        /// Number of workers that saved it.
        saved: usize,
        /// Number of workers of this session.
        workers: usize,
    },
    /// A worker's writer has made no progress.
    #[error(
        "{worker}: `{}`: nothing was written for {after:?}, after {bytes} bytes; check the file system of its machine",
        path.display()
    )]
    Stalled {
        /// The worker.
        worker: WorkerId,
        /// Its shard.
        path: PathBuf,
        /// Bytes that it has written.
        bytes: u64,
        /// The limit.
        after: Duration,
    },
}

/// A checkpoint that was not loaded, with the reason.
#[non_exhaustive]
#[derive(Debug)]
pub struct Refused {
    /// The checkpoint.
    pub checkpoint: PathBuf,
    /// The reason.
    pub reason: Error,
}

impl Error {
    /// Whether the cause is in the files of one checkpoint, so that another checkpoint may be loaded.
    pub(crate) fn is_of_files(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Damaged { .. })
    }

    pub(crate) fn damaged(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::Damaged { worker: None, path: path.into(), problem: problem.into() }
    }

    pub(crate) fn tensor(checkpoint: &Path, tensor: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Tensor { worker: None, checkpoint: checkpoint.into(), tensor: tensor.into(), problem: problem.into() }
    }

    pub(crate) fn io(path: impl Into<PathBuf>, operation: impl Into<String>, source: io::Error) -> Self {
        Self::Io { worker: None, path: path.into(), operation: operation.into(), source }
    }
}

/// Lets functions that return [`disco_core::Result`] use `?` on errors of checkpoints. An error of the session stays the
/// same.
impl From<Error> for disco_core::Error {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Session { source, .. } | Error::Lost { source, .. } => source,
            Error::Io { worker, path, operation, source } => {
                Self::system(format!("{}`{}`: {operation} failed", Prefix(&worker), path.display()), source)
            }
            Error::Tensor { .. } | Error::UnknownTensor { .. } | Error::Uneven { .. } | Error::OtherWorld { .. } => {
                Self::Invalid(text)
            }
            Error::Damaged { .. }
            | Error::Exists { .. }
            | Error::Version { .. }
            | Error::NoneValid { .. }
            | Error::Stalled { .. } => Self::State(text),
        }
    }
}

/// The start of a text about a worker.
struct Prefix<'a>(&'a Option<WorkerId>);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |worker| write!(f, "{worker}: "))
    }
}

/// Names of shards, with their verb.
struct Shards<'a>(&'a [String]);

impl fmt::Display for Shards<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.0.len() == 1 { "is" } else { "are" };
        write!(f, "`{}` {verb}", self.0.join("`, `"))
    }
}

/// The reasons of refused checkpoints.
struct Reasons<'a>(&'a [Refused]);

impl fmt::Display for Reasons<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, refused) in self.0.iter().enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            write!(f, "{separator}{}", refused.reason)?;
        }
        Ok(())
    }
}
