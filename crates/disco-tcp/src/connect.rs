//! Connections of a rank to all others: the higher rank of each pair connects to the lower one.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::{Error, Rank, Result, Store, attendance};
use disco_engine::rank_handshake::{MESSAGE_BYTES, RankHandshake};
use disco_engine::token::Token;
use rustix::net::sockopt;

use crate::alarm::Alarm;
use crate::contact::Contact;
use crate::hello::{HELLO_BYTES, Hello};
use crate::link::{Link, Plain, Sealed};

/// Limit of one attempt to reach an address, and of the handshake that follows.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
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
    let (rank, size, start) = (party.rank, party.size, Instant::now());
    let listener = listen()?;
    let own = Contact::of(&listener, party.encrypts)?.write();
    let contacts = attendance::all_gather(store, &party.name, (rank, size), &own, "connect", party.deadline)?;
    let contacts: Arc<[_]> = contacts.iter().map(|bytes| Contact::read(bytes)).collect::<Result<_>>()?;
    let (is_over, end) = (Arc::new(AtomicBool::new(false)), start + party.deadline);
    let (sender, receiver) = mpsc::channel();
    for (peer, contact) in contacts.iter().enumerate().take(rank) {
        let (contact, encrypts) = (contact.clone(), party.encrypts || contact.encrypts);
        let dial = Dial { party: party.clone(), peer, contact, encrypts, end, is_over: is_over.clone() };
        let sender = sender.clone();
        spawn("disco-tcp-dial", move || drop(sender.send((peer, dial.run()))))?;
    }
    let mut links: Links = (0..size).map(|_| None).collect();
    let joined = gather((party, &contacts), alarm, &listener, end, &mut links, (&sender, &receiver));
    is_over.store(true, Ordering::Relaxed);
    joined.map(|()| (links, contacts))
}

/// Accepts connections of higher ranks and collects those that threads have made, until there is one to each rank.
fn gather(
    (party, contacts): (&Arc<Party>, &Arc<[Contact]>),
    alarm: &Alarm,
    listener: &TcpListener,
    end: Instant,
    links: &mut Links,
    (sender, receiver): (&Sender<Made>, &mpsc::Receiver<Made>),
) -> Result<()> {
    let is_missing = |links: &Links, peer: usize| peer != party.rank && links[peer].is_none();
    while (0..party.size).any(|peer| is_missing(links, peer)) {
        alarm.check()?;
        match listener.accept() {
            Ok((stream, _)) => {
                let (party, contacts, sender) = (party.clone(), contacts.clone(), sender.clone());
                spawn("disco-tcp-admit", move || match admit(&party, &contacts, stream) {
                    Ok(made) => drop(sender.send(made)),
                    Err(error) => tracing::debug!(%error, "a connection was refused"),
                })?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(Error::system("connect: no connection can be accepted", error)),
        }
        // A rank that has not received the end of the handshake has connected again: its last connection counts.
        if let Ok((peer, made)) = receiver.recv_timeout(POLL_INTERVAL) {
            links[peer] = Some(made?);
        }
        if Instant::now() > end {
            let missing = (0..party.size).filter(|peer| is_missing(links, *peer));
            let missing: Vec<_> = missing.map(|peer| Rank::new(peer as u32)).collect();
            return Err(late(party, attendance::describe_missing(&missing)));
        }
    }
    Ok(())
}

fn late(party: &Party, state: String) -> Error {
    Error::Deadline { operation: "connect".into(), after: party.deadline, state }
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
    /// Whether nobody waits for the connection any more.
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
                return Err(late(&self.party, state));
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
        limit(&stream).map_err(failed)?;
        let (from, to) = (self.party.rank as u32, self.peer as u32);
        let hello = Hello { from, to, encrypts: self.encrypts }.to_bytes();
        let mut handshake = RankHandshake::connecting(&self.party.key, &self.party.prologue(&hello))?;
        let (message, mut answer) = ([&hello[..], &handshake.write()?].concat(), [0; MESSAGE_BYTES]);
        stream.write_all(&message).map_err(failed)?;
        stream.read_exact(&mut answer).map_err(failed)?;
        handshake.read(&answer)?;
        link(stream, handshake, self.encrypts)
    }
}

/// Answers the handshake of a connection. Returns the rank at the other end.
fn admit(party: &Party, contacts: &[Contact], mut stream: TcpStream) -> Result<Made> {
    let failed = |error| Error::system("no handshake", error);
    limit(&stream).map_err(failed)?;
    let (mut hello, mut message) = ([0; HELLO_BYTES], [0; MESSAGE_BYTES]);
    stream.read_exact(&mut hello).map_err(failed)?;
    let said = Hello::read(&hello, party.rank as u32)?;
    stream.read_exact(&mut message).map_err(failed)?;
    let mut handshake = RankHandshake::accepting(&party.key, &party.prologue(&hello))?;
    handshake.read(&message)?;
    let from = said.from as usize;
    let contact = contacts.get(from).filter(|_| from > party.rank);
    if contact.is_none_or(|contact| said.encrypts != (party.encrypts || contact.encrypts)) {
        return Err(Error::protocol(format!("{said:?} does not fit rank {} of {}", party.rank, party.size)));
    }
    stream.write_all(&handshake.write()?).map_err(failed)?;
    Ok((from, link(stream, handshake, said.encrypts)))
}

/// Limits each read and write of a handshake.
fn limit(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ATTEMPT_TIMEOUT))?;
    stream.set_write_timeout(Some(ATTEMPT_TIMEOUT))
}

impl Party {
    /// What both ends of a handshake must have in common, beside the key.
    fn prologue(&self, hello: &[u8]) -> Vec<u8> {
        [hello, self.name.as_bytes()].concat()
    }
}

/// The link over a stream whose handshake is complete.
fn link(stream: TcpStream, handshake: RankHandshake, encrypts: bool) -> Result<Box<dyn Link>> {
    let keys = handshake.keys()?;
    let prepare = || {
        stream.set_nonblocking(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        Ok(())
    };
    prepare().map_err(|error: io::Error| Error::system("a connection can't be prepared", error))?;
    Ok(if encrypts { Box::new(Sealed::new(stream, keys)) } else { Box::new(Plain::new(stream)) })
}
