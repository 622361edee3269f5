//! Bytes of a connection to a process or a node: whole packets, and large ones in parts.

#![no_main]

use std::sync::Arc;

use disco_channel::fuzzing;
use disco_core::Error;
use disco_core::wire::Message;

disco_fuzz::target!(check, seeds);

/// The largest packet that this connection accepts, in parts.
const MAX_BYTES: usize = 1 << 20;

fn check(bytes: &[u8]) -> Result<(), Error> {
    // The messages and the error do not depend on where the bytes are split.
    let whole = fuzzing::messages(MAX_BYTES, &[bytes]);
    let (start, end) = bytes.split_at(bytes.len() / 3);
    let cut = fuzzing::messages(MAX_BYTES, &[start, end]);
    assert_eq!(format!("{whole:?}"), format!("{cut:?}"));
    whole.map(drop)
}

fn seeds() -> Vec<Vec<u8>> {
    let small = Message::Bye("why".into()).encode().expect("a message");
    let large = Message::Bye("why".repeat(100)).encode().expect("a message");
    let mut parts = Vec::new();
    let mut left = large.len();
    for part in large.chunks(100) {
        left -= part.len();
        let bytes: Arc<[u8]> = part.into();
        parts.extend(Message::Part { left: left as u64, bytes }.encode().expect("a message"));
        parts.extend(&small);
    }
    vec![small, large, parts]
}
