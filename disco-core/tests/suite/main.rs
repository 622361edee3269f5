//! Tests of the crate as its users see it: packets, worker functions, and the compiler's messages.

#![allow(clippy::disallowed_methods, reason = "tests compare texts")]

mod diagnostics;
mod golden;
mod messages;
mod tvm;
mod wire;
mod worker;
