//! Where nodes prove who they are, and introduce themselves.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::wire::{Join, Message};
use disco_core::{Error, Result, World};

use super::refused::Standing;
use crate::connection::{Connection, Incoming, Waker};
use crate::nodes::handshake::{ANSWER, Host, Judgement, Request, may_begin};
use crate::nodes::token::Token;
use crate::nodes::{self, HANDSHAKE, INTRODUCTION};
use crate::random;

/// How many may be about it at a time.
const STRANGERS: usize = 256;
/// How long nobody is let in where the system could not.
const PAUSE: Duration = Duration::from_millis(100);
/// How many are let in before anything else is done.
const AT_ONCE: usize = 64;

/// A listening socket, and those who have come to it.
pub(super) struct Door {
    listener: TcpListener,
    token: Token,
    world: World,
    /// The oldest first.
    strangers: VecDeque<Stranger>,
    /// When the system let nobody in.
    closed: Option<Instant>,
}

/// One who has connected.
struct Stranger {
    address: SocketAddr,
    since: Instant,
    phase: Phase,
}

enum Phase {
    /// It is to prove that it has the token.
    Proof { stream: TcpStream, host: Host, answer: [u8; ANSWER], came: usize },
    /// It has, and is to introduce itself.
    Introduction { request: Request, connection: Arc<Connection>, incoming: Incoming },
}

/// A node that has introduced itself.
pub(super) struct Guest {
    pub(super) address: SocketAddr,
    pub(super) request: Request,
    pub(super) join: Join,
    pub(super) connection: Arc<Connection>,
    pub(super) incoming: Incoming,
}

/// What came of a stranger.
pub(super) enum Arrival {
    Node(Guest),
    /// It is no node of ours; how far it came.
    Refused {
        address: SocketAddr,
        error: Error,
        standing: Standing,
    },
    /// The system lets nobody in, for now.
    Closed(io::Error),
}

impl Door {
    pub(super) fn new(listener: TcpListener, token: Token, world: World) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, token, world, strangers: VecDeque::new(), closed: None })
    }

    /// What is waited for: those who come, unless the system has just let nobody in, and those who have.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let strangers = self.strangers.iter().map(|stranger| match &stranger.phase {
            Phase::Proof { stream, .. } => stream.as_fd(),
            Phase::Introduction { connection, .. } => connection.as_fd(),
        });
        let listens = self.closed.is_none_or(|closed| closed.elapsed() > PAUSE);
        listens.then(|| self.listener.as_fd()).into_iter().chain(strangers)
    }

    /// Lets in who has come, and hears what strangers say.
    pub(super) fn attend(&mut self, waker: &Arc<Waker>) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        for _ in 0..AT_ONCE {
            match self.listener.accept() {
                Ok((stream, address)) => self.let_in(stream, address),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Whoever came has gone already.
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                // As when there are too many descriptors: fewer of ours may help.
                Err(error) => {
                    self.closed = Some(Instant::now());
                    (0..AT_ONCE).for_each(|_| self.send_one_away());
                    arrivals.push(Arrival::Closed(error));
                    break;
                }
            }
        }
        for stranger in std::mem::take(&mut self.strangers) {
            let address = stranger.address;
            let mut standing = if stranger.has_proved() { Standing::Proved } else { Standing::Stranger };
            match stranger.listen(&self.token, &self.world, waker, &mut standing) {
                Ok(Progress::Stays(stranger)) => self.strangers.push_back(stranger),
                Ok(Progress::Comes(guest)) => arrivals.push(Arrival::Node(guest)),
                Err(error) => arrivals.push(Arrival::Refused { address, error, standing }),
            }
        }
        arrivals
    }

    /// Nodes are done in no time: of those who have proved nothing, the oldest is the least likely to be one.
    fn send_one_away(&mut self) {
        if let Some(oldest) = self.strangers.iter().position(|stranger| !stranger.has_proved()) {
            self.strangers.remove(oldest);
        }
    }

    fn let_in(&mut self, stream: TcpStream, address: SocketAddr) {
        let greet = |mut stream: TcpStream| {
            stream.set_nonblocking(true)?;
            let host = Host::new(random::bytes()?);
            // It is smaller than any socket's buffer.
            stream.write_all(host.greeting())?;
            let phase = Phase::Proof { stream, host, answer: [0; ANSWER], came: 0 };
            Ok::<_, io::Error>(Stranger { address, since: Instant::now(), phase })
        };
        if self.strangers.len() == STRANGERS {
            self.send_one_away();
        }
        match greet(stream) {
            Ok(_) if self.strangers.len() == STRANGERS => tracing::debug!(%address, "too many"),
            Ok(stranger) => self.strangers.push_back(stranger),
            Err(error) => tracing::debug!(%address, %error, "left at once"),
        }
    }
}

impl Guest {
    /// Whether it is there: it waits, and has been silent for less than `silence`.
    pub(super) fn is_there(&mut self, silence: Duration) -> bool {
        let Self { connection, incoming, .. } = self;
        let said = incoming.listen(connection, |_, message| match message {
            Message::Alive => Ok(None),
            other => Ok(Some(other)),
        });
        matches!(said, Ok(None)) && !incoming.is_closed() && incoming.silence() < silence
    }
}

impl Stranger {
    fn has_proved(&self) -> bool {
        matches!(self.phase, Phase::Introduction { .. })
    }
}

/// How far a stranger is.
#[allow(clippy::large_enum_variant, reason = "moved once")]
enum Progress {
    Stays(Stranger),
    Comes(Guest),
}

impl Stranger {
    fn listen(mut self, token: &Token, world: &World, waker: &Arc<Waker>, standing: &mut Standing) -> Result<Progress> {
        if let Phase::Proof { stream, host, answer, came } = &mut self.phase {
            let left = read(stream, answer, came);
            if !may_begin(&answer[..*came]) {
                return Err(Error::invalid("it speaks another language"));
            }
            left?;
            if *came == ANSWER {
                let Judgement { request, verdict } = host.judge(token, world, answer);
                *standing = match (&request, &verdict) {
                    (Ok(_), _) => Standing::Proved,
                    (Err(_), Some(_)) => Standing::Unproved,
                    (Err(_), None) => Standing::Stranger,
                };
                // It may be gone, which shows.
                _ = verdict.map(|verdict| stream.write_all(&verdict));
                let request = request?;
                let enter = || nodes::connection(stream.try_clone()?, waker.clone());
                let connection = enter().map_err(|error| Error::invalid(format!("it can't be let in: {error}")))?;
                let incoming = Incoming::new(INTRODUCTION);
                self.phase = Phase::Introduction { request, connection: Arc::new(connection), incoming };
            }
        }
        let Self { address, since, phase } = self;
        let phase = match phase {
            Phase::Introduction { request, connection, mut incoming } => {
                match introduced(&connection, &mut incoming)? {
                    Some(join) => return Ok(Progress::Comes(Guest { address, request, join, connection, incoming })),
                    None => Phase::Introduction { request, connection, incoming },
                }
            }
            phase @ Phase::Proof { .. } => phase,
        };
        match since.elapsed() > HANDSHAKE {
            true => Err(Error::invalid(format!("it has not introduced itself for {HANDSHAKE:?}"))),
            false => Ok(Progress::Stays(Self { address, since, phase })),
        }
    }
}

/// Takes in what there is of a record.
fn read(stream: &mut TcpStream, record: &mut [u8], came: &mut usize) -> Result<()> {
    while *came < record.len() {
        match stream.read(&mut record[*came..]) {
            Ok(0) => return Err(Error::invalid("it left without a word")),
            Ok(count) => *came += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::invalid(format!("it left: {error}"))),
        }
    }
    Ok(())
}

/// Whether it has introduced itself.
fn introduced(connection: &Connection, incoming: &mut Incoming) -> Result<Option<Join>> {
    let join = incoming.listen(connection, |_, message| match message {
        Message::Join(join) => Ok(Some(join)),
        other => Err(Error::invalid(format!("it says {other} instead of join"))),
    });
    match join? {
        None if incoming.is_closed() => Err(Error::invalid("it left without a word")),
        join => Ok(join),
    }
}
