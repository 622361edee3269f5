//! A new file that is written past the page cache, where the file system can.
//!
//! Direct writes need less CPU time than writes through the page cache (the guide has figures), and do not evict pages.
//! Their positions, sizes and addresses are multiples of a block.

#[cfg_attr(not(target_os = "linux"), path = "direct_unsupported.rs")]
mod direct;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The unit of direct writes: a page, and at least the block of every common disk.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// A file that grows at its end.
pub(crate) struct Output {
    file: File,
    is_direct: bool,
}

impl Output {
    /// Makes a file that does not exist yet.
    ///
    /// # Errors
    /// The file exists or can't be made.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let (file, is_direct) = match direct::open(path) {
            Some(file) => (file, true),
            None => (File::create_new(path)?, false),
        };
        Ok(Self { file, is_direct })
    }

    /// Reserves so many bytes on the disk, where the file system can.
    ///
    /// # Errors
    /// The disk is full, or the file may not be so large.
    pub(crate) fn reserve(&self, bytes: u64) -> io::Result<()> {
        match direct::reserve(&self.file, bytes) {
            Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge) => {
                Err(error)
            }
            // Other errors mean that the file system reserves nothing; writes then report theirs.
            _ => Ok(()),
        }
    }

    /// Appends whole blocks at the address of a block.
    ///
    /// # Errors
    /// The file can't be written to.
    pub(crate) fn write(&mut self, mut blocks: &[u8]) -> io::Result<()> {
        while !blocks.is_empty() {
            match self.file.write(blocks) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => blocks = &blocks[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Some file systems take the flag and refuse the write, or write a part of a block and refuse the rest.
                Err(error) if self.is_direct && error.kind() == io::ErrorKind::InvalidInput => {
                    direct::leave(&self.file)?;
                    self.is_direct = false;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the disk has all bytes.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Cuts the file off after `bytes` bytes, and waits until it is on the disk.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) fn finish(self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.file.sync_all()
    }
}
