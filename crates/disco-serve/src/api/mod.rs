//! The requests and replies of OpenAI's interface, with vLLM's additions.

mod anthropic;
mod bodies;
mod chat;
mod completion;
mod error;
mod fields;
mod finished;
mod grammar;
mod known;
mod logprobs;
mod messages;
mod order;
#[cfg(test)]
mod random;
mod reply;
mod responses;
mod sampling;
mod tools;
mod vectors;
mod writer;

pub(crate) use anthropic::{Message, MessageWriter};
#[cfg(test)]
pub(crate) use bodies::Part;
pub(crate) use bodies::{
    Body, CHAT, COMPLETION, COUNTED_MESSAGE, DETOKENIZE, EMBED, MESSAGE, RERANK, RESPONSE, SCORE, TOKENIZE_CHAT,
    TOKENIZE_TEXT,
};
pub(crate) use error::ApiError;
pub(crate) use fields::{Fields, Object};
pub(crate) use finished::{Called, Ending, Finish, Reply, Said, Usage};
pub(crate) use grammar::Asked;
pub(crate) use known::Known;
pub(crate) use logprobs::name_of_token;
pub(crate) use messages::chat_of;
pub(crate) use order::{Kind, Order, Prompt, check_model, tokens_of};
pub(crate) use reply::Format;
pub(crate) use responses::{ResponseWriter, Wanted};
pub(crate) use vectors::{Cut, Embed, Input, Rerank, Score};
pub(crate) use writer::Writer;
