//! Failures of reading and writing files.

use std::io;
use std::path::{Path, PathBuf};

/// A file can't be written or read.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file can't be written.
    #[error("can't write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The content of the file is not that of a trace.
    #[error("{}, line {line}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The fault.
        reason: String,
    },
}

impl TraceError {
    pub(crate) fn write(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Write { path: path.to_owned(), source }
    }
}
