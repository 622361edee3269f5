//! What a rank tells its peers of its memory.

use disco_core::{Error, Result};

use crate::driver::IpcHandleBytes;

/// One rank's memory.
pub(super) struct MemoryDescriptor {
    /// What tells its process from others.
    pub(super) process: u64,
    /// A number of chance, by which peers know what this rank has written.
    pub(super) nonce: u64,
    /// Its device, as its process numbers it.
    pub(super) ordinal: i32,
    /// Where the memory starts, in its process.
    pub(super) address: u64,
    /// Of its buffer.
    pub(super) bytes: u64,
    /// Addresses of its words, in its process, where they are not in the memory.
    pub(super) words: Vec<u64>,
    /// What other processes open it by, or why they can't.
    pub(super) export: Result<IpcHandleBytes, String>,
    /// What else it wants to be known.
    pub(super) note: Vec<u8>,
}

impl MemoryDescriptor {
    pub(super) fn write(&self) -> Vec<u8> {
        let export = match &self.export {
            Ok(export) => (1, &export[..]),
            Err(why) => (0, why.as_bytes()),
        };
        let mut bytes: Vec<u8> = [self.process, self.nonce, self.address, self.bytes].map(u64::to_le_bytes).concat();
        bytes.extend(self.ordinal.to_le_bytes());
        bytes.extend((self.words.len() as u32).to_le_bytes());
        bytes.extend(self.words.iter().copied().flat_map(u64::to_le_bytes));
        bytes.push(export.0);
        bytes.extend((export.1.len() as u32).to_le_bytes());
        bytes.extend(export.1);
        bytes.extend(&self.note);
        bytes
    }

    /// # Errors
    /// No rank of this program has written that.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes).ok_or_else(|| Error::protocol("a peer offers what no rank of this program does"))
    }

    /// What another process opens the memory by.
    ///
    /// # Errors
    /// Why it can't.
    pub(super) fn export(&self) -> Result<&IpcHandleBytes, String> {
        if !self.words.is_empty() {
            return Err("its streams wait for words in signal memory alone, which is of one process".to_owned());
        }
        self.export.as_ref().map_err(Clone::clone)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.split_first_chunk::<32>()?;
        let (words, _) = numbers.as_chunks::<8>();
        let number = |at: usize| u64::from_le_bytes(words[at]);
        let (ordinal, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let (table, rest) = rest.split_at_checked((u32::from_le_bytes(*count) as usize).checked_mul(8)?)?;
        let (is_there, rest) = rest.split_first()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (export, note) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let export = match is_there {
            1 => Ok(export.try_into().ok()?),
            _ => Err(String::from_utf8_lossy(export).into_owned()),
        };
        Some(Self {
            process: number(0),
            nonce: number(1),
            address: number(2),
            bytes: number(3),
            ordinal: i32::from_le_bytes(*ordinal),
            words: table.as_chunks().0.iter().copied().map(u64::from_le_bytes).collect(),
            export,
            note: note.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_read_as_it_was_written_and_never_in_part() {
        for export in [Ok([7; 64]), Err("no such function".to_owned())] {
            let (words, note) = (vec![6, 7, u64::MAX], b"note".to_vec());
            let descriptor =
                MemoryDescriptor { process: 1, nonce: 2, ordinal: 3, address: 4, bytes: 5, words, export, note };
            let written = descriptor.write();
            let read = MemoryDescriptor::read(&written).unwrap();
            assert_eq!((read.process, read.nonce, read.ordinal, read.address, read.bytes), (1, 2, 3, 4, 5));
            assert_eq!((read.words, read.export, read.note), (descriptor.words, descriptor.export, descriptor.note));
            // What comes last may be empty.
            let least = written.len() - 4;
            assert!((0..least).all(|len| MemoryDescriptor::read(&written[..len]).is_err()));
            assert!((least..=written.len()).all(|len| MemoryDescriptor::read(&written[..len]).is_ok()));
        }
    }

    #[test]
    fn memory_whose_words_are_elsewhere_is_of_one_process() {
        let descriptor = |words| MemoryDescriptor {
            process: 1,
            nonce: 2,
            ordinal: 3,
            address: 4,
            bytes: 5,
            words,
            export: Ok([7; 64]),
            note: Vec::new(),
        };
        assert_eq!(descriptor(Vec::new()).export(), Ok(&[7; 64]));
        assert!(descriptor(vec![8]).export().unwrap_err().contains("signal memory"));
        let descriptor = MemoryDescriptor { export: Err("no such function".to_owned()), ..descriptor(Vec::new()) };
        assert_eq!(descriptor.export().unwrap_err(), "no such function");
    }
}
