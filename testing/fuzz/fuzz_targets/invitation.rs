//! A worker's invitation, from its environment or a launcher: the text of a parsed invitation parses to the same one.

#![no_main]

use disco_channel::processes::Invitation;
use disco_core::Error;

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), Error> {
    let text = std::str::from_utf8(bytes).map_err(|_| Error::invalid("not UTF-8"))?;
    let invitation = Invitation::parse(text)?;
    let written = invitation.text();
    assert!(written.len() <= text.len(), "{written} from {text}");
    assert!(Invitation::parse(&written).expect("a text that was written can be read") == invitation);
    Ok(())
}

fn seeds() -> Vec<Vec<u8>> {
    ["3:disco-1f:00ff10", "0::", "4294967295:disco:00"].map(|text| text.as_bytes().to_vec()).to_vec()
}
