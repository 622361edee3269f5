//! Messages between processes: a decoded message can be encoded, and decodes to the same message.

#![no_main]

#[path = "../../../disco-core/tests/suite/messages.rs"]
mod messages;

use disco_core::wire::{Message, Packet, WireError};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), WireError> {
    let (message, _) = read(bytes)?;
    let written = message.encode().expect("a message that was read can be written");
    let (again, rest) = read(&written).expect("a message that was written can be read");
    assert!(rest.is_empty(), "{rest:?} after {again:?}");
    assert_eq!(again.encode().expect("it was written before"), written);
    Ok(())
}

fn read(bytes: &[u8]) -> Result<(Message, &[u8]), WireError> {
    let (packet, rest) = Packet::split(bytes)?;
    Ok((Message::decode(packet)?, rest))
}

fn seeds() -> Vec<Vec<u8>> {
    let mut messages = messages::messages();
    messages.extend(disco_fuzz::values().into_iter().map(|value| Message::Reply { seq: 4, reply: Ok(value) }));
    messages.iter().map(|message| message.encode().expect("a message of a seed can be written")).collect()
}
