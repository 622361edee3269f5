//! A new file that is written past the page cache, where the file system can.
//!
//! Direct writes need less CPU time than writes through the page cache (the guide has figures), and do not evict pages.
//! Their positions, sizes and addresses are multiples of a block. Other bytes go through a staging buffer.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use memmap2::MmapMut;

/// The unit of direct writes: a page, and at least the block of every common disk.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Size of the staging buffer.
const STAGING_BYTES: usize = 1 << 20;

/// A file that grows at its end.
pub(crate) struct Output {
    file: File,
    /// Whole pages, so that it is aligned.
    staging: MmapMut,
    /// Number of bytes in the staging buffer. Their position is the end of `file`.
    staged: usize,
    /// Length of the complete file: the written bytes and the staged bytes.
    bytes: u64,
    is_direct: bool,
}

impl Output {
    /// Makes a file that does not exist yet.
    ///
    /// # Errors
    /// The file exists or can't be made.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let staging = MmapMut::map_anon(STAGING_BYTES)?;
        let (file, is_direct) = match open_direct(path) {
            Some(file) => (file, true),
            None => (File::create_new(path)?, false),
        };
        Ok(Self { file, staging, staged: 0, bytes: 0, is_direct })
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

    /// Appends bytes. Bytes whose address fits their position in the file are not copied.
    ///
    /// # Errors
    /// The file can't be written to.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let is_aligned = bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES);
            if self.staged == 0 && is_aligned && bytes.len() >= BLOCK_BYTES {
                let (blocks, rest) = bytes.split_at(bytes.len() / BLOCK_BYTES * BLOCK_BYTES);
                put(&mut self.file, &mut self.is_direct, blocks)?;
                bytes = rest;
                continue;
            }
            // Behind the next border of a block, bytes at a fitting address need no copy.
            let to_border = BLOCK_BYTES - self.staged % BLOCK_BYTES;
            let fits = bytes.as_ptr().addr().wrapping_add(to_border).is_multiple_of(BLOCK_BYTES);
            let room = if fits { to_border } else { STAGING_BYTES - self.staged };
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.staging[self.staged..][..now.len()].copy_from_slice(now);
            self.staged += now.len();
            bytes = rest;
            if self.staged == STAGING_BYTES || fits && now.len() == room {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Waits until the disk has all bytes before the staged ones.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Writes the last bytes, and waits until the file is on the disk.
    ///
    /// # Errors
    /// The file can't be written to, or the disk fails.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        // A direct write has whole blocks. `set_len` cuts the padding off.
        let padded = self.staged.next_multiple_of(BLOCK_BYTES);
        self.staging[self.staged..padded].fill(0);
        self.staged = padded;
        self.flush()?;
        self.file.set_len(self.bytes)?;
        self.file.sync_all()
    }

    fn flush(&mut self) -> io::Result<()> {
        put(&mut self.file, &mut self.is_direct, &self.staging[..self.staged])?;
        self.staged = 0;
        Ok(())
    }
}

/// Writes whole blocks from an aligned address.
fn put(file: &mut File, is_direct: &mut bool, mut blocks: &[u8]) -> io::Result<()> {
    while !blocks.is_empty() {
        match file.write(blocks) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => blocks = &blocks[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Some file systems take the flag and refuse the write, or write a part of a block and refuse the rest.
            Err(error) if *is_direct && error.kind() == io::ErrorKind::InvalidInput => {
                leave_direct(file)?;
                *is_direct = false;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_file_has_the_bytes_at_every_address_and_size(
            pieces in proptest::collection::vec((0usize..2 * BLOCK_BYTES, 0usize..3 * BLOCK_BYTES, any::<bool>()), 0..12),
            large in 0usize..2 * STAGING_BYTES,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            let mut memory = MmapMut::map_anon(4 * STAGING_BYTES).unwrap();
            memory.iter_mut().zip(0u32..).for_each(|(byte, index)| *byte = (index.wrapping_mul(0x9e37_79b9) >> 24) as u8);
            let mut output = Output::create(&path).unwrap();
            output.reserve(1 << 20).unwrap();
            let mut expected = Vec::new();
            for (address, len, fits) in pieces.into_iter().chain([(5, large, true)]) {
                // At an address that fits the position in the file, or at any.
                let address = if fits { expected.len() % BLOCK_BYTES } else { address };
                output.write(&memory[address..][..len]).unwrap();
                expected.extend_from_slice(&memory[address..][..len]);
            }
            output.finish().unwrap();
            prop_assert!(std::fs::read(&path).unwrap() == expected);
        }
    }
}
