//! Packets in a stream of bytes.

use std::io::{self, Read};

use disco_core::wire::{Packet, WireError};

/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Splits a stream of bytes into packets. Memory is allocated for received bytes only, not for announced ones.
#[derive(Debug)]
pub struct Packets {
    bytes: Vec<u8>,
    /// Start of the first unread packet.
    start: usize,
    /// Largest permitted packet, in bytes.
    limit: usize,
}

impl Packets {
    /// An empty buffer for packets of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, limit }
    }

    /// Appends received bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        if self.start > 0 && (self.start == self.bytes.len() || self.start >= READ_BYTES) {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete packet, with its length.
    ///
    /// # Errors
    /// The packet is larger than the limit.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        let unread = &self.bytes[self.start..];
        let Some(prefix) = unread.first_chunk::<{ Packet::PREFIX }>() else { return Ok(None) };
        let length = Packet::content_len(*prefix)?;
        if length > self.limit {
            return Err(WireError::TooLarge { bytes: length as u64, limit: self.limit as u64 });
        }
        let Some(packet) = unread.get(..Packet::PREFIX + length) else { return Ok(None) };
        let packet = packet.to_vec();
        self.start += packet.len();
        Ok(Some(packet))
    }

    /// Reads once from a stream. Returns the number of bytes; 0 at its end.
    ///
    /// # Errors
    /// Errors of the stream.
    pub(super) fn fill(&mut self, stream: &mut impl Read) -> io::Result<usize> {
        let mut chunk = [0; READ_BYTES];
        loop {
            match stream.read(&mut chunk) {
                Ok(count) => {
                    self.put(&chunk[..count]);
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The next packet of a blocking stream; none at its end.
    ///
    /// # Errors
    /// Errors of the stream; [`io::ErrorKind::InvalidData`] for a packet that is too large;
    /// [`io::ErrorKind::UnexpectedEof`] if the stream ends inside a packet.
    pub(super) fn read(&mut self, stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(packet) = self.take().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
                return Ok(Some(packet));
            }
            if self.fill(stream)? == 0 {
                return if self.start == self.bytes.len() {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
        }
    }
}

/// Largest packet, in bytes, of values with this limit: base64 adds a third, and other arguments have some room.
pub(super) fn packet_limit(value_limit: usize) -> usize {
    value_limit.saturating_add(value_limit / 2).saturating_add(1 << 20)
}

#[cfg(test)]
mod tests {
    use disco_core::{Command, Frame, RegisterId};

    use super::*;

    fn packet(register: u32) -> Vec<u8> {
        let command = Command::KillReg { register: RegisterId::new(register) };
        Frame::new(1, [], command).bytes().unwrap().to_vec()
    }

    #[test]
    fn packets_are_found_in_any_division_of_the_stream() {
        let stream: Vec<u8> = (0..50).flat_map(packet).collect();
        for step in 1..100 {
            let (mut packets, mut found) = (Packets::new(100), Vec::new());
            for chunk in stream.chunks(step) {
                packets.put(chunk);
                while let Some(packet) = packets.take().unwrap() {
                    found.push(packet);
                }
            }
            assert_eq!(found, (0..50).map(packet).collect::<Vec<_>>(), "chunks of {step} bytes");
        }
    }

    #[test]
    fn an_announced_length_allocates_nothing_and_is_limited() {
        let mut packets = Packets::new(1 << 30);
        packets.put(&(1u64 << 29).to_le_bytes());
        assert_eq!(packets.take(), Ok(None));
        assert!(packets.bytes.capacity() < 1 << 10);
        let mut packets = Packets::new(1 << 20);
        packets.put(&(1u64 << 29).to_le_bytes());
        let error = packets.take().unwrap_err().to_string();
        assert_eq!(error, "a packet of 536870912 bytes; the limit is 1048576");
    }

    #[test]
    fn a_stream_that_ends_inside_a_packet_is_an_error() {
        let whole = packet(3);
        let mut packets = Packets::new(100);
        assert_eq!(packets.read(&mut &whole[..]).unwrap(), Some(whole.clone()));
        assert_eq!(packets.read(&mut &[][..]).unwrap(), None);
        let error = packets.read(&mut &whole[..9]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
