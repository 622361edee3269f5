//! Direct writes, and reserved room on the disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Makes a file for direct writes; none if that fails, for any reason.
pub(super) fn open(path: &Path) -> Option<File> {
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

/// Ends direct writes.
pub(super) fn leave(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags - rustix::fs::OFlags::DIRECT)?)
}

/// Reserves bytes behind the end.
pub(super) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, bytes)?)
}
