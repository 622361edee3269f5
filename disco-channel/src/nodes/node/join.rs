//! Joining: again and again, until the controller is there.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::error::{Loss, LossCause, LostPeer};
use disco_core::wire::{Assignment, Join, Message};
use disco_core::{Error, Result, World, function};

use crate::engine::limits::PACKET;
use crate::engine::member::joining::Joining;
use crate::engine::member::serving::lost;
use crate::handshake::{GREETING, Guest, HANDSHAKE, Request, VERDICT, may_begin};
use crate::nodes;
use crate::random;
use crate::reactor::member as driver;
use crate::reactor::{Connection, Incoming, Waker};
use crate::token::Token;

/// How long to wait before the second attempt, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long the first attempt may take at least, and each of several addresses unless time is up.
const SHARE: Duration = Duration::from_millis(500);
/// How long the last attempt may take at least.
const LEAST: Duration = Duration::from_millis(50);
/// How long one attempt may take at most.
const MOST: Duration = Duration::from_secs(3600);

/// How a node joins.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// Where the controller listens: `HOST:PORT`, or several of these, parted by commas, of which one will do.
    pub address: String,
    /// The session's token.
    pub token: Token,
    /// Which node this is; else the controller says.
    pub node: Option<u32>,
    /// How many workers it has; else the controller says.
    pub per_node: Option<u32>,
    /// How long the controller may take to be there. Refusals that are not authenticated are retried until then.
    pub start: Duration,
    /// A folder for files with what each worker prints, where workers are processes of the node.
    pub log_dir: Option<PathBuf>,
    /// Takes what is waited for, to be shown.
    pub say: fn(&str),
}

impl JoinOptions {
    /// To a controller at this address, as whatever node it says, within 30 s; says nothing.
    pub fn new(address: impl Into<String>, token: Token) -> Self {
        let start = Duration::from_secs(30);
        Self { address: address.into(), token, node: None, per_node: None, start, log_dir: None, say: |_| {} }
    }
}

/// A node that the controller has taken.
pub(super) struct Joined {
    pub(super) connection: Arc<Connection>,
    pub(super) incoming: Incoming,
    pub(super) assignment: Assignment,
}

/// Why an attempt to join failed.
enum Failed {
    /// The next one may not.
    ForNow(String),
    /// Whoever listens there refuses, and has not proved that it is the controller: the next one may not.
    Refused(String),
    ForGood(Error),
}

/// Joins, and waits for the assignment, which comes when all nodes have joined.
pub(super) fn join(options: &JoinOptions, waker: &Arc<Waker>) -> Result<Joined> {
    let (start, mut pause, mut told, mut refused) = (Instant::now(), PAUSE.0, String::new(), None);
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    loop {
        let least = if told.is_empty() { SHARE } else { LEAST };
        let end = Instant::now() + options.start.saturating_sub(start.elapsed()).clamp(least, MOST);
        let why = match attempt(options, end, waker, &name) {
            Ok(joined) => return Ok(joined),
            Err(Failed::ForGood(error)) => return Err(error),
            Err(Failed::ForNow(why)) => why,
            Err(Failed::Refused(why)) => refused.insert(why).clone(),
        };
        let left = options.start.saturating_sub(start.elapsed());
        if left <= LEAST {
            let operation = format!("joining the controller at {}", options.address);
            let state = match refused {
                Some(refused) if refused != why => format!("{why}; an attempt before: {refused}"),
                _ => why,
            };
            return Err(Error::Deadline { operation, after: options.start, state });
        }
        if told != why {
            (options.say)(&format!("waiting for the controller at {}, {left:.0?} more: {why}", options.address));
            told = why;
        }
        thread::sleep(pause.min(left - LEAST));
        pause = (2 * pause).min(PAUSE.1);
    }
}

fn attempt(options: &JoinOptions, end: Instant, waker: &Arc<Waker>, name: &str) -> Result<Joined, Failed> {
    let (stream, world) = enter(options, end)?;
    let for_now = |error: io::Error| Failed::ForNow(error.to_string());
    let connection = Arc::new(nodes::connection(stream, waker.clone()).map_err(for_now)?);
    let functions = function::names().into_iter().map(str::to_owned).collect();
    let mut incoming = Incoming::new(PACKET);
    let join = Join { name: name.to_owned(), functions };
    let assignment = assigned(options, join, &connection, &mut incoming, waker)?;
    if assignment.config.world != world {
        return Err(Failed::ForGood(lost(LossCause::Garbage(
            "it assigns a part of another world than it has proved".into(),
        ))));
    }
    Ok(Joined { connection, incoming, assignment })
}

/// Connects to one of the addresses, whose other end has the token. Of several, each has a share of the time, and what others
/// listen to is passed over.
fn enter(options: &JoinOptions, end: Instant) -> Result<(TcpStream, World), Failed> {
    let addresses: Vec<&str> = options.address.split(',').collect();
    let [_, _, ..] = addresses[..] else { return enter_at(&options.address, options, end) };
    let share = (HANDSHAKE / addresses.len() as u32).max(SHARE);
    let (mut reasons, mut is_refused) = (Vec::new(), false);
    for address in addresses {
        let why = match enter_at(address, options, end.min(Instant::now() + share)) {
            Ok(entered) => return Ok(entered),
            Err(Failed::ForNow(why)) => why,
            Err(Failed::Refused(why)) => {
                is_refused = true;
                why
            }
            Err(Failed::ForGood(error)) => error.to_string(),
        };
        reasons.push(format!("{address}: {why}"));
    }
    let why = reasons.join("; ");
    Err(if is_refused { Failed::Refused(why) } else { Failed::ForNow(why) })
}

fn enter_at(address: &str, options: &JoinOptions, end: Instant) -> Result<(TcpStream, World), Failed> {
    let mut stream = connect(address, end).map_err(Failed::ForNow)?;
    let world = prove(options, &mut stream, end)?;
    Ok((stream, world))
}

/// Connects to any of the addresses that a name has.
fn connect(address: &str, end: Instant) -> Result<TcpStream, String> {
    let addresses = resolve(address, left(end))?;
    let mut why = format!("`{address}` has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, left(end).min(HANDSHAKE)) {
            Ok(stream) => return Ok(stream),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

/// What is left until then; not nothing, which would be no limit to the system.
fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// The addresses of a name: the system's resolver knows no deadline, and is left behind at ours.
fn resolve(address: &str, limit: Duration) -> Result<Vec<SocketAddr>, String> {
    // No name, for which there is no need to wait.
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let (tell, told) = mpsc::channel();
    let name = address.to_owned();
    let resolver = thread::Builder::new().name("disco-resolver".into());
    let started = resolver.spawn(move || tell.send(name.to_socket_addrs().map(Iterator::collect)));
    started.map_err(|error| error.to_string())?;
    match told.recv_timeout(limit) {
        Ok(addresses) => addresses.map_err(|error| format!("its name does not resolve: {error}")),
        Err(_) => Err("its name does not resolve in time".to_owned()),
    }
}

/// Each end proves that it has the token. Returns the world of the controller.
fn prove(options: &JoinOptions, stream: &mut TcpStream, end: Instant) -> Result<World, Failed> {
    let limit = left(end).min(HANDSHAKE);
    let end = Instant::now() + limit;
    let for_now = |error: io::Error| {
        Failed::ForNow(match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("it sent no complete answer within {limit:.1?}")
            }
            _ => error.to_string(),
        })
    };
    let refused = |error: Error| Failed::Refused(error.to_string());
    let mut greeting = [0; GREETING];
    let mut came = 0;
    while came < GREETING {
        came += read(stream, &mut greeting[came..], end).map_err(for_now)?;
        // It may be all that comes.
        if !may_begin(&greeting[..came]) {
            return Err(Failed::Refused("it is no controller of Disco".into()));
        }
    }
    let request = Request { node: options.node, per_node: options.per_node };
    let nonce = random::bytes().map_err(for_now)?;
    let (guest, answer) = Guest::answer(&options.token, &greeting, nonce, request).map_err(refused)?;
    stream.write_all(&answer).map_err(for_now)?;
    let (mut verdict, mut came) = ([0; VERDICT], 0);
    while came < VERDICT {
        came += read(stream, &mut verdict[came..], end).map_err(for_now)?;
    }
    guest.judge(&options.token, &verdict).map_err(refused)
}

/// Reads what comes next until `end`, a byte at least.
fn read(stream: &mut TcpStream, into: &mut [u8], end: Instant) -> io::Result<usize> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Waits until the controller says which node this is.
fn assigned(
    options: &JoinOptions,
    join: Join,
    connection: &Connection,
    incoming: &mut Incoming,
    waker: &Waker,
) -> Result<Assignment, Failed> {
    let mut joining = Joining::new(Message::Join(join), Instant::now());
    let show = || (options.say)(&format!("joined the controller at {}, waiting for other nodes", options.address));
    match driver::join(&mut joining, connection, incoming, waker, show).map_err(Failed::ForGood)? {
        Ok(Message::Assign(assignment)) => Ok(assignment),
        Ok(other) => Err(Failed::ForGood(lost(LossCause::Garbage(format!("it says {other} before it assigns"))))),
        Err(why) => Err(Failed::ForNow(Loss::new(LostPeer::Controller, why).why())),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn of_several_addresses_each_says_why_it_would_not_do() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let strange = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = strange.local_addr().unwrap();
        // However often it is tried.
        thread::spawn(move || {
            strange.incoming().for_each(|stream| _ = stream.unwrap().write_all(&[b' '; GREETING]));
        });
        let mut options = JoinOptions::new(format!("{closed},{other}"), Token::random().unwrap());
        options.start = Duration::from_millis(1);
        let error = join(&options, &Arc::new(Waker::new().unwrap())).err().unwrap().to_string();
        assert!(error.contains(&format!("{closed}: Connection refused")), "{error}");
        let why = "it is no controller of Disco";
        assert!(error.ends_with(&format!("; {other}: {why}")), "{error}");
    }
}
