//! The memory mappings of a process.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The mappings, in the order of their addresses.
pub(super) struct Maps(Vec<Mapping>);

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) range: Range<u64>,
    pub(super) is_code: bool,
    /// Offset of the mapping in its file.
    pub(super) offset: u64,
    /// The file as the process names it; empty, or a name in brackets, without a file.
    pub(super) name: String,
    /// The file as this process reaches it.
    pub(super) path: Option<PathBuf>,
}

impl Maps {
    /// Reads `/proc/PROCESS/maps`.
    pub(super) fn read(process: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{process}/maps"))?;
        let mut maps: Vec<Mapping> = text.lines().filter_map(Mapping::parse).collect();
        for mapping in maps.iter_mut().filter(|mapping| mapping.is_code && mapping.name.starts_with('/')) {
            mapping.path = Some(path_for_us(process, &mapping.name));
        }
        Ok(Self(maps))
    }

    pub(super) fn find(&self, address: u64) -> Option<&Mapping> {
        let after = self.0.partition_point(|mapping| mapping.range.start <= address);
        self.0[..after].last().filter(|mapping| mapping.range.contains(&address))
    }

    pub(super) fn code(&self) -> impl Iterator<Item = &Mapping> {
        self.0.iter().filter(|mapping| mapping.is_code)
    }
}

impl Mapping {
    /// A line like `7f1200000000-7f1200021000 r-xp 00001000 08:01 1234 /usr/lib/libc.so.6`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (permissions, offset) = (words.next()?, hex(words.next()?)?);
        let name = words.nth(2).unwrap_or_default().trim_start();
        let (range, is_code) = (hex(start)?..hex(end)?, permissions.contains('x'));
        Some(Self { range, is_code, offset, name: name.to_owned(), path: None })
    }
}

/// The path of a file as `process` names it, for this process.
fn path_for_us(process: u32, path: &str) -> PathBuf {
    let in_its_root = PathBuf::from(format!("/proc/{process}/root{path}"));
    let exe = format!("/proc/{process}/exe");
    match path.strip_suffix(" (deleted)") {
        // A program that was built again: the running file is still there.
        Some(_) if fs::read_link(&exe).is_ok_and(|target| target.as_os_str() == path) => exe.into(),
        // One path for all processes, so that a file is read once.
        _ if is_same_file(&in_its_root, path.as_ref()) || !in_its_root.exists() => path.into(),
        _ => in_its_root,
    }
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    id(a).is_some() && id(a) == id(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_range_the_offset_and_a_name_with_spaces() {
        let line = "7f1200000000-7f1200021000 r-xp 00001000 08:01 1234                       /lib/my lib.so (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.range, mapping.offset), (0x7f12_0000_0000..0x7f12_0002_1000, 0x1000));
        assert_eq!((mapping.is_code, mapping.name.as_str()), (true, "/lib/my lib.so (deleted)"));
        let heap = Mapping::parse("5500-5600 rw-p 00000000 00:00 0").unwrap();
        assert_eq!((heap.is_code, heap.name.as_str()), (false, ""));
        assert_eq!(Mapping::parse("garbage"), None);
    }
}
