//! Joins the controller, with retries until it listens, or the node to which the controller sends this one.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::channel::Signal;
use disco_core::error::{Loss, LossCause, LostPeer};
use disco_core::wire::{Assignment, Join, Message};
use disco_core::{Error, Result, Uplink, World, function};
use disco_engine::handshake::{
    GREETING_BYTES, HANDSHAKE_TIMEOUT, Keys, NodeHandshake, Request, Secret, VERDICT_BYTES, may_begin,
};
use disco_engine::limits::MAX_PACKET_BYTES;
use disco_engine::member::joining::Joining;
use disco_engine::member::serving::controller_lost;
use disco_engine::token::Token;
use rustix::process::getppid;

use super::children::Listener;
use super::stop::StopHandle;
use crate::remote::nodes::{self, NodeInvitation, addresses};
use crate::remote::open_files;
use crate::remote::reactor::member as driver;
use crate::remote::reactor::{Connection, Incoming, Waker};

/// Delay before the second attempt, which doubles with each attempt, and its maximum.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Least time for the first attempt, and for each of several addresses while time is left.
const MIN_FIRST_ATTEMPT: Duration = Duration::from_millis(500);
/// Least time for the last attempt.
const MIN_ATTEMPT: Duration = Duration::from_millis(50);
/// Most time for one attempt.
const MAX_ATTEMPT: Duration = Duration::from_secs(3600);
/// Time limit for reaching the controller of a subset, which listens when it sends the invitation.
const REACH_LIMIT: Duration = Duration::from_secs(10);

/// Options of a node that joins a controller.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// Address of the controller, as `HOST:PORT`; or several, separated by commas, which are tried in turn.
    pub address: String,
    /// The session's token.
    pub token: Token,
    /// Whether the connection is encrypted; `None` reads `DISCO_ENCRYPT`, which encrypts if it is unset. A controller
    /// with another setting refuses the node.
    pub encrypts: Option<bool>,
    /// Number of this node; `None` lets the controller choose.
    pub node: Option<u32>,
    /// The rack of this node's machine, or another name of its part of the network. Nodes of one rack relay for each
    /// other where that is possible; nodes of one machine do so without a name.
    pub rack: Option<String>,
    /// Number of workers of this node; `None` accepts any number that the controller assigns.
    pub per_node: Option<u32>,
    /// Largest number of workers that this node accepts; `None` accepts any number that the controller assigns.
    pub max_workers: Option<u32>,
    /// Whether the node stands by until it takes the place of a lost node of the session, or the session ends. The session
    /// must listen after its start: [`Options::answers_status`](crate::remote::nodes::Options::answers_status).
    pub is_spare: bool,
    /// The process that has started this one, its parent: once that has ended, the node joins no more.
    pub starter: Option<u32>,
    /// Timeout for the controller to accept this node. Refusals without a proof of the token are retried until then.
    pub start: Duration,
    /// Folder for files with the output of each worker, if workers are processes of the node.
    pub log_dir: Option<PathBuf>,
    /// Stops the node before its session is over; `None`: the node serves until then.
    pub stop: Option<StopHandle>,
    /// Gets messages on the progress of joining, to be shown to the user.
    pub report: fn(&str),
}

impl JoinOptions {
    /// Joins the controller at `address` within 30 s, as any node with any number of workers, and shows no messages.
    pub fn new(address: impl Into<String>, token: Token) -> Self {
        Self {
            address: address.into(),
            token,
            encrypts: None,
            node: None,
            rack: None,
            per_node: None,
            max_workers: None,
            is_spare: false,
            starter: None,
            start: Duration::from_secs(30),
            log_dir: None,
            stop: None,
            report: |_| {},
        }
    }
}

impl NodeInvitation {
    /// How the worker joins.
    pub(crate) fn options(&self) -> JoinOptions {
        let mut options = JoinOptions::new(&self.addresses, self.token.clone());
        (options.node, options.encrypts, options.per_node) = (Some(self.node), Some(self.encrypts), Some(1));
        options.start = REACH_LIMIT;
        options
    }
}

/// A node that the controller has accepted.
pub(super) struct Joined {
    pub(super) connection: Arc<Connection>,
    pub(super) incoming: Incoming,
    pub(super) assignment: Assignment,
    /// Where the nodes connect for which this one relays, if there are any.
    pub(super) listener: Option<Listener>,
    pub(super) uplink: Uplink,
    /// The address of this end.
    pub(super) own: SocketAddr,
}

/// The other end of a node's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upper {
    /// The session's controller.
    Controller,
    /// The controller, where it waits for nodes in the places of lost ones.
    Vacancy,
    /// A node that relays for this one.
    Parent,
}

impl fmt::Display for Upper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Controller | Self::Vacancy => "the controller",
            Self::Parent => "the node that relays for this one",
        })
    }
}

/// The controller's world, and the keys of an encrypted connection.
type Proved = (World, Option<Keys>);

/// Why an attempt to join failed.
pub(in crate::remote::nodes) enum Failed {
    /// Another attempt may succeed.
    ForNow(String),
    /// No program listens at the address. Another attempt may succeed.
    NoListener(String),
    /// The other end refuses, perhaps without having proved that it is the controller. Another attempt may succeed.
    Refused(String),
    /// No further attempt is made.
    ForGood(Error),
}

impl Failed {
    /// A failure after which another attempt may succeed. `is_absent`: no program listens at the address.
    fn for_now(why: String, is_absent: bool) -> Self {
        if is_absent { Self::NoListener(why) } else { Self::ForNow(why) }
    }

    /// The system refuses this end of a connection. Another attempt can't succeed if this process has too many open files.
    fn of_system(error: io::Error) -> Self {
        if open_files::is_at_limit(&error) {
            Self::ForGood(Error::system("the system refuses a connection to the controller", error))
        } else {
            Self::for_now(error.to_string(), error.kind() == io::ErrorKind::ConnectionRefused)
        }
    }

    fn why(self) -> String {
        match self {
            Self::ForNow(why) | Self::NoListener(why) | Self::Refused(why) => why,
            Self::ForGood(error) => error.to_string(),
        }
    }
}

/// The controller's message to a node when all nodes have joined, or when the node takes the place of a lost one.
enum Told {
    Assigned(Box<Joined>),
    /// To join its parent; or as node 0, the controller at another address.
    Redirected {
        node: u32,
        addresses: Vec<String>,
        /// The limit for that.
        start: Duration,
    },
    /// The session of a node that stands by has ended.
    Over,
}

/// Joins, with retries, and waits for the assignment, which comes when all nodes have joined: from the controller, or
/// from the parent to which the controller sends this node. Returns none if the session ends while the node stands by.
pub(super) fn join(options: &JoinOptions, waker: &Arc<Waker>) -> Result<Option<Joined>> {
    let mut listener = None;
    let mut told = loop {
        match reach(Upper::Controller, options, waker, &mut listener)? {
            Told::Redirected { node: 0, addresses, start } => {
                tracing::debug!(?addresses, "takes the place of a lost node");
                let there = JoinOptions { address: addresses.join(","), start, is_spare: false, ..options.clone() };
                match reach(Upper::Vacancy, &there, waker, &mut listener) {
                    Ok(told) => break told,
                    // The replacement has failed, or has enough nodes; there may be another one.
                    Err(error) => (options.report)(&format!("no place of a lost node: {error}")),
                }
                thread::sleep(RETRY_DELAY.0);
            }
            told => break told,
        }
    };
    // The parent's listener is gone with a session that does not start, so the limit is the session's.
    if let Told::Redirected { node, addresses, start } = told {
        tracing::debug!(node, ?addresses, "joins its parent");
        let parent = JoinOptions { address: addresses.join(","), node: Some(node), start, ..options.clone() };
        told = reach(Upper::Parent, &parent, waker, &mut listener)?;
    }
    match told {
        Told::Assigned(joined) => {
            // A node that was asked to listen may relay for none in the end.
            let listener = listener.filter(|_| !joined.assignment.behind.is_empty());
            Ok(Some(Joined { listener, ..*joined }))
        }
        Told::Over => Ok(None),
        Told::Redirected { .. } => {
            Err(controller_lost(LossCause::ProtocolViolation("it sends this node to a third one".into())))
        }
    }
}

/// Joins one end, with retries.
fn reach(upper: Upper, options: &JoinOptions, waker: &Arc<Waker>, listener: &mut Option<Listener>) -> Result<Told> {
    let (start, mut pause, mut last_reason, mut refused) = (Instant::now(), RETRY_DELAY.0, String::new(), None);
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    loop {
        let least = if last_reason.is_empty() { MIN_FIRST_ATTEMPT } else { MIN_ATTEMPT };
        let end = Instant::now() + options.start.saturating_sub(start.elapsed()).clamp(least, MAX_ATTEMPT);
        let attempt = attempt(upper, options, end, waker, &name, listener);
        let is_absent = matches!(attempt, Err(Failed::NoListener(_)));
        let why = match attempt {
            Ok(told) => return Ok(told),
            Err(Failed::ForGood(error)) => return Err(error),
            Err(Failed::ForNow(why) | Failed::NoListener(why)) => why,
            Err(Failed::Refused(why)) => refused.insert(why).clone(),
        };
        let has_parent = |starter: u32| getppid().is_some_and(|parent| parent.as_raw_nonzero().get() as u32 == starter);
        if let Some(starter) = options.starter.filter(|starter| !has_parent(*starter)) {
            return Err(Error::state(format!("the program that has started this node, process {starter}, has ended")));
        }
        let left = options.start.saturating_sub(start.elapsed());
        // The controller listened there before it sent this node.
        if left <= MIN_ATTEMPT || is_absent && upper == Upper::Vacancy {
            let operation = format!("joining {upper} at {}", options.address);
            let state = match refused {
                Some(refused) if refused != why => format!("{why}; an attempt before: {refused}"),
                _ => why,
            };
            return Err(Error::Deadline { operation, after: options.start, state });
        }
        if last_reason != why {
            (options.report)(&format!("waiting for {upper} at {}, {left:.0?} more: {why}", options.address));
            last_reason = why;
        }
        thread::sleep(pause.min(left - MIN_ATTEMPT));
        pause = (2 * pause).min(RETRY_DELAY.1);
    }
}

fn attempt(
    upper: Upper,
    options: &JoinOptions,
    end: Instant,
    waker: &Arc<Waker>,
    name: &str,
    listener: &mut Option<Listener>,
) -> Result<Told, Failed> {
    let (stream, (world, keys)) = enter(options, end)?;
    let own = stream.local_addr().map_err(Failed::of_system)?;
    let upper_address = stream.peer_addr().map_err(Failed::of_system)?;
    let connection = Arc::new(nodes::connection(stream, waker.clone()).map_err(Failed::of_system)?);
    let functions = function::names().into_iter().map(str::to_owned).collect();
    let mut incoming = Incoming::new(MAX_PACKET_BYTES);
    let is_encrypted = keys.is_some();
    if let Some(keys) = keys {
        connection.encrypt(keys.clone()).map_err(Failed::ForGood)?;
        incoming.decrypt(keys);
    }
    let (rack, is_spare) = (options.rack.clone().unwrap_or_default(), options.is_spare);
    let join = Join { name: name.to_owned(), rack, is_spare, functions };
    let mut joining = Joining::new(Message::Join(join), Instant::now());
    let waits = if is_spare { "standing by for lost nodes" } else { "waiting for other nodes" };
    let show = || (options.report)(&format!("joined {upper} at {}, {waits}", options.address));
    let listen = |everywhere| {
        let bound = listener.take().map_or_else(|| Listener::bind(own, everywhere), Ok)?;
        Ok(listener.insert(bound).addresses())
    };
    let told = driver::join(&mut joining, &connection, &mut incoming, waker, show, listen);
    let assignment = match told.map_err(Failed::ForGood)? {
        Ok(Message::Assign(assignment)) => assignment,
        Ok(Message::Redirect { node, addresses, start }) => {
            let addresses = addresses.iter().map(|address| addresses::on_interface_of(own, address)).collect();
            return Ok(Told::Redirected { node, addresses, start });
        }
        Ok(Message::Signal(Signal::Shutdown)) => return Ok(Told::Over),
        Ok(other) => {
            return Err(Failed::ForGood(controller_lost(LossCause::ProtocolViolation(format!(
                "it sent {other} before ASSIGN"
            )))));
        }
        Err(why) => return Err(Failed::Refused(Loss::new(LostPeer::Controller, why).why())),
    };
    if assignment.config.world != world {
        return Err(Failed::ForGood(controller_lost(LossCause::ProtocolViolation(
            "it assigns workers of another world than in its handshake".into(),
        ))));
    }
    let uplink = Uplink { own: own.ip(), upper: upper_address.ip(), is_encrypted };
    Ok(Told::Assigned(Box::new(Joined { connection, incoming, assignment, listener: None, uplink, own })))
}

/// Connects to the first address at which the listener proves that it has the token. Each of several addresses gets a
/// share of the time.
pub(in crate::remote::nodes) fn enter(options: &JoinOptions, end: Instant) -> Result<(TcpStream, Proved), Failed> {
    let addresses: Vec<&str> = options.address.split(',').collect();
    let [_, _, ..] = addresses[..] else { return enter_at(&options.address, options, end) };
    let share = (HANDSHAKE_TIMEOUT / addresses.len() as u32).max(MIN_FIRST_ATTEMPT);
    let (mut reasons, mut is_refused, mut is_absent) = (Vec::new(), false, true);
    for address in addresses {
        match enter_at(address, options, end.min(Instant::now() + share)) {
            Ok(entered) => return Ok(entered),
            Err(failed @ Failed::ForGood(_)) => return Err(failed),
            Err(failed) => {
                is_refused |= matches!(failed, Failed::Refused(_));
                is_absent &= matches!(failed, Failed::NoListener(_));
                reasons.push(format!("{address}: {}", failed.why()));
            }
        }
    }
    let why = reasons.join("; ");
    Err(if is_refused { Failed::Refused(why) } else { Failed::for_now(why, is_absent) })
}

fn enter_at(address: &str, options: &JoinOptions, end: Instant) -> Result<(TcpStream, Proved), Failed> {
    let mut stream = connect(address, end)?;
    let proved = prove(options, &mut stream, end)?;
    Ok((stream, proved))
}

/// Connects to the first address of a name that accepts.
fn connect(address: &str, end: Instant) -> Result<TcpStream, Failed> {
    match &resolve(address, left(end)).map_err(Failed::ForNow)?[..] {
        [] => Err(Failed::ForNow(format!("`{address}` has no address"))),
        [address] => connect_to(address, left(end)),
        addresses => connect_to_one_of(addresses, end),
    }
}

/// Connects to the first of several addresses of a name that accepts. Each gets a share of the time.
fn connect_to_one_of(addresses: &[SocketAddr], end: Instant) -> Result<TcpStream, Failed> {
    let (mut reasons, mut is_absent) = (Vec::new(), true);
    for (index, address) in addresses.iter().enumerate() {
        match connect_to(address, left(end) / (addresses.len() - index) as u32) {
            Ok(stream) => return Ok(stream),
            Err(failed @ Failed::ForGood(_)) => return Err(failed),
            Err(failed) => {
                is_absent &= matches!(failed, Failed::NoListener(_));
                reasons.push(format!("{address}: {}", failed.why()));
            }
        }
    }
    Err(Failed::for_now(reasons.join("; "), is_absent))
}

fn connect_to(address: &SocketAddr, limit: Duration) -> Result<TcpStream, Failed> {
    let limit = limit.clamp(Duration::from_millis(1), HANDSHAKE_TIMEOUT);
    TcpStream::connect_timeout(address, limit).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Failed::ForNow(format!(
            "no answer within {limit:.1?}: a firewall drops the packets, or the machine is not up"
        )),
        _ => Failed::of_system(error),
    })
}

/// Time left until `end`, at least 1 ms: the system takes 0 as no timeout.
fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Resolves a name, within `limit`. The system's resolver has no timeout, so it runs on a thread that is left behind.
fn resolve(address: &str, limit: Duration) -> Result<Vec<SocketAddr>, String> {
    // A literal address needs no resolver.
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let (sender, receiver) = mpsc::channel();
    let name = address.to_owned();
    let resolver = thread::Builder::new().name("disco-resolver".into());
    let started = resolver.spawn(move || sender.send(name.to_socket_addrs().map(Iterator::collect)));
    started.map_err(|error| error.to_string())?;
    match receiver.recv_timeout(limit) {
        Ok(addresses) => addresses.map_err(|error| format!("the name does not resolve: {error}")),
        Err(_) => Err("the name does not resolve in time".to_owned()),
    }
}

/// Does the handshake.
fn prove(options: &JoinOptions, stream: &mut TcpStream, end: Instant) -> Result<Proved, Failed> {
    let limit = left(end).min(HANDSHAKE_TIMEOUT);
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
    let mut greeting = [0; GREETING_BYTES];
    let mut came = 0;
    while came < GREETING_BYTES {
        came += read(stream, &mut greeting[came..], end).map_err(for_now)?;
        // Another protocol's server may send less than a greeting and then wait.
        if !may_begin(&greeting[..came]) {
            return Err(Failed::Refused("the listener is not a Disco controller".into()));
        }
    }
    let request = Request { node: options.node, per_node: options.per_node };
    let secret = Secret::new(options.token.clone(), options.encrypts).map_err(Failed::ForGood)?;
    let (node_handshake, answer) = NodeHandshake::answer(&secret, &greeting, request).map_err(refused)?;
    stream.write_all(&answer).map_err(for_now)?;
    let (mut verdict, mut came) = ([0; VERDICT_BYTES], 0);
    while came < VERDICT_BYTES {
        came += read(stream, &mut verdict[came..], end).map_err(for_now)?;
    }
    node_handshake.judge(&verdict).map_err(refused)
}

/// Reads at least one byte, until `end`.
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_name_with_several_addresses_fails_with_the_reason_of_each() {
        let closed = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
        let failed = connect_to_one_of(&closed, Instant::now() + HANDSHAKE_TIMEOUT).unwrap_err();
        let Failed::NoListener(why) = failed else { panic!("both addresses refuse") };
        let refused = closed.map(|address| format!("{address}: Connection refused (os error 111)"));
        assert_eq!(why, refused.join("; "));
    }

    #[test]
    fn join_error_names_each_address_and_its_reason() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let strange = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = strange.local_addr().unwrap();
        // Answers every attempt.
        thread::spawn(move || {
            strange.incoming().for_each(|stream| _ = stream.unwrap().write_all(&[b' '; GREETING_BYTES]));
        });
        let mut options = JoinOptions::new(format!("{closed},{other}"), Token::random().unwrap());
        options.start = Duration::from_millis(1);
        let error = join(&options, &Arc::new(Waker::new().unwrap())).err().unwrap().to_string();
        assert!(error.contains(&format!("{closed}: Connection refused")), "{error}");
        let why = "the listener is not a Disco controller";
        assert!(error.ends_with(&format!("; {other}: {why}")), "{error}");
    }
}
