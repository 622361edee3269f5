//! OpenAI's newer interface, `/v1/responses`, without storage.

mod read;
mod tools;
mod write;

pub(crate) use read::Wanted;
pub(crate) use write::ResponseWriter;
