//! Entry points for fuzz targets.

use disco_core::status::Program;
use disco_core::wire::Message;
use disco_core::{Error, Result};

use crate::remote::reactor::Incoming;

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

/// Decodes the answer of a program to `disco status`.
///
/// # Errors
/// The bytes are no such answer.
pub fn program(bytes: &[u8]) -> Result<Program> {
    serde_json::from_slice(bytes).map_err(|error| Error::protocol(error.to_string()))
}

/// The answer of a program. JSON can be made of any: its keys are strings, and its numbers are finite.
pub fn program_bytes(program: &Program) -> Vec<u8> {
    serde_json::to_vec(program).unwrap_or_default()
}
