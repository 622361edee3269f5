//! Messages of a connection: each is its length as a u32, little-endian, and JSON.

use std::io::{Error, ErrorKind, Read as _, Result};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use rustix::net::SendFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::sync::lock;

/// The largest message that is accepted. A group of a million calls is smaller.
const MAX_FRAME_BYTES: usize = 1 << 28;
/// Timeout of a send to a process that does not read from a full connection, for example because it is stopped.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The sending side of a connection. Several threads may send.
#[derive(Debug)]
pub(crate) struct Sender(Mutex<UnixStream>);

impl Sender {
    /// Creates the sending side of a connection.
    ///
    /// # Errors
    /// Errors of the socket.
    pub(crate) fn new(stream: &UnixStream) -> Result<Self> {
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        stream.try_clone().map(|stream| Self(Mutex::new(stream)))
    }

    /// Sends a message. If this fails, it shuts the connection down; the thread that reads from the connection notices
    /// that.
    pub(crate) fn send(&self, message: &impl Serialize) {
        let stream = lock(&self.0);
        // The keys of all messages are texts.
        let content = serde_json::to_vec(message).unwrap_or_default();
        let bytes = [&(content.len() as u32).to_le_bytes(), &content[..]].concat();
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

/// Reads the next message.
///
/// # Errors
/// The connection has ended, or the message is too long or none of this type.
pub(crate) fn read<M: DeserializeOwned>(mut stream: &UnixStream) -> Result<M> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME_BYTES {
        let why = format!("a message of {length} bytes exceeds the limit of {MAX_FRAME_BYTES} bytes");
        return Err(Error::new(ErrorKind::InvalidData, why));
    }
    let mut content = vec![0; length];
    stream.read_exact(&mut content)?;
    Ok(serde_json::from_slice(&content)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_those_above_the_limit_are_refused() {
        let (one, other) = UnixStream::pair().unwrap();
        let sender = Sender::new(&one).unwrap();
        let message = vec![3; 1 << 20];
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(&message));
            assert_eq!(read::<Vec<u8>>(&other).unwrap(), message);
        });
        rustix::net::send(&*lock(&sender.0), &u32::MAX.to_le_bytes(), SendFlags::NOSIGNAL).unwrap();
        assert_eq!(read::<Vec<u8>>(&other).unwrap_err().kind(), ErrorKind::InvalidData);
        sender.shut_down();
        assert_eq!(read::<Vec<u8>>(&other).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
