//! The start of an ELF file: whether it is a shared library that this program can open. The loader's own texts for
//! files of other machines are vague.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use disco_core::{Error, Result};

/// Bytes of the header that are read.
const HEADER_BYTES: usize = 20;
/// `ET_DYN`.
const SHARED: u16 = 3;

/// Names of machines (`e_machine`).
const MACHINES: [(u16, &str); 8] = [
    (3, "x86"),
    (21, "PowerPC64"),
    (22, "s390x"),
    (40, "ARM"),
    (62, "x86-64"),
    (183, "AArch64"),
    (243, "RISC-V"),
    (258, "LoongArch"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    bits: u8,
    is_little_endian: bool,
    kind: u16,
    machine: u16,
}

/// Checks that the file `path`, called `name` in errors, is a shared library for the machine of this program.
///
/// # Errors
/// The file can't be read, is no shared library, or is for another machine.
pub(crate) fn check(path: &Path, name: &str) -> Result<()> {
    let bytes = read(path).map_err(|error| Error::system(format!("can't open the library `{name}`"), error))?;
    if cfg!(not(target_os = "linux")) {
        return Ok(());
    }
    let own = read(Path::new("/proc/self/exe")).ok().and_then(|bytes| Header::parse(&bytes));
    refuse(Header::parse(&bytes), own).map_or(Ok(()), |why| Err(Error::missing(format!("`{name}` {why}"))))
}

/// Why a file with this header can't be opened by a program with the header `own`; none if nothing is wrong.
fn refuse(header: Option<Header>, own: Option<Header>) -> Option<String> {
    let Some(header) = header else { return Some("is no shared library: it does not start as an ELF file".to_owned()) };
    let platform = |header: Header| (header.bits, header.is_little_endian, header.machine);
    match own {
        Some(own) if platform(own) != platform(header) => {
            Some(format!("is a library for {}, and this program is for {}", header.machine_name(), own.machine_name()))
        }
        _ if header.kind != SHARED => Some(format!("is an ELF file of type {}, and no shared library", header.kind)),
        _ => None,
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(HEADER_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(b"\x7fELF")?;
        let (&class, &data) = (rest.first()?, rest.get(1)?);
        let is_little_endian = data == 1;
        let word = |at: usize| {
            let word = [*bytes.get(at)?, *bytes.get(at + 1)?];
            Some(if is_little_endian { u16::from_le_bytes(word) } else { u16::from_be_bytes(word) })
        };
        Some(Self { bits: if class == 2 { 64 } else { 32 }, is_little_endian, kind: word(16)?, machine: word(18)? })
    }

    fn machine_name(self) -> String {
        let known = MACHINES.iter().find(|(number, _)| *number == self.machine);
        let machine = known.map_or_else(|| format!("machine {}", self.machine), |(_, name)| (*name).to_owned());
        let order = if self.is_little_endian { "" } else { ", big endian" };
        format!("{machine} ({} bits{order})", self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86_64: Header = Header { bits: 64, is_little_endian: true, kind: SHARED, machine: 62 };

    #[test]
    fn a_library_of_another_machine_is_refused_by_name() {
        let arm = Header { machine: 183, ..X86_64 };
        assert_eq!(
            refuse(Some(arm), Some(X86_64)).unwrap(),
            "is a library for AArch64 (64 bits), and this program is for x86-64 (64 bits)"
        );
        let other = Header { bits: 32, is_little_endian: false, machine: 9999, ..X86_64 };
        let why = refuse(Some(other), Some(X86_64)).unwrap();
        assert!(why.starts_with("is a library for machine 9999 (32 bits, big endian)"), "{why}");
        assert_eq!(refuse(Some(X86_64), Some(X86_64)), None);
    }

    #[test]
    fn a_header_is_parsed_and_other_files_are_refused() {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (bytes[16], bytes[18]) = (3, 62);
        assert_eq!(Header::parse(&bytes), Some(X86_64));
        bytes[16] = 1;
        let object = refuse(Header::parse(&bytes), Some(X86_64)).unwrap();
        assert_eq!(object, "is an ELF file of type 1, and no shared library");
        let text = refuse(Header::parse(b"#!/bin/sh"), Some(X86_64)).unwrap();
        assert_eq!(text, "is no shared library: it does not start as an ELF file");
        assert_eq!(Header::parse(&bytes[..10]), None);
    }

    #[test]
    fn the_header_of_this_program_is_known() {
        assert!(Header::parse(&read(Path::new("/proc/self/exe")).unwrap()).is_some());
    }
}
