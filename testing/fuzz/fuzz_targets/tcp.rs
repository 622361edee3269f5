//! What a rank of the backend `tcp` reads from others: contacts, the first bytes of a connection, and blocks with heads of messages.

#![no_main]

use disco_core::Error;
use disco_tcp::fuzzing;

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), Error> {
    let (which, bytes) = bytes.split_first().ok_or_else(|| Error::invalid("too short"))?;
    match which % 3 {
        0 => {
            let written = fuzzing::contact(bytes)?;
            let again = fuzzing::contact(&written).expect("a contact that was written can be read");
            assert_eq!(again, written);
            Ok(())
        }
        1 => fuzzing::opening(bytes),
        _ => {
            // The heads and the error do not depend on where the bytes are split.
            let whole = fuzzing::heads(&[bytes]);
            let (start, end) = bytes.split_at(bytes.len() / 3);
            assert_eq!(format!("{whole:?}"), format!("{:?}", fuzzing::heads(&[start, end])));
            whole.map(drop)
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let contact = fuzzing::contact_bytes(&["192.0.2.1:4000", "[fd00::1]:4001"]).expect("a contact");
    let opening = fuzzing::opening_bytes().expect("a handshake");
    let heads = fuzzing::head_bytes().expect("heads");
    [contact, opening, heads]
        .into_iter()
        .enumerate()
        .map(|(which, bytes)| [&[which as u8], &bytes[..]].concat())
        .collect()
}
