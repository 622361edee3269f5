//! A new file that is written past the page cache, where the file system can.
//!
//! Direct writes need less CPU time than writes through the page cache (the guide has figures), and do not evict pages.
//! Their positions, sizes and addresses are multiples of a block.

use std::fs::{File, OpenOptions};
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
        let (file, is_direct) = match open_direct(path) {
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
        match reserve(&self.file, bytes) {
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
                    leave_direct(&self.file)?;
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

/// Makes a file for direct writes; none if that fails, for any reason.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let opened = OpenOptions::new().write(true).create_new(true).custom_flags(direct).open(path);
    // Without support, some systems make the file before they refuse the flag.
    opened
        .inspect_err(|error| {
            if error.kind() == io::ErrorKind::InvalidInput {
                _ = std::fs::remove_file(path)
            }
        })
        .ok()
}

#[cfg(target_os = "linux")]
fn leave_direct(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags - rustix::fs::OFlags::DIRECT)?)
}

#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, bytes)?)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path) -> Option<File> {
    None
}

#[cfg(not(target_os = "linux"))]
fn leave_direct(_: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: &File, _: u64) -> io::Result<()> {
    Ok(())
}
