//! The description of a rank's memory that peers use to open the memory, and its encoding.

use disco_core::{Error, Result};

use crate::driver::IpcHandleBytes;

/// Describes the shared memory of one rank.
pub(super) struct MemoryDescriptor {
    /// Random number of the rank's process: ranks with the same number are in one process.
    pub(super) process: u64,
    /// Random number that peers expect in the test patterns of this rank.
    pub(super) nonce: u64,
    /// The ordinal of the device in the rank's process.
    pub(super) ordinal: i32,
    /// The address of the memory in the rank's process.
    pub(super) address: u64,
    /// Size of the rank's buffer.
    pub(super) bytes: u64,
    /// Addresses of the signal words in the rank's process, if they are outside of the memory; otherwise empty.
    pub(super) words: Vec<u64>,
    /// The handle for other processes, or the reason why there is none.
    pub(super) export: Result<IpcHandleBytes, String>,
    /// Data of the caller of [`Workspace::meet`](super::Workspace::meet).
    pub(super) note: Vec<u8>,
}

impl MemoryDescriptor {
    /// Encodes the descriptor.
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

    /// Decodes a descriptor.
    ///
    /// # Errors
    /// The bytes are not a descriptor.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes).ok_or_else(|| Error::protocol("a peer has sent an invalid memory descriptor"))
    }

    /// The handle by which another process opens the memory.
    ///
    /// # Errors
    /// The reason why another process can't open the memory.
    pub(super) fn export(&self) -> Result<&IpcHandleBytes, String> {
        if !self.words.is_empty() {
            return Err(
                "its streams can wait only for words in signal memory, which other processes can't open".to_owned()
            );
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
    fn a_descriptor_survives_a_round_trip_and_truncated_bytes_are_refused() {
        for export in [Ok([7; 64]), Err("no such function".to_owned())] {
            let (words, note) = (vec![6, 7, u64::MAX], b"note".to_vec());
            let descriptor =
                MemoryDescriptor { process: 1, nonce: 2, ordinal: 3, address: 4, bytes: 5, words, export, note };
            let written = descriptor.write();
            let read = MemoryDescriptor::read(&written).unwrap();
            assert_eq!((read.process, read.nonce, read.ordinal, read.address, read.bytes), (1, 2, 3, 4, 5));
            assert_eq!((read.words, read.export, read.note), (descriptor.words, descriptor.export, descriptor.note));
            // The note, the last field, has no length: a prefix of it is valid.
            let least = written.len() - 4;
            assert!((0..least).all(|len| MemoryDescriptor::read(&written[..len]).is_err()));
            assert!((least..=written.len()).all(|len| MemoryDescriptor::read(&written[..len]).is_ok()));
        }
    }

    #[test]
    fn memory_with_separate_signal_words_has_no_handle_for_other_processes() {
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
