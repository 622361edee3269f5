//! OpenAI's interface over HTTP/1.1.
//!
//! ```text
//! connection (places) ─▶ origins ─▶ answer (request id, host, token, panics) ─▶ route ─▶ body ─▶ Order
//!     ─▶ seats reserved ─▶ prompts tokenised ─▶ engine ─▶ Generation ─▶ one reply, or chunks of a stream
//! ```

mod answer;
mod app;
mod auth;
mod body;
mod calls;
mod connection;
mod drain;
mod generate;
mod generation;
#[cfg(test)]
mod guide;
mod hosts;
mod openapi;
mod origins;
mod parts;
mod places;
mod probes;
mod prompts;
mod request_id;
mod respond;
mod route;
mod routes;
mod server;
mod shared;
mod stall;
mod stream;
mod tokenize;
mod traced;
mod vectors;

pub use app::{App, Encoder, Limits, Model};
pub use auth::{BearerToken, EmptyToken};
pub use drain::Drain;
pub use hosts::Hosts;
pub use origins::{NoOrigin, Origin};
pub use server::serve;
