//! A connection in clear, with checksums.
//!
//! ```text
//! block   u32 little endian: length n │ u32 little endian: CRC-32 of the content │ n bytes: at most 64 KiB of the stream
//! ```
//!
//! TCP's own checksum of 16 bits misses one in 65,536 changes, and nothing covers the content while a device of the network
//! computes TCP's checksum anew. CRC-32 finds faults, not attackers.

use std::io::{self, IoSlice, Read as _};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::{Link, now, read};

const HEADER_BYTES: usize = 8;
/// The most bytes of the stream in a block.
const MAX_CONTENT_BYTES: usize = 64 << 10;
/// Size of the read buffer, so that one call of the system may bring several blocks.
const BUFFER_BYTES: usize = 4 * (HEADER_BYTES + MAX_CONTENT_BYTES);

/// A connection without encryption.
pub(crate) struct Plain {
    stream: TcpStream,
    /// The end of the last block, and how many of its bytes the system has.
    rest: Vec<u8>,
    sent: usize,
    buffer: Box<[u8]>,
    /// The received bytes of the buffer whose checksums are not verified yet.
    unread: Range<usize>,
    /// The verified bytes that are not taken yet.
    verified: Range<usize>,
}

impl Plain {
    /// A link over a stream that does not block.
    pub(crate) fn new(stream: TcpStream) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into();
        Self { stream, rest: Vec::new(), sent: 0, buffer, unread: 0..0, verified: 0..0 }
    }

    /// The content of the next block, if the whole block has come.
    ///
    /// # Errors
    /// The content does not have the checksum.
    fn next_block(&mut self) -> io::Result<Option<Range<usize>>> {
        let unread = &self.buffer[self.unread.clone()];
        let Some((&[l0, l1, l2, l3, c0, c1, c2, c3], rest)) = unread.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (length, sum) = (u32::from_le_bytes([l0, l1, l2, l3]) as usize, u32::from_le_bytes([c0, c1, c2, c3]));
        if length > MAX_CONTENT_BYTES {
            return Err(self.changed());
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        if crc32fast::hash(content) != sum {
            return Err(self.changed());
        }
        let start = self.unread.start + HEADER_BYTES;
        self.unread.start = start + length;
        Ok(Some(start..start + length))
    }

    fn changed(&self) -> io::Error {
        let from = self.stream.peer_addr().map_or_else(|_| "its machine".to_owned(), |address| address.to_string());
        let text = format!("bytes from {from} were changed on their way: their checksum is wrong");
        io::Error::new(io::ErrorKind::InvalidData, text)
    }

    /// Receives more bytes. Returns how many; 0 if none have come.
    fn fill(&mut self) -> io::Result<usize> {
        if self.unread.is_empty() || BUFFER_BYTES - self.unread.start < HEADER_BYTES + MAX_CONTENT_BYTES {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let count = read((&self.stream).read(&mut self.buffer[self.unread.end..]))?;
        self.unread.end += count;
        Ok(count)
    }
}

impl AsFd for Plain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Link for Plain {
    fn send(&mut self, [first, second]: [&[u8]; 2]) -> io::Result<usize> {
        if !self.flush()? {
            return Ok(0);
        }
        let first = &first[..first.len().min(MAX_CONTENT_BYTES)];
        let second = &second[..second.len().min(MAX_CONTENT_BYTES - first.len())];
        let mut sum = crc32fast::Hasher::new();
        sum.update(first);
        sum.update(second);
        let taken = first.len() + second.len();
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(taken as u32).to_le_bytes());
        header[4..].copy_from_slice(&sum.finalize().to_le_bytes());
        let mut sent = write(&self.stream, [&header, first, second])?;
        if sent == 0 {
            return Ok(0);
        }
        // The block has begun, so its rest is kept.
        self.rest.clear();
        self.sent = 0;
        for piece in [&header, first, second] {
            self.rest.extend_from_slice(&piece[sent.min(piece.len())..]);
            sent = sent.saturating_sub(piece.len());
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.rest.len() {
            match write(&self.stream, [&self.rest[self.sent..]])? {
                0 => return Ok(false),
                count => self.sent += count,
            }
        }
        Ok(true)
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.verified.is_empty() {
            match self.next_block()? {
                Some(content) => self.verified = content,
                None if self.fill()? == 0 => return Ok(0),
                None => {}
            }
        }
        let count = self.verified.len().min(into.len());
        into[..count].copy_from_slice(&self.buffer[self.verified.start..][..count]);
        self.verified.start += count;
        Ok(count)
    }

    fn close(&self) {
        // A connection that has failed is closed.
        _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// Sends the first bytes of pieces that follow each other. Returns how many; 0 if the connection takes none now.
fn write<const N: usize>(stream: &TcpStream, pieces: [&[u8]; N]) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = sendmsg(stream, &pieces.map(IoSlice::new), &mut SendAncillaryBuffer::default(), flags);
    now(sent.map_err(io::Error::from))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use super::*;

    fn pair() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ends = [TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0];
        ends.each_ref().iter().for_each(|end| end.set_nonblocking(true).unwrap());
        ends
    }

    /// Receives `count` bytes, while `sending` goes on.
    fn receive(to: &mut Plain, count: usize, mut sending: impl FnMut()) -> io::Result<Vec<u8>> {
        let (mut bytes, mut received) = (vec![0; count], 0);
        while received < count {
            sending();
            received += to.receive(&mut bytes[received..])?;
        }
        Ok(bytes)
    }

    #[test]
    fn a_stream_longer_than_the_buffers_arrives_unchanged() {
        let [mut from, mut to] = pair().map(Plain::new);
        let whole: Vec<u8> = (0..40_000_003_u32).map(|index| (index * 7 / 3) as u8).collect();
        let mut sent = 0;
        let received = receive(&mut to, whole.len(), || {
            let (head, rest) = whole[sent..].split_at(24.min(whole.len() - sent));
            sent += if sent < whole.len() { from.send([head, rest]).unwrap() } else { 0 };
            from.flush().unwrap();
        });
        assert!(received.unwrap() == whole);
    }

    #[test]
    fn a_changed_bit_is_an_error_before_any_byte_of_its_block_is_taken() {
        let content = [7; 100];
        for bit in [0, 20, 32, 63, 64, 800] {
            let [mut from, to] = pair();
            let mut block = [&100_u32.to_le_bytes()[..], &crc32fast::hash(&content).to_le_bytes(), &content].concat();
            from.write_all(&block).unwrap();
            block[bit / 8] ^= 1 << (bit % 8);
            from.write_all(&block).unwrap();
            // More bytes than a greater length asks for.
            from.write_all(&[0; MAX_CONTENT_BYTES]).unwrap();
            let mut to = Plain::new(to);
            assert_eq!(receive(&mut to, 100, || {}).unwrap(), content);
            let error = receive(&mut to, 1, || {}).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "bit {bit}: {error}");
        }
    }
}
