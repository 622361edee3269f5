//! Tests of the backend `tcp` that other backends don't share.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod errors;
mod placements;
mod ranks;
