//! Anthropic's interface, `/v1/messages`.

mod edits;
mod read;
mod write;

pub(crate) use read::Message;
pub(crate) use write::MessageWriter;
