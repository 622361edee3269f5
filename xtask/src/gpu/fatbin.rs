//! Machine code in a library of CUDA kernels: zeroes the code of all architectures but one, so that the library
//! compresses well. Sizes, addresses and headers are unchanged.
//!
//! ```text
//! section   containers, one after the other, each at a multiple of 8
//! container magic u32, version u16, bytes of this header u16, bytes of the entries u64, entries
//! entry     kind u16, version u16, bytes of this header u32, bytes of the code u64, …, at 28 architecture u32, …, code
//! ```

use std::ops::Range;

use anyhow::{Context, Result, ensure};

/// The sections of linked code, and of relocatable code.
const SECTIONS: [&str; 2] = [".nv_fatbin", "__nv_relfatbin"];

const MAGIC: u64 = 0xBA55_ED50;
/// The kind of an entry with machine code; 1 is PTX.
const MACHINE_CODE: u64 = 2;

/// Zeroes all code except the machine code of `architecture` (90 for sm_90). Returns the number of bytes kept.
///
/// # Errors
/// `object` is no 64-bit ELF file with these sections, or a section has no code of the architecture.
pub(crate) fn keep(object: &mut [u8], architecture: u64) -> Result<usize> {
    let mut all = 0;
    for section in SECTIONS {
        let mut bytes = 0;
        for (code, kind, of) in entries(object, find(object, section)?)? {
            if (kind, of) == (MACHINE_CODE, architecture) {
                bytes += code.len();
            } else {
                object.get_mut(code).context("an entry ends after the file")?.fill(0);
            }
        }
        ensure!(bytes > 0, "{section} has no machine code for sm_{architecture}");
        all += bytes;
    }
    Ok(all)
}

/// The byte range of a section.
fn find(object: &[u8], section: &str) -> Result<Range<usize>> {
    ensure!(object.starts_with(b"\x7fELF\x02\x01"), "this is no little-endian ELF file of 64 bits");
    let (table, size) = (number::<8>(object, 0x28)?, number::<2>(object, 0x3A)?);
    let (count, names) = (number::<2>(object, 0x3C)?, number::<2>(object, 0x3E)?);
    let header = |index: u64| (table + index * size) as usize;
    let names = number::<8>(object, header(names) + 24)? as usize;
    for at in (0..count).map(header) {
        let name = object.get(names + number::<4>(object, at)? as usize..).context("a name is after the file's end")?;
        if name.starts_with(section.as_bytes()) && name.get(section.len()) == Some(&0) {
            let start = number::<8>(object, at + 24)? as usize;
            return Ok(start..start + number::<8>(object, at + 32)? as usize);
        }
    }
    anyhow::bail!("there is no section {section}")
}

/// The byte range, kind and architecture of each entry of a section.
fn entries(object: &[u8], section: Range<usize>) -> Result<Vec<(Range<usize>, u64, u64)>> {
    let (mut found, mut at) = (Vec::new(), section.start);
    while at + 16 <= section.end {
        if number::<4>(object, at)? != MAGIC {
            at += 8;
            continue;
        }
        let mut entry = at + number::<2>(object, at + 6)? as usize;
        let end = entry + number::<8>(object, at + 8)? as usize;
        while entry < end {
            let code = entry + number::<4>(object, entry + 4)? as usize;
            let next = code + number::<8>(object, entry + 8)? as usize;
            ensure!(next > entry && next <= section.end, "an entry ends after its section");
            found.push((code..next, number::<2>(object, entry)?, number::<4>(object, entry + 28)?));
            entry = next;
        }
        at = end.next_multiple_of(8);
    }
    Ok(found)
}

/// Reads a little-endian number of `BYTES` bytes.
fn number<const BYTES: usize>(object: &[u8], at: usize) -> Result<u64> {
    let bytes = object.get(at..at + BYTES).context("the file is cut short")?;
    Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container with an entry of 16 bytes of ones for each kind and architecture.
    fn container(entries: &[(u16, u32)]) -> Vec<u8> {
        let mut all = Vec::new();
        for (kind, architecture) in entries {
            let mut entry = [kind.to_le_bytes(), [0; 2]].concat();
            entry.extend(32u32.to_le_bytes());
            entry.extend(16u64.to_le_bytes());
            entry.extend([0; 12]);
            entry.extend(architecture.to_le_bytes());
            entry.extend([1; 16]);
            all.extend(entry);
        }
        let mut container = (MAGIC as u32).to_le_bytes().to_vec();
        container.extend([[1, 0], 16u16.to_le_bytes()].concat());
        container.extend((all.len() as u64).to_le_bytes());
        [container, all].concat()
    }

    /// An ELF file with the two sections.
    fn object(linked: &[u8], relocatable: &[u8]) -> Vec<u8> {
        const NAMES: &[u8] = b"\0.nv_fatbin\0__nv_relfatbin\0\0\0\0\0\0";
        let starts = [64, 64 + NAMES.len(), 64 + NAMES.len() + linked.len()];
        let sections =
            [(0u32, starts[0], NAMES.len()), (1, starts[1], linked.len()), (12, starts[2], relocatable.len())];
        let mut object = b"\x7fELF\x02\x01".to_vec();
        object.resize(64, 0);
        object[0x28..0x30].copy_from_slice(&(starts[2] + relocatable.len()).to_le_bytes());
        object[0x3A..0x40].copy_from_slice(&[64, 0, 3, 0, 0, 0]);
        object.extend([NAMES, linked, relocatable].concat());
        for (name, start, len) in sections {
            let mut header = [name.to_le_bytes().to_vec(), vec![0; 20]].concat();
            header.extend([start.to_le_bytes(), len.to_le_bytes()].concat());
            header.resize(64, 0);
            object.extend(header);
        }
        object
    }

    #[test]
    fn machine_code_of_one_architecture_stays() {
        let code = container(&[(2, 80), (2, 90), (1, 90)]);
        let mut object = object(&code, &code);
        assert_eq!(keep(&mut object, 90).unwrap(), 32);
        for section in SECTIONS {
            let entries = entries(&object, find(&object, section).unwrap()).unwrap();
            let is_kept = |(code, ..): &(Range<usize>, u64, u64)| object[code.clone()] == [1; 16];
            assert_eq!(entries.iter().map(is_kept).collect::<Vec<_>>(), [false, true, false], "{section}");
        }
    }

    #[test]
    fn files_that_are_cut_short_or_without_the_code_are_errors() {
        let whole = object(&container(&[(2, 80)]), &container(&[(2, 80)]));
        let error = keep(&mut whole.clone(), 90).unwrap_err().to_string();
        assert_eq!(error, ".nv_fatbin has no machine code for sm_90");
        assert!(keep(&mut whole[..whole.len() - 64].to_vec(), 80).is_err());
        assert!(keep(&mut [0; 100], 80).is_err());
    }
}
