//! From requests to tokens: which sequences take part in each step of the model.

pub mod blocks;
mod encode;
mod pace;
pub mod prefix;
mod request;
mod run;
pub mod schedule;
mod sequence;
mod workers;

pub use encode::{Batch, Encoders, encoders, run_encoder};
pub use request::{
    EVENTS_AHEAD, End, Event, Failure, Inbox, Refused, Request, Requests, Running, Submitted, Token, channel,
};
pub use run::{Options, run};
pub use workers::{ENCODE, Placement, Read, STEP};
