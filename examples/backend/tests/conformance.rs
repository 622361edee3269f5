//! Disco's conformance suite over the backend `mailbox`: `cargo test --test conformance`, or with a part of a test's
//! name behind it.

use std::process::ExitCode;

use disco_conformance::{Runner, ThreadSessions};
// A crate that no code mentions is not linked, and its backend is not registered.
use disco_mailbox as _;

fn main() -> ExitCode {
    Runner::new().backend(ThreadSessions::of("mailbox").detecting_dropped_peers()).main()
}
