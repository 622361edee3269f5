//! An opened file: reads of byte ranges, which are counted.

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use crate::weights::WeightsError;
use crate::weights::foreign::{LOOK, foreign};
use crate::weights::map::Map;

/// An opened file of weights.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: Arc<PathBuf>,
    /// Length of the file when it was opened.
    pub(super) len: u64,
    file: File,
    map: Map,
    /// Bytes that were read of the header and of tensors.
    read: AtomicU64,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self, WeightsError> {
        // Looks at the file first, because opening a named pipe waits for a writer.
        let meta = std::fs::metadata(path).map_err(|source| io_error(path, "looking at the file", source))?;
        if !meta.is_file() {
            return Err(WeightsError::UnknownFormat { path: path.to_owned() });
        }
        let file = File::open(path).map_err(|source| io_error(path, "opening the file", source))?;
        let source = Self {
            path: Arc::new(path.to_owned()),
            len: meta.len(),
            file,
            map: Map::default(),
            read: AtomicU64::new(0),
        };
        match foreign(&source.start::<LOOK>()?) {
            Some(what) => Err(WeightsError::Foreign { path: path.to_owned(), what }),
            None => Ok(source),
        }
    }

    /// The first bytes of the file.
    pub(super) fn start<const N: usize>(&self) -> Result<[u8; N], WeightsError> {
        let mut start = [0; N];
        self.file.read_at(&mut start, 0).map_err(|source| io_error(&self.path, "reading the file", source))?;
        Ok(start)
    }

    /// Reads the header from the start of the file.
    pub(super) fn reader(&self) -> impl Read {
        io::BufReader::new(&self.file)
    }

    pub(super) fn count(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// The whole file as a memory map, for copies of short pieces before `end` of tensor `name`; `None` if the file can't
    /// be mapped.
    pub(super) fn mapped(&self, name: &str, end: u64) -> Result<Option<&[u8]>, WeightsError> {
        let meta = self.file.metadata().map_err(|source| io_error(&self.path, "looking at the file", source))?;
        if meta.len() < end {
            let (file, part) = (self.path.to_path_buf(), format!("tensor `{name}`"));
            return Err(WeightsError::Truncated { file, part, needs: 0..end, len: meta.len() });
        }
        Ok(self.map.bytes(&self.file).filter(|bytes| bytes.len() as u64 >= end))
    }

    /// Fills `room` with the bytes at `start` of tensor `name`.
    pub(super) fn read_at(&self, name: &str, mut room: &mut [MaybeUninit<u8>], start: u64) -> Result<(), WeightsError> {
        let needs = start..start + room.len() as u64;
        let mut position = start;
        while !room.is_empty() {
            let len = match rustix::io::pread(&self.file, &mut *room, position) {
                Ok((filled, _)) => filled.len(),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(io_error(&self.path, "reading a tensor", errno.into())),
            };
            if len == 0 {
                let (file, part) = (self.path.to_path_buf(), format!("tensor `{name}`"));
                return Err(WeightsError::Truncated { file, part, needs, len: position });
            }
            self.count(len as u64);
            position += len as u64;
            room = &mut room[len..];
        }
        Ok(())
    }
}

pub(super) fn io_error(path: &Path, operation: &'static str, source: io::Error) -> WeightsError {
    WeightsError::Io { path: path.to_owned(), operation, source }
}
