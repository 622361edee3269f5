//! Entry points for fuzz targets.

use disco_core::Result;
use disco_core::wire::Message;

use crate::reactor::Incoming;

/// Decodes the messages in bytes that come over a connection in these chunks, with packets of at most `limit` bytes.
///
/// # Errors
/// The bytes are not a message, or a packet is too large.
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
