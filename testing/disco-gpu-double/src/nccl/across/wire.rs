//! Frames of a connection.
//!
//! ```text
//! frame   length: u32, content: length bytes
//! value   word: u64  |  bytes: length u64, length bytes
//! ```
//!
//! The content of a frame is a sequence of values. All numbers are little-endian.

use std::io::{Error, ErrorKind, Read as _, Result};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use rustix::net::SendFlags;

use crate::sync::lock;

/// The largest frame that is accepted. A group of a million calls is smaller.
const MAX_FRAME_BYTES: usize = 1 << 28;
/// Timeout of a send to a process that does not read from a full connection, for example because it is stopped.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A frame that is being written.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

/// The unread content of a frame.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

/// The sending side of a connection. Several threads may send.
#[derive(Debug)]
pub(crate) struct Sender(Mutex<UnixStream>);

impl Writer {
    /// Appends a number.
    pub(crate) fn word(&mut self, word: impl Into<u64>) -> &mut Self {
        self.0.extend(word.into().to_le_bytes());
        self
    }

    /// Appends a number that may be negative.
    pub(crate) fn signed(&mut self, number: i32) -> &mut Self {
        self.word(u64::from(number.cast_unsigned()))
    }

    /// Appends the number of bytes, and the bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.word(bytes.len() as u64).0.extend(bytes);
        self
    }
}

impl<'a> Reader<'a> {
    /// A reader of the content of a frame.
    pub(crate) fn new(frame: &'a [u8]) -> Self {
        Self(frame)
    }

    /// The next number.
    pub(crate) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// The next number, as an index or a length.
    pub(crate) fn index(&mut self) -> Option<usize> {
        self.word()?.try_into().ok()
    }

    /// The next number, which may be negative.
    pub(crate) fn signed(&mut self) -> Option<i32> {
        Some(u32::try_from(self.word()?).ok()?.cast_signed())
    }

    /// The next bytes.
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let bytes = self.index()?;
        let (bytes, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(bytes)
    }

    /// The next bytes, as a text.
    pub(crate) fn text(&mut self) -> Option<String> {
        self.bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Whether all was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Sender {
    /// Creates the sending side of a connection.
    ///
    /// # Errors
    /// Errors of the socket.
    pub(crate) fn new(stream: &UnixStream) -> Result<Self> {
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        stream.try_clone().map(|stream| Self(Mutex::new(stream)))
    }

    /// Sends a whole frame. If this fails, it shuts the connection down; the thread that reads from the connection
    /// notices that.
    pub(crate) fn send(&self, frame: &Writer) {
        let stream = lock(&self.0);
        let length = (frame.0.len() as u32).to_le_bytes();
        let bytes = [&length[..], &frame.0].concat();
        let mut left = &bytes[..];
        while !left.is_empty() {
            match rustix::net::send(&*stream, left, SendFlags::NOSIGNAL) {
                Ok(sent) => left = &left[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    // This fails only if the connection has ended before.
                    _ = stream.shutdown(Shutdown::Both);
                    return;
                }
            }
        }
    }

    /// Ends the connection for both sides.
    pub(crate) fn shut_down(&self) {
        // This fails only if the connection has ended before.
        _ = lock(&self.0).shutdown(Shutdown::Both);
    }
}

/// Reads the next frame.
///
/// # Errors
/// The connection has ended, or the frame is too long.
pub(crate) fn read(mut stream: &UnixStream) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME_BYTES {
        let why = format!("a frame of {length} bytes exceeds the limit of {MAX_FRAME_BYTES} bytes");
        return Err(Error::new(ErrorKind::InvalidData, why));
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written() {
        let mut frame = Writer::default();
        frame.word(7_u64).signed(-1).bytes(b"text").word(9_u64);
        let mut reader = Reader::new(&frame.0);
        assert_eq!((reader.word(), reader.signed(), reader.text().as_deref()), (Some(7), Some(-1), Some("text")));
        assert!(!reader.is_empty());
        assert_eq!((reader.word(), reader.is_empty(), reader.word()), (Some(9), true, None));
    }

    #[test]
    fn truncated_values_are_refused() {
        let mut frame = Writer::default();
        frame.word(9_u64).word(1_u64);
        assert_eq!(Reader::new(&frame.0).bytes(), None);
        assert_eq!(Reader::new(&frame.0[..7]).word(), None);
    }

    #[test]
    fn frames_arrive_whole_and_frames_above_the_limit_are_refused() {
        let (one, other) = UnixStream::pair().unwrap();
        let sender = Sender::new(&one).unwrap();
        let mut frame = Writer::default();
        frame.bytes(&[3; 1 << 20]);
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(&frame));
            assert_eq!(read(&other).unwrap(), frame.0);
        });
        rustix::net::send(&*lock(&sender.0), &u32::MAX.to_le_bytes(), SendFlags::NOSIGNAL).unwrap();
        assert_eq!(read(&other).unwrap_err().kind(), ErrorKind::InvalidData);
        sender.shut_down();
        assert_eq!(read(&other).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
