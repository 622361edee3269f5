//! The fields of all requests, as data: which ones are obeyed, refused, or accepted without effect.
//!
//! Handlers read fields through [`Fields`](super::Fields), which decides by these tables; the guide (`docs/interfaces.md`) and
//! `/openapi.json` are written from them.

mod body;
mod messages;
mod responses;
mod shape;
mod texts;
mod vectors;

#[cfg(test)]
pub(crate) use body::Part;
pub(crate) use body::{Body, Rule};
pub(crate) use messages::{COUNTED_MESSAGE, MESSAGE};
pub(crate) use responses::RESPONSE;
pub(crate) use shape::Shape;
pub(super) use shape::integer;
pub(crate) use texts::{CHAT, COMPLETION, DETOKENIZE, TOKENIZE_CHAT, TOKENIZE_TEXT};
pub(super) use texts::{CHOICE, JSON_SCHEMA, STRING};
pub(crate) use vectors::{EMBED, RERANK, SCORE};

/// The bodies of all requests.
#[cfg(test)]
pub(crate) fn all() -> [&'static Body; 11] {
    [
        &CHAT,
        &COMPLETION,
        &RESPONSE,
        &MESSAGE,
        &COUNTED_MESSAGE,
        &EMBED,
        &RERANK,
        &SCORE,
        &TOKENIZE_CHAT,
        &TOKENIZE_TEXT,
        &DETOKENIZE,
    ]
}
