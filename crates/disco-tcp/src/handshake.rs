//! The handshake of a connection: both ends prove the key of the communicator, and the higher rank chooses one connection.
//!
//! ```text
//! rank that connects   HELLO, Noise message 1  ──▶                                69 bytes
//!                                              ◀──  Noise message 2, ACCEPTED     67 bytes   rank that accepts
//!                      PROOF                   ──▶                                19 bytes
//! higher rank          CHOSEN                  ──▶                                19 bytes   lower rank
//! ```
//!
//! ACCEPTED, PROOF and CHOSEN are [encrypted records](disco_engine::noise) of one byte. ACCEPTED says whether the bytes after the
//! handshake go through [shared memory](crate::neighbours). Until PROOF, the messages of the rank that
//! connects may be copies of earlier ones. Each rank of a pair may connect to the other one, at several addresses; the higher
//! rank sends CHOSEN on the first of these connections and closes the others, so both ranks have the same connection.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use disco_core::{Error, Result};
use disco_engine::noise::{Opener, Sealer};
use disco_engine::rank_handshake::{MESSAGE_BYTES, RankHandshake};
use rustix::net::sockopt;

use crate::contact::Contact;
use crate::hello::{HELLO_BYTES, Hello};
use crate::link::{Link, Plain, Sealed, Shared};
use crate::neighbours::Neighbours;
use crate::party::Party;
use crate::ring::Rings;

/// Limit of the handshake, up to PROOF.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const PROOF: u8 = 1;
const CHOSEN: u8 = 2;
const ACCEPTED: u8 = 3;
const ACCEPTED_SHARED: u8 = 4;
/// Bytes of a record: a length, one byte and a tag.
const RECORD_BYTES: usize = 2 + 1 + 16;
/// The system probes a connection without traffic after this time, and then at this interval.
const KEEPALIVE: Duration = Duration::from_secs(1);
/// Probes without an answer after which a connection has failed.
const KEEPALIVE_PROBES: u32 = 2;

/// A connection both ends of which have proved the key.
pub(crate) struct Proved {
    /// The rank at the other end.
    pub(crate) peer: usize,
    encrypts: bool,
    rings: Option<Rings>,
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
}

/// Makes the handshake of a connection that this rank has made to `peer`, before `end`.
///
/// # Errors
/// The other end is another rank, or has another key; the connection fails.
pub(crate) fn lead(
    party: &Party,
    neighbours: &Neighbours,
    contacts: &[Contact],
    peer: usize,
    mut stream: TcpStream,
    end: Instant,
) -> Result<Proved> {
    let end = end.min(Instant::now() + HANDSHAKE_TIMEOUT);
    prepare(&stream).map_err(failed)?;
    let contact = contact(contacts, peer)?;
    let (encrypts, rings) = (party.encrypts(peer, contact), neighbours.rings(peer, contact));
    let hello = Hello { from: party.rank as u32, to: peer as u32, encrypts, shares: rings.is_some() }.to_bytes();
    let mut handshake = RankHandshake::connecting(&party.key, &prologue(party, &hello))?;
    let (message, mut answer) = ([&hello[..], &handshake.write()?].concat(), [0; MESSAGE_BYTES]);
    stream.write_all(&message).map_err(failed)?;
    read_until(&mut stream, &mut answer, end).map_err(failed)?;
    handshake.read(&answer)?;
    let keys = handshake.keys()?;
    let (sealer, opener) = (Sealer::new(keys.clone()), Opener::new(keys));
    let mut proved = Proved { peer, encrypts, rings, stream, sealer, opener };
    match proved.read(end)? {
        ACCEPTED => proved.rings = None,
        ACCEPTED_SHARED if proved.rings.is_some() => {}
        _ => return Err(strange()),
    }
    proved.write(PROOF)?;
    Ok(proved)
}

/// Makes the handshake of a connection that this rank has accepted.
///
/// # Errors
/// The other end is no other rank, or has another key; the connection fails.
pub(crate) fn follow(
    party: &Party,
    neighbours: &Neighbours,
    contacts: &[Contact],
    mut stream: TcpStream,
) -> Result<Proved> {
    let end = Instant::now() + HANDSHAKE_TIMEOUT;
    prepare(&stream).map_err(failed)?;
    let (mut hello, mut message) = ([0; HELLO_BYTES], [0; MESSAGE_BYTES]);
    read_until(&mut stream, &mut hello, end).map_err(failed)?;
    let said = Hello::read(&hello, party.rank as u32)?;
    read_until(&mut stream, &mut message, end).map_err(failed)?;
    let mut handshake = RankHandshake::accepting(&party.key, &prologue(party, &hello))?;
    handshake.read(&message)?;
    let peer = said.from as usize;
    let contact = contact(contacts, peer)?;
    if peer == party.rank || said.encrypts != party.encrypts(peer, contact) {
        return Err(Error::protocol(format!("{said:?} does not fit rank {} of {}", party.rank, party.size)));
    }
    stream.write_all(&handshake.write()?).map_err(failed)?;
    let keys = handshake.keys()?;
    let (sealer, opener) = (Sealer::new(keys.clone()), Opener::new(keys));
    let rings = if said.shares { neighbours.rings(peer, contact) } else { None };
    let accepted = if rings.is_some() { ACCEPTED_SHARED } else { ACCEPTED };
    let mut proved = Proved { peer, encrypts: said.encrypts, rings, stream, sealer, opener };
    proved.write(accepted)?;
    proved.expect(PROOF, end)?;
    Ok(proved)
}

impl Proved {
    /// Tells the lower rank that this is the connection of the two.
    ///
    /// # Errors
    /// The connection has failed.
    pub(crate) fn choose(mut self) -> Result<Box<dyn Link>> {
        self.write(CHOSEN)?;
        self.into_link()
    }

    /// Waits until the higher rank chooses this connection.
    ///
    /// # Errors
    /// The other rank has closed it, as it does if it has another one; `end` has passed.
    pub(crate) fn wait_until_chosen(mut self, end: Instant) -> Result<Box<dyn Link>> {
        self.expect(CHOSEN, end)?;
        self.into_link()
    }

    fn write(&mut self, content: u8) -> Result<()> {
        let mut record = Vec::new();
        self.sealer.seal([&[content][..]].into_iter(), &mut record)?;
        self.stream.write_all(&record).map_err(failed)
    }

    fn read(&mut self, end: Instant) -> Result<u8> {
        let (mut record, mut content) = ([0; RECORD_BYTES], [0]);
        read_until(&mut self.stream, &mut record, end).map_err(failed)?;
        self.opener.fill(|buffer| {
            buffer[..RECORD_BYTES].copy_from_slice(&record);
            Ok::<_, Error>(RECORD_BYTES)
        })?;
        if self.opener.open(&mut content)? == Some(1) { Ok(content[0]) } else { Err(strange()) }
    }

    fn expect(&mut self, expected: u8, end: Instant) -> Result<()> {
        if self.read(end)? == expected { Ok(()) } else { Err(strange()) }
    }

    fn into_link(self) -> Result<Box<dyn Link>> {
        let Self { peer, encrypts, rings, stream, sealer, opener } = self;
        let prepare = || {
            stream.set_nonblocking(true)?;
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
            sockopt::set_tcp_keepintvl(&stream, KEEPALIVE)?;
            sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
            // Few packets are sent again at the same interval, not at longer and longer ones: they arrive soon after an outage.
            sockopt::set_tcp_thin_linear_timeouts(&stream, true)?;
            Ok(())
        };
        prepare().map_err(failed)?;
        tracing::debug!(peer, address = ?stream.peer_addr().ok(), encrypts, shares = rings.is_some(), "connected");
        Ok(match rings {
            Some(rings) => Box::new(Shared::new(stream, rings)),
            None if encrypts => Box::new(Sealed::new(stream, sealer, opener)),
            None => Box::new(Plain::new(stream)),
        })
    }
}

fn contact(contacts: &[Contact], peer: usize) -> Result<&Contact> {
    contacts.get(peer).ok_or_else(|| Error::protocol(format!("rank {peer} of {} ranks does not exist", contacts.len())))
}

fn strange() -> Error {
    Error::protocol("the other end does not follow the handshake")
}

fn failed(error: io::Error) -> Error {
    Error::system("no handshake", error)
}

/// What both ends of a handshake must have in common, beside the key.
fn prologue(party: &Party, hello: &[u8]) -> Vec<u8> {
    [hello, party.name.as_bytes()].concat()
}

/// Makes each read of a handshake wait, and each write for a limited time.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))
}

/// Reads all of `into` before `end`.
fn read_until(stream: &mut TcpStream, into: &mut [u8], end: Instant) -> io::Result<()> {
    let mut read = 0;
    while read < into.len() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut into[read..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
