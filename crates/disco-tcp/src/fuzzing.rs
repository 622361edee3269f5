//! Entry points for fuzz targets: what a rank reads from others before and after a connection is authenticated.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use disco_core::{Error, Result};
use disco_engine::rank_handshake::{MESSAGE_BYTES, RankHandshake};
use disco_engine::token::Token;

use crate::contact::Contact;
use crate::head::{HEAD_BYTES, Head, Kind};
use crate::hello::{HELLO_BYTES, Hello};
use crate::link::{Link as _, Plain};

/// Reads a contact and writes it again.
///
/// # Errors
/// The bytes are no contact.
pub fn contact(bytes: &[u8]) -> Result<Vec<u8>> {
    Contact::read(bytes).map(|contact| contact.write())
}

/// A contact.
///
/// # Errors
/// An address is none.
pub fn contact_bytes(addresses: &[&str]) -> Result<Vec<u8>> {
    let parse = |text: &&str| text.parse().map_err(|_| Error::invalid("no address"));
    let addresses = addresses.iter().map(parse).collect::<Result<_>>()?;
    Ok(Contact { host: "a machine".into(), addresses, encrypts: true, memory: None }.write())
}

fn key() -> Result<Token> {
    Token::new("a secret of many words")
}

/// Reads what a rank sends first to rank 0.
///
/// # Errors
/// The bytes are not those of a rank with the key.
pub fn opening(bytes: &[u8]) -> Result<()> {
    let short = || Error::protocol("too short");
    let (hello, rest) = bytes.split_first_chunk::<HELLO_BYTES>().ok_or_else(short)?;
    let message = rest.first_chunk::<MESSAGE_BYTES>().ok_or_else(short)?;
    Hello::read(hello, 0)?;
    RankHandshake::accepting(&key()?, hello)?.read(message)
}

/// What rank 1 sends first to rank 0.
///
/// # Errors
/// The system gives no random numbers.
pub fn opening_bytes() -> Result<Vec<u8>> {
    let hello = Hello { from: 1, to: 0, encrypts: true, shares: false }.to_bytes();
    let message = RankHandshake::connecting(&key()?, &hello)?.write()?;
    Ok([&hello[..], &message].concat())
}

fn pair() -> Result<(Plain, UnixStream)> {
    let failed = |error| Error::system("a pair of sockets", error);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    Ok((Plain::new(TcpStream::from(OwnedFd::from(ours))), theirs))
}

/// Reads the heads of messages without content that come over a connection in clear, in these chunks. Returns them as written
/// again.
///
/// # Errors
/// A checksum is wrong, or the content is no head.
pub fn heads(chunks: &[&[u8]]) -> Result<Vec<u8>> {
    let (mut link, mut sender) = pair()?;
    let failed = |error| Error::system("a connection in clear", error);
    let (mut all, mut head, mut count) = (Vec::new(), [0; HEAD_BYTES], 0);
    for chunk in chunks {
        sender.write_all(chunk).map_err(failed)?;
        loop {
            match link.receive(&mut head[count..]).map_err(failed)? {
                0 => break,
                received => count += received,
            }
            if count == HEAD_BYTES {
                all.extend(Head::read(&head)?.to_bytes());
                count = 0;
            }
        }
    }
    Ok(all)
}

/// The bytes of some heads on a connection in clear.
///
/// # Errors
/// The system has no socket.
pub fn head_bytes() -> Result<Vec<u8>> {
    let (mut link, mut receiver) = pair()?;
    let failed = |error| Error::system("a connection in clear", error);
    let send = Head { kind: Kind::Send, call: 9, number: 1 << 40, content: 1 << 30 }.to_bytes();
    let bare = |kind| Head { kind, call: 0, number: 0, content: 0 }.to_bytes();
    link.send([&bare(Kind::Probe), &send]).map_err(failed)?;
    link.send([&bare(Kind::Goodbye), &[]]).map_err(failed)?;
    link.close();
    let mut bytes = Vec::new();
    receiver.read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
