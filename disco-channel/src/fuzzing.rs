//! What fuzz targets reach that nobody else does.

use disco_core::Result;
use disco_core::wire::Message;

use crate::reactor::Incoming;

/// The messages in bytes that come over a connection in these chunks, where a packet may have `limit` bytes.
///
/// # Errors
/// Bytes that are no message, or a packet that is too large.
pub fn messages(limit: usize, chunks: &[&[u8]]) -> Result<Vec<Message>> {
    let (mut incoming, mut messages) = (Incoming::new(limit), Vec::new());
    for chunk in chunks {
        incoming.put(chunk);
        while let Some(message) = incoming.next()? {
            messages.push(message);
        }
    }
    Ok(messages)
}
