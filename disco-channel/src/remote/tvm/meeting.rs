//! How the workers of this program in one session of TVM meet: TVM passes them a key, and nothing else connects them.
//!
//! ```text
//! worker 0                                                   worker k
//! listens at an abstract Unix socket, named by a hash of the key
//!                          ◀── u32 k, the key ─────────────
//!                          ─── an invitation as text ──────▶
//! ProcessLane, without commands: store and descriptors ◀───▶ processes::serve
//! ```
//!
//! Both ends check that the other process belongs to the same user; worker 0 checks the key, too.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::activity::{Activity, TimeLimit};
use disco_core::channel::{Notice, Reply, Signal};
use disco_core::error::{Failure, LostPeer};
use disco_core::link::Shared;
use disco_core::{
    Abort, AbortCause, Channel, Endpoint as _, Error, Inbox, Link, Result, WorkerConfig, WorkerContext, WorkerId,
    WorkerRange, backend, register_function, sync,
};
use disco_engine::random;
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::late::{Late, Met};
use super::worker::FIRST;
use crate::remote::processes::{self, Invitation, Launch, ProcessLane};
use crate::remote::reactor::poll;

/// Limit of a meeting.
const LIMIT: Duration = Duration::from_secs(30);
/// How often a worker tries to reach worker 0.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of a key.
const KEY_BYTES: usize = 16;
/// How long a process that has connected may take to send the key.
const KEY_LIMIT: Duration = Duration::from_secs(2);

register_function!("disco.tvm.meet", meet, limit: TimeLimit::Own);

/// Connects the workers of this process's session, which all call it with the same key of 16 random bytes. Workers that
/// share a process are connected already. Returns where they meet in the data plane of `backend`, for `disco.init_ccl`.
///
/// # Errors
/// The key has another length; there is no such backend; a worker does not call it in time.
fn meet(ctx: &mut WorkerContext, key: Vec<u8>, backend: String) -> Result<Vec<u8>> {
    let key: [u8; KEY_BYTES] = key.try_into().map_err(|key: Vec<u8>| {
        Error::invalid(format!("the key of a meeting has {} bytes, expected {KEY_BYTES}", key.len()))
    })?;
    if let Some((late, link)) = Late::of_process() {
        // Forgets aborts of the last meeting.
        ctx.link().reset(ctx.link().epoch() + 1);
        let met = match ctx.worker().index() {
            0 => host(ctx.world().size() as u32, &key, link)?,
            _ => {
                // From here on, the end of the last meeting does not concern this worker.
                late.set(None);
                join(ctx.worker(), &key, link)?
            }
        };
        // Worker 0 ends the last meeting after all other workers have left it.
        late.set(Some(met));
    }
    let name = format!("disco.tvm.meet {}", random::hex(&key));
    if ctx.worker().index() == 0 {
        let backend = backend::find(&backend)?;
        backend.probe()?;
        ctx.store().set(&name, backend.rendezvous(&ctx.world())?.as_bytes())?;
    }
    ctx.store().wait(&name, LIMIT)
}

/// Meets the other workers, as worker 0.
fn host(workers: u32, key: &[u8; KEY_BYTES], link: Weak<Link>) -> Result<Met> {
    let shared = Arc::new(Shared::default());
    if workers == 1 {
        return Ok(Met { link: Arc::new(Link::bare(shared)), connections: Box::new(()) });
    }
    let refused = |error: io::Error| Error::system("worker 0 can't listen for the workers of TVM's session", error);
    let listener = UnixListener::bind_addr(&address(key).map_err(refused)?).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    let texts = Arc::new(Mutex::new(HashMap::new()));
    let mut options = processes::Options::new(WorkerConfig::new(disco_core::World::new(workers as usize, 1)?));
    options.launch = Launch::elsewhere({
        let texts = texts.clone();
        move |invitation| {
            sync::lock(&texts).insert(invitation.worker.index() as u32, invitation.text());
            Ok(())
        }
    });
    (options.start, options.ring) = (LIMIT, false);
    let lane = Arc::new(ProcessLane::new(WorkerRange::new(1..workers), shared.clone(), options));
    let inbox = Arc::new(Failures { lane: Arc::downgrade(&lane), link });
    let own = Link::of_thread(shared, Activity::default(), {
        let inbox = inbox.clone();
        move |notice| inbox.notice(WorkerId::new(0), notice)
    });
    let key = *key;
    let answers = thread::Builder::new()
        .name("disco-tvm-meeting".into())
        .spawn(move || answer(&listener, &key, &texts, workers - 1));
    answers.map_err(|error| Error::system("worker 0 can't start a thread for the workers of TVM's session", error))?;
    lane.start(inbox)?;
    Ok(Met { link: Arc::new(own), connections: Box::new(lane) })
}

/// Answers each worker with its invitation, until the `missing` workers have theirs or the limit has passed.
fn answer(listener: &UnixListener, key: &[u8; KEY_BYTES], texts: &Mutex<HashMap<u32, String>>, mut missing: u32) {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT && missing > 0 {
        poll(&mut [PollFd::new(listener, PollFlags::IN)], Duration::from_millis(100));
        let Ok((mut stream, _)) = listener.accept() else { continue };
        let text = asked(&mut stream, key).and_then(|worker| {
            let text = sync::lock(texts).remove(&worker);
            text.ok_or_else(|| io::Error::other(format!("worker {worker} has no invitation")))
        });
        match text.and_then(|text| stream.write_all(text.as_bytes())) {
            Ok(()) => missing -= 1,
            // A worker that comes before its invitation tries again.
            Err(error) => {
                tracing::debug!(%error, "no invitation for a process that wants to meet the workers of TVM's session")
            }
        }
    }
}

/// The worker that asks, if it is of this user and has the key.
fn asked(stream: &mut UnixStream, key: &[u8; KEY_BYTES]) -> io::Result<u32> {
    check_user(stream)?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(KEY_LIMIT))?;
    let (mut worker, mut theirs) = ([0; 4], [0; KEY_BYTES]);
    stream.read_exact(&mut worker)?;
    stream.read_exact(&mut theirs)?;
    if bool::from(theirs[..].ct_eq(&key[..])) {
        Ok(u32::from_le_bytes(worker))
    } else {
        Err(io::Error::other("it has another key"))
    }
}

/// Meets worker 0, as another worker.
fn join(worker: WorkerId, key: &[u8; KEY_BYTES], link: Weak<Link>) -> Result<Met> {
    let text = invitation(worker, key).map_err(|error| {
        Error::system(format!("{worker} has not met worker 0 of TVM's session within {LIMIT:?}"), error)
    })?;
    let invitation = Invitation::parse(&text)?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let is_current = Arc::new(AtomicBool::new(true));
    let guard = Current(is_current.clone());
    let serve = move || {
        let served = processes::serve(&invitation, |_, _, mut endpoint| {
            let own = endpoint.link();
            let passed: Arc<dyn Abort> = Arc::new(PassedAbort { link: link.clone(), is_current: is_current.clone() });
            own.on_abort(&passed);
            // Fails only if the worker has given up.
            _ = sender.send(own);
            while endpoint.recv().is_ok() {}
            passed.abort(&"worker 0 of this program has left TVM's session".into());
            Ok(())
        });
        if let Err(error) = served {
            tracing::warn!(%error, "the meeting of the workers of TVM's session failed");
        }
    };
    let started = thread::Builder::new().name("disco-tvm-meeting".into()).spawn(serve);
    started.map_err(|error| Error::system(format!("{worker} can't start a thread"), error))?;
    let own = receiver.recv_timeout(LIMIT);
    let own = own.map_err(|_| Error::state(format!("{worker}: worker 0 of TVM's session did not admit it")))?;
    Ok(Met { link: own, connections: Box::new(guard) })
}

/// Asks worker 0 for an invitation, until it answers.
fn invitation(worker: WorkerId, key: &[u8; KEY_BYTES]) -> io::Result<String> {
    let address = address(key)?;
    let begun = Instant::now();
    let ask = || {
        let mut stream = UnixStream::connect_addr(&address)?;
        check_user(&stream)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(&(worker.index() as u32).to_le_bytes())?;
        stream.write_all(key)?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        // Empty: worker 0 has not made the invitations yet.
        if text.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(text) }
    };
    loop {
        match ask() {
            Ok(text) => return Ok(text),
            Err(error) if begun.elapsed() > LIMIT => return Err(error),
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

fn check_user(stream: &UnixStream) -> io::Result<()> {
    if sockopt::socket_peercred(stream)?.uid == rustix::process::geteuid() {
        Ok(())
    } else {
        Err(io::Error::other("it belongs to another user"))
    }
}

fn address(key: &[u8; KEY_BYTES]) -> io::Result<SocketAddr> {
    let hash = Sha256::digest(key);
    SocketAddr::from_abstract_name(format!("disco-tvm-{}", random::hex(&hash[..16])))
}

/// Passes an abort of the meeting to the worker.
#[derive(Debug)]
struct PassedAbort {
    link: Weak<Link>,
    is_current: Arc<AtomicBool>,
}

/// Makes a meeting count as over when it is dropped.
struct Current(Arc<AtomicBool>);

impl Drop for Current {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Abort for PassedAbort {
    fn abort(&self, cause: &AbortCause) {
        if self.is_current.load(Ordering::Acquire)
            && let Some(link) = self.link.upgrade()
        {
            link.abort(link.epoch(), &cause.to_string().into());
        }
    }
}

/// Ends the collectives of the other workers when one fails or is lost.
struct Failures {
    lane: Weak<ProcessLane>,
    link: Weak<Link>,
}

impl Failures {
    fn abort(&self, cause: &Arc<str>) {
        if let Some(lane) = self.lane.upgrade() {
            // Fails only if the workers have left.
            _ = lane.signal(Signal::Abort { epoch: 0, cause: cause.clone() });
        }
        if let Some(link) = self.link.upgrade() {
            link.abort(link.epoch(), cause);
        }
    }
}

/// TVM's id of a worker.
fn theirs(worker: WorkerId) -> WorkerId {
    WorkerId::new((worker.index() + FIRST.index()) as u32)
}

impl Inbox for Failures {
    fn reply(&self, _: WorkerId, _: u64, _: Reply) {}

    fn notice(&self, _: WorkerId, notice: Notice) {
        if let Notice::Failed { failure, .. } = notice
            && !failure.aborted
        {
            let failure = Failure { worker: theirs(failure.worker), ..(*failure).clone() };
            self.abort(&failure.to_string().into());
        }
    }

    fn room(&self, _: WorkerRange) {}

    fn left(&self, _: WorkerRange) {}

    fn lost(&self, _: WorkerRange, why: Error) {
        let cause = match &why {
            Error::Lost(loss) if !loss.workers().is_empty() => {
                let first = theirs(loss.workers().first()).index() as u32;
                let workers = WorkerRange::new(first..first + loss.workers().len() as u32);
                Error::peer_lost(LostPeer::Workers { workers, node: None }, loss.cause.clone()).to_string()
            }
            other => other.to_string(),
        };
        self.abort(&cause.into());
    }
}
