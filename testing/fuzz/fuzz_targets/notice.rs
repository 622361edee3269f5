//! Notices of workers: a decoded notice can be encoded, and decodes to the same notice.

#![no_main]

use std::sync::Arc;

use disco_core::channel::Notice;
use disco_core::wire::{Packet, WireError, decode_notice, encode_notice};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), WireError> {
    let notice = read(bytes)?;
    let written = encode_notice(&notice).expect("a notice that was read can be written");
    let again = read(&written).expect("a notice that was written can be read");
    assert_eq!(encode_notice(&again).expect("it was written before"), written);
    drop(notice.to_string());
    Ok(())
}

fn read(bytes: &[u8]) -> Result<Notice, WireError> {
    Packet::split(bytes).and_then(|(packet, _)| decode_notice(packet))
}

fn seeds() -> Vec<Vec<u8>> {
    let failure = Arc::new(disco_fuzz::failure());
    let notices = [
        Notice::Failed { epoch: 2, failure: failure.clone() },
        Notice::Result { command: 3, number: 4, value: [1, 2, 3].into() },
        Notice::ResultsEnd { command: 3, count: 4, outcome: Err(failure) },
    ];
    let written = notices.iter().map(|notice| encode_notice(notice).expect("a notice of a seed can be written"));
    written.collect()
}
