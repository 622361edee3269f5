//! Tests of the crate as its users see it: packets, worker functions, and the compiler's messages.

mod diagnostics;
mod golden;
mod tvm;
mod wire;
mod worker;
