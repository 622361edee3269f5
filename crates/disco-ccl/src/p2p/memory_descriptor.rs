//! The description of a rank's memory that peers use to open the memory, and its encoding.

use disco_core::wire::{Reader, WireError, Writer};
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
        let mut to = Writer::default();
        [self.process, self.nonce, self.address, self.bytes].into_iter().for_each(|number| to.u64(number));
        to.i32(self.ordinal);
        to.u64(self.words.len() as u64);
        self.words.iter().for_each(|word| to.u64(*word));
        to.u8(self.export.is_ok().into());
        to.bytes(self.export.as_ref().map_or_else(|why| why.as_bytes(), |export| &export[..]));
        to.bytes(&self.note);
        to.into_bytes()
    }

    /// Decodes a descriptor.
    ///
    /// # Errors
    /// The bytes are not a descriptor.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        Self::parse(&mut Reader::new(bytes))
            .map_err(|error| Error::protocol(format!("a peer has sent an invalid memory descriptor: {error}")))
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

    fn parse(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let [process, nonce, address, bytes] = [from.u64()?, from.u64()?, from.u64()?, from.u64()?];
        let (ordinal, count) = (from.i32()?, from.u64()?);
        let words = from.list(count)?.into_iter().map(i64::cast_unsigned).collect();
        let (is_there, export) = (from.u8()? == 1, from.bytes()?);
        let export = match is_there {
            true => Ok(export.try_into().map_err(|_| WireError::Expected("a handle of memory"))?),
            false => Err(String::from_utf8_lossy(export).into_owned()),
        };
        Ok(Self { process, nonce, ordinal, address, bytes, words, export, note: from.bytes()?.to_vec() })
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
            assert!((0..written.len()).all(|len| MemoryDescriptor::read(&written[..len]).is_err()));
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
