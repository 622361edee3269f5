//! Connections of a rank to all others: the higher rank of each pair connects to the lower one.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::{Error, Rank, Result, Store, attendance};
use disco_engine::noise::{Opener, Sealer};
use disco_engine::rank_handshake::{MESSAGE_BYTES, RankHandshake};
use disco_engine::token::Token;
use rustix::net::sockopt;

use crate::alarm::Alarm;
use crate::contact::Contact;
use crate::hello::{HELLO_BYTES, Hello};
use crate::link::{Link, Plain, Sealed};

/// Limit of one attempt to reach an address, and of the handshake that follows, each.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long before the deadline the attempts end, so that the error has the addresses that were tried.
const REPORT_TIME: Duration = Duration::from_millis(200);
/// Handshakes at a time, beyond one for each rank.
const MORE_HANDSHAKES: usize = 16;
/// The last message of a handshake: the rank that connects has read the answer.
const CONFIRMATION: [u8; 1] = [1];
/// Bytes of the record that has it: a length, the message and a tag.
const CONFIRMATION_BYTES: usize = 2 + CONFIRMATION.len() + 16;
/// Interval at which a rank that waits for the addresses of others looks for an abort: longer than a round trip to the store,
/// after which the wait has its answer.
const STORE_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after an attempt at all addresses of a rank.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Interval at which a rank that connects looks for new connections and for an abort.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The system probes a connection without traffic after this time, and then at this interval.
const KEEPALIVE: Duration = Duration::from_secs(1);
/// Probes without an answer after which a connection has failed.
const KEEPALIVE_PROBES: u32 = 2;

/// The ranks that connect.
#[derive(Debug)]
pub(crate) struct Party {
    /// Begins the keys of the communicator in the session's store.
    pub(crate) name: String,
    /// Both ends of a connection prove that they have it.
    pub(crate) key: Token,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Whether the rank asks for encrypted connections. A connection is encrypted if one of its ends asks for it.
    pub(crate) encrypts: bool,
    /// Limit of the wait for all ranks.
    pub(crate) deadline: Duration,
}

/// The connections of a rank, by rank; none to itself.
pub(crate) type Links = Vec<Option<Box<dyn Link>>>;

/// A connection that a thread has made, or the reason why it has made none until the deadline.
type Made = (usize, Result<Box<dyn Link>>);

/// Connects a rank to all others.
///
/// # Errors
/// [`Error::Deadline`] with the ranks that have not arrived, or with the addresses that were tried; [`Error::Aborted`];
/// errors of the store.
pub(crate) fn connect(party: &Arc<Party>, store: &dyn Store, alarm: &Alarm) -> Result<(Links, Arc<[Contact]>)> {
    let end = Instant::now() + party.deadline;
    let listener = listen()?;
    let contacts = contacts(party, store, alarm, &Contact::of(&listener, party.encrypts)?, end)?;
    let is_over = IsOver(Arc::new(AtomicBool::new(false)));
    let (sender, receiver) = mpsc::channel();
    for (peer, contact) in contacts.iter().enumerate().take(party.rank) {
        let (contact, encrypts) = (contact.clone(), party.encrypts || contact.encrypts);
        let (party, is_over, end) = (party.clone(), is_over.0.clone(), end - REPORT_TIME.min(party.deadline / 4));
        let dial = Dial { party, peer, contact, encrypts, end, is_over };
        let sender = sender.clone();
        spawn("disco-tcp-dial", move || drop(sender.send((peer, dial.run()))))?;
    }
    let mut gathering = Gathering {
        party,
        contacts: &contacts,
        links: (0..party.size).map(|_| None).collect(),
        sender,
        receiver,
        handshakes: Arc::default(),
    };
    gathering.run(alarm, &listener, end)?;
    // All ranks have read it: those above have connected to this one, and those below have answered.
    store.delete(&party.contact_key(party.rank))?;
    Ok((gathering.links, contacts))
}

/// Writes this rank's contact to the store and reads those of the others.
fn contacts(party: &Party, store: &dyn Store, alarm: &Alarm, own: &Contact, end: Instant) -> Result<Arc<[Contact]>> {
    store.set(&party.contact_key(party.rank), &own.write())?;
    let wait = |peer: usize| loop {
        alarm.check()?;
        let left = end.saturating_duration_since(Instant::now());
        match store.wait(&party.contact_key(peer), left.min(STORE_INTERVAL)) {
            Ok(bytes) => return Contact::read(&bytes),
            Err(Error::Deadline { .. }) if left > STORE_INTERVAL => {}
            Err(Error::Deadline { .. }) => {
                let is_missing = |rank: &usize| matches!(store.get(&party.contact_key(*rank)), Ok(None));
                return Err(party.late(attendance::describe_missing(&ranks((peer..party.size).filter(is_missing)))));
            }
            Err(error) => return Err(error),
        }
    };
    (0..party.size).map(wait).collect()
}

fn ranks(numbers: impl Iterator<Item = usize>) -> Vec<Rank> {
    numbers.map(|rank| Rank::new(rank as u32)).collect()
}

/// Ends the attempts of other threads when it is dropped.
struct IsOver(Arc<AtomicBool>);

impl Drop for IsOver {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The connections that a rank has so far.
struct Gathering<'a> {
    party: &'a Arc<Party>,
    contacts: &'a Arc<[Contact]>,
    links: Links,
    /// Threads send the connections that they have made.
    sender: Sender<Made>,
    receiver: Receiver<Made>,
    /// Handshakes that threads answer.
    handshakes: Arc<AtomicUsize>,
}

impl Gathering<'_> {
    /// Accepts the connections of higher ranks and collects the connections that threads have made, until each rank has one.
    fn run(&mut self, alarm: &Alarm, listener: &TcpListener, end: Instant) -> Result<()> {
        while (0..self.party.size).any(|peer| self.is_missing(peer)) {
            alarm.check()?;
            // Other errors than that of no connection are those of a connection that has failed, or pass.
            if let Ok((stream, _)) = listener.accept() {
                self.answer(stream);
            }
            if let Ok((peer, made)) = self.receiver.recv_timeout(POLL_INTERVAL) {
                let made = made?;
                if self.is_missing(peer) {
                    self.links[peer] = Some(made);
                }
            }
            if Instant::now() > end {
                let missing = ranks((0..self.party.size).filter(|peer| self.is_missing(*peer)));
                let names: Vec<_> = missing.iter().map(Rank::to_string).collect();
                return Err(self.party.late(format!("no connection from {}", names.join(", "))));
            }
        }
        Ok(())
    }

    fn is_missing(&self, peer: usize) -> bool {
        peer != self.party.rank && self.links[peer].is_none()
    }

    /// Answers the handshake of a connection on a thread, unless too many others do.
    fn answer(&self, stream: TcpStream) {
        let (party, contacts, sender) = (self.party.clone(), self.contacts.clone(), self.sender.clone());
        let handshakes = self.handshakes.clone();
        if handshakes.fetch_add(1, Ordering::Relaxed) >= self.party.size + MORE_HANDSHAKES {
            handshakes.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let run = move || {
            match admit(&party, &contacts, stream) {
                Ok(made) => drop(sender.send(made)),
                Err(error) => tracing::debug!(%error, "a connection was refused"),
            }
            handshakes.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = spawn("disco-tcp-admit", run) {
            tracing::debug!(%error, "a connection was refused");
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = thread::Builder::new().name(name.into()).spawn(run);
    spawned.map(drop).map_err(|error| Error::system("connect: no thread can be started", error))
}

/// A listener at all interfaces, for IPv4 and IPv6 where the machine has both.
fn listen() -> Result<TcpListener> {
    let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
    let listener = listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(|error| Error::system("connect: no socket can listen", error))
}

/// The connection of a rank to a lower one.
struct Dial {
    party: Arc<Party>,
    peer: usize,
    contact: Contact,
    encrypts: bool,
    end: Instant,
    /// Set once the rank has all connections, or has failed.
    is_over: Arc<AtomicBool>,
}

impl Dial {
    /// Tries all addresses until one leads to the rank.
    fn run(&self) -> Result<Box<dyn Link>> {
        loop {
            let mut tried = Vec::new();
            for address in &self.contact.addresses {
                match self.attempt(*address) {
                    Ok(link) => return Ok(link),
                    Err(error) => tried.push(format!("{address}: {error}")),
                }
                if self.is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
            if self.is_over.load(Ordering::Relaxed) || Instant::now() + RETRY_DELAY > self.end {
                let (from, to) = (self.party.rank, self.peer);
                let (host, tried) = (&self.contact.host, tried.join(", "));
                let state = format!("rank {from} can't reach rank {to} on {host}; tried {tried}");
                return Err(self.party.late(state));
            }
            thread::sleep(RETRY_DELAY);
        }
    }

    fn attempt(&self, address: SocketAddr) -> Result<Box<dyn Link>> {
        let left = self.end.saturating_duration_since(Instant::now()).min(ATTEMPT_TIMEOUT);
        if left.is_zero() {
            return Err(Error::state("no time is left"));
        }
        let failed = |error| Error::system("no connection", error);
        let mut stream = TcpStream::connect_timeout(&address, left).map_err(failed)?;
        let end = self.end.min(Instant::now() + ATTEMPT_TIMEOUT);
        prepare(&stream).map_err(failed)?;
        let (from, to) = (self.party.rank as u32, self.peer as u32);
        let hello = Hello { from, to, encrypts: self.encrypts }.to_bytes();
        let mut handshake = RankHandshake::connecting(&self.party.key, &self.party.prologue(&hello))?;
        let (message, mut answer) = ([&hello[..], &handshake.write()?].concat(), [0; MESSAGE_BYTES]);
        stream.write_all(&message).map_err(failed)?;
        read_until(&mut stream, &mut answer, end).map_err(failed)?;
        handshake.read(&answer)?;
        let keys = handshake.keys()?;
        let (mut sealer, opener) = (Sealer::new(keys.clone()), Opener::new(keys));
        let mut record = Vec::new();
        sealer.seal([&CONFIRMATION[..]].into_iter(), &mut record)?;
        stream.write_all(&record).map_err(failed)?;
        link(stream, self.encrypts.then_some((sealer, opener)))
    }
}

/// Answers the handshake of a connection. Returns the rank at the other end, once it has confirmed the answer: until then,
/// its messages may be copies of earlier ones.
fn admit(party: &Party, contacts: &[Contact], mut stream: TcpStream) -> Result<Made> {
    let failed = |error| Error::system("no handshake", error);
    let end = Instant::now() + ATTEMPT_TIMEOUT;
    prepare(&stream).map_err(failed)?;
    let (mut hello, mut message) = ([0; HELLO_BYTES], [0; MESSAGE_BYTES]);
    read_until(&mut stream, &mut hello, end).map_err(failed)?;
    let said = Hello::read(&hello, party.rank as u32)?;
    read_until(&mut stream, &mut message, end).map_err(failed)?;
    let mut handshake = RankHandshake::accepting(&party.key, &party.prologue(&hello))?;
    handshake.read(&message)?;
    let from = said.from as usize;
    let contact = contacts.get(from).filter(|_| from > party.rank);
    if contact.is_none_or(|contact| said.encrypts != (party.encrypts || contact.encrypts)) {
        return Err(Error::protocol(format!("{said:?} does not fit rank {} of {}", party.rank, party.size)));
    }
    stream.write_all(&handshake.write()?).map_err(failed)?;
    let keys = handshake.keys()?;
    let (sealer, mut opener) = (Sealer::new(keys.clone()), Opener::new(keys));
    let (mut record, mut confirmation) = ([0; CONFIRMATION_BYTES], [0; CONFIRMATION.len()]);
    read_until(&mut stream, &mut record, end).map_err(failed)?;
    opener.fill(|buffer| {
        buffer[..CONFIRMATION_BYTES].copy_from_slice(&record);
        Ok::<_, Error>(CONFIRMATION_BYTES)
    })?;
    if opener.open(&mut confirmation)? != Some(CONFIRMATION.len()) || confirmation != CONFIRMATION {
        return Err(Error::protocol("the other end has not confirmed the handshake"));
    }
    Ok((from, link(stream, said.encrypts.then_some((sealer, opener)))))
}

/// Makes each read of a handshake wait, and each write for a limited time.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(ATTEMPT_TIMEOUT))
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

impl Party {
    /// The key in the store of a rank's contact.
    fn contact_key(&self, rank: usize) -> String {
        format!("{}: contact of rank {rank}", self.name)
    }

    fn late(&self, state: String) -> Error {
        Error::Deadline { operation: "connect".into(), after: self.deadline, state }
    }

    /// What both ends of a handshake must have in common, beside the key.
    fn prologue(&self, hello: &[u8]) -> Vec<u8> {
        [hello, self.name.as_bytes()].concat()
    }
}

/// The link over a stream whose handshake is complete; encrypted with a sealer and an opener.
fn link(stream: TcpStream, encryption: Option<(Sealer, Opener)>) -> Result<Box<dyn Link>> {
    let prepare = || {
        stream.set_nonblocking(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        Ok(())
    };
    prepare().map_err(|error: io::Error| Error::system("a connection can't be prepared", error))?;
    Ok(match encryption {
        Some((sealer, opener)) => Box::new(Sealed::new(stream, sealer, opener)),
        None => Box::new(Plain::new(stream)),
    })
}
