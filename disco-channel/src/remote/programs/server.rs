//! The program's end: the thread that answers clients.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use disco_core::env::Variable;
use disco_core::status::{Program, Status, program_name};
use disco_core::{Owner, sync};
use rustix::net::{Shutdown, sockopt};

use super::{Name, is_trusted};

/// How long a client may take to read the answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed `accept`: the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Number of names that are tried: another process has one of them if it has the same id in another PID namespace.
const ATTEMPTS: u32 = 16;

/// The sessions of this process, and the socket on which it answers while it has any.
static SERVER: Mutex<Server> = Mutex::new(Server::NONE);

/// Adds what a client is told to the answer. A session that is gone adds nothing.
type Tell = Arc<dyn Fn(&mut Program) + Send + Sync>;

struct Server {
    told: BTreeMap<u32, Tell>,
    /// The next key of `told`, and the number of the next socket.
    next: u32,
    listener: Option<Arc<UnixListener>>,
    /// The process that has these sessions; none before the first one.
    owner: Option<Owner>,
}

impl Server {
    const NONE: Self = Self { told: BTreeMap::new(), next: 0, listener: None, owner: None };
}

/// A session, or notes, that this process tells to clients. Dropping the handle ends it, except in a forked child.
#[must_use = "dropping it ends the answers"]
pub struct Answering(u32, Owner);

/// Whether `DISCO_STATUS` permits answers: it is not set, or 1. An invalid value is logged, and permits them.
fn is_enabled() -> bool {
    let flag = Variable::read("DISCO_STATUS").flag();
    flag.inspect_err(|error| tracing::warn!(%error, "`disco status` is answered")).ok().flatten().unwrap_or(true)
}

/// Tells clients of this user ([`ask`](super::ask), `disco status`) of a session of this process, of which `observe`
/// returns the state, unless `DISCO_STATUS` is 0. Starts a thread for the first session, which ends with the last one.
///
/// A socket or a thread that the system refuses is logged as a warning: the session goes on without answers.
pub fn answer(observe: impl Fn() -> Option<Status> + Send + Sync + 'static) -> Answering {
    add(Arc::new(move |program| program.sessions.extend(observe())))
}

/// Tells the same clients what the program says of itself: the notes by name, as the caller of [`answer`] tells sessions.
/// `notes` runs on the thread that answers, and must not block.
pub fn note(notes: impl Fn() -> BTreeMap<String, String> + Send + Sync + 'static) -> Answering {
    add(Arc::new(move |program| program.notes.extend(notes())))
}

fn add(tell: Tell) -> Answering {
    let mut server = sync::lock(&SERVER);
    let owner = *server.owner.get_or_insert_default();
    if !owner.is_here() {
        // A forked child has copies of its parent's sessions.
        *server = Server { owner: Some(Owner::default()), ..Server::NONE };
    }
    let key = server.next;
    server.next += 1;
    server.told.insert(key, tell);
    if server.listener.is_none() && is_enabled() {
        match start(key) {
            Ok(listener) => server.listener = Some(listener),
            Err(error) => tracing::warn!(%error, "`disco status` can't ask this program"),
        }
    }
    Answering(key, Owner::default())
}

/// Listens, and starts the thread.
fn start(number: u32) -> io::Result<Arc<UnixListener>> {
    let (user, process) = (rustix::process::geteuid().as_raw(), process::id());
    let bind = |attempt| {
        let name = Name { user, process, number: number.wrapping_mul(ATTEMPTS).wrapping_add(attempt) };
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name.text())?)
    };
    let is_taken = |bound: &io::Result<_>| matches!(bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse);
    let mut bound = bind(0);
    for attempt in 1..ATTEMPTS {
        if !is_taken(&bound) {
            break;
        }
        bound = bind(attempt);
    }
    let listener = Arc::new(bound?);
    let accepting = listener.clone();
    thread::Builder::new().name("disco-status".into()).spawn(move || serve(&accepting))?;
    Ok(listener)
}

/// Answers until the listener is shut down.
fn serve(listener: &UnixListener) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Err(error) = tell(stream) {
                    tracing::debug!(%error, "a client that asked for the status got none");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                tracing::debug!(%error, "a client that asks for the status can't be accepted");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn tell(mut stream: UnixStream) -> io::Result<()> {
    let (peer, own) = (sockopt::socket_peercred(&stream)?.uid.as_raw(), rustix::process::geteuid().as_raw());
    if !is_trusted(peer, own) {
        return Err(io::Error::other(format!("it is a process of user {peer}")));
    }
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    stream.write_all(&serde_json::to_vec(&describe())?)
}

fn describe() -> Program {
    // Copied, so that no session is asked under the lock.
    let told: Vec<Tell> = sync::lock(&SERVER).told.values().cloned().collect();
    let mut program = Program::default();
    program.process = process::id();
    program.program = program_name();
    told.iter().for_each(|tell| tell(&mut program));
    program
}

impl Drop for Answering {
    fn drop(&mut self) {
        if !self.1.is_here() {
            return;
        }
        let mut server = sync::lock(&SERVER);
        let told = server.told.remove(&self.0);
        let ended = if server.told.is_empty() { server.listener.take() } else { None };
        if let Some(listener) = ended {
            // Ends the wait of the thread.
            _ = rustix::net::shutdown(&*listener, Shutdown::Both);
        }
        drop(server);
        drop(told);
    }
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Answering").field(&self.0).finish()
    }
}
