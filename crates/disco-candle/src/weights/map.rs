//! Memory maps of files.
#![allow(unsafe_code)]

use std::fs::File;
use std::sync::OnceLock;

use memmap2::Mmap;

/// A file in memory, mapped at the first use.
#[derive(Debug, Default)]
pub(super) struct Map(OnceLock<Mmap>);

impl Map {
    /// The bytes of `file`; `None` if its file system can't map it. The map is as long as the file was at the first call.
    pub(super) fn bytes(&self, file: &File) -> Option<&[u8]> {
        if let Some(map) = self.0.get() {
            return Some(map);
        }
        // SAFETY: the bytes are only copied, and nothing depends on their values. No code of this process writes to the
        // file. Another process that writes to it changes bytes during a copy, and one that truncates it makes the copy
        // end this process by `SIGBUS`. The map can't rule this out: the module's documentation asks programs not to
        // write to files of weights in place.
        let map = unsafe { Mmap::map(file) };
        let map = map.ok()?;
        Some(self.0.get_or_init(|| map))
    }
}
