//! The worker's end of a lane to processes: joining, serving and ending.

mod commands;
mod endpoint;
mod link;
mod service;

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::activity::{Activity, RecorderConfig};
use disco_core::channel::Signal;
use disco_core::error::LossCause;
use disco_core::shared_memory::{Arena, Segment};
use disco_core::wire::{Hello, Message, RingPlace, Welcome};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Link, Result, WorkerId, function};
use disco_engine::limits::{MAX_PACKET_BYTES, MAX_SENT_RECORDS, packet_limit};
use disco_engine::member::joining::Joining;
use disco_engine::member::serving::{Member, controller_lost};
use rustix::net::sockopt;

use self::commands::{Commands, Letterbox};
pub use self::endpoint::ProcessEndpoint;
use self::service::{End, Service};
use crate::remote::lane::{activity, segment_words};
use crate::remote::processes::invitation::Invitation;
use crate::remote::reactor::member::{self, Driver};
use crate::remote::reactor::{Connection, Incoming, Waker};
use crate::remote::store::RemoteStore;
use crate::replies::Replies;
use crate::shared_ring::{Memory, Reader};

/// Timeout for sending the last messages before the process goes on.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves as a worker: joins the controller, and calls `run` with the worker's end of the lane.
///
/// # Errors
/// The controller does not listen, refuses this process, or is lost; or the error of `run`, which is also reported to
/// the controller.
pub fn serve<F>(invitation: &Invitation, run: F) -> Result<()>
where
    F: FnOnce(WorkerId, WorkerConfig, ProcessEndpoint) -> Result<()>,
{
    serve_in_subset(None, invitation, run)
}

/// [`serve`]; with the link of another worker of this process for a worker of a subset, whose end leaves the process
/// alone.
pub(crate) fn serve_in_subset<F>(parent: Option<&Link>, invitation: &Invitation, run: F) -> Result<()>
where
    F: FnOnce(WorkerId, WorkerConfig, ProcessEndpoint) -> Result<()>,
{
    let Joined { connection, waker, incoming, welcome, ring, activity } = Joined::join(invitation)?;
    let (worker, config) = (invitation.worker, welcome.config);
    let store = Arc::new(RemoteStore::new(connection.clone()));
    let (arena, has_nodes) = (Arena::new(config.world.per_node())?, config.world.nodes() > 1);
    let link = link::over(&store, worker, arena, activity, &connection, has_nodes);
    let link = Arc::new(match parent {
        Some(other) => link.in_subset_of(other),
        None => link,
    });
    let activity = link.activity().clone();
    let letterbox = Arc::new(Letterbox::new(ring.as_ref().map(|ring| ring.memory.clone()), waker.clone()));
    let end = Arc::new(End::default());
    let host = Service {
        connection: connection.clone(),
        letterbox: letterbox.clone(),
        link: link.clone(),
        store,
        rests: false,
        end: end.clone(),
        owns_process: parent.is_none(),
    };
    let member = Member::worker(welcome.heartbeat, config.value_limit, Instant::now());
    let mut driver =
        Driver { member, connection: connection.clone(), incoming, waker: waker.clone(), host, is_busy: false };
    let service = thread::Builder::new().name(format!("disco-service-{}", worker.index())).spawn(move || driver.run());
    let service =
        service.map_err(|error| Error::system(format!("{worker}: its service thread can't be started"), error))?;
    let has_ring = ring.is_some();
    let replies = ring.as_ref().map(|ring| (Replies::new(ring.memory.clone()), ring.place));
    let reader = ring.map(|ring| (ring.place as u64, ring.reader));
    let endpoint = ProcessEndpoint {
        worker,
        connection: connection.clone(),
        commands: Commands::new(worker, connection.clone(), reader, letterbox),
        link,
        value_limit: config.value_limit,
        replies,
        shares_memory: has_ring,
    };
    let result = run(worker, config, endpoint);
    // The process may outlive the session, so the service thread is told to end.
    end.is_served.store(true, Ordering::Release);
    waker.wake();
    // Without a ring, the controller has no memory to read the records from.
    let records = (config.recorder.has_timeline() && !has_ring).then_some(&*activity);
    say_goodbye(&connection, &result, records);
    if end.is_stopped.load(Ordering::Acquire) { result.and(service.join().unwrap_or(Ok(()))) } else { result }
}

/// The last messages of a worker: its records, if they are to be sent, and how it ends.
fn say_goodbye(connection: &Connection, result: &Result<()>, records: Option<&Activity>) {
    let records = records.map(|activity| Message::Recording(activity.encode(MAX_SENT_RECORDS).into()));
    let end =
        result.as_ref().map_or_else(|error| Message::Bye(error.to_string()), |()| Message::Signal(Signal::Shutdown));
    for last in records.into_iter().chain([end]) {
        // Fails only if the connection is closed already.
        _ = last.encode().and_then(|packet| connection.send_last(packet));
    }
    connection.drain(FLUSH_TIMEOUT);
}

/// A worker that the controller has admitted.
struct Joined {
    connection: Arc<Connection>,
    waker: Arc<Waker>,
    incoming: Incoming,
    welcome: Welcome,
    ring: Option<OpenRing>,
    /// Its records, in the ring's memory if there is one.
    activity: Activity,
}

/// The ring of commands.
struct OpenRing {
    memory: Memory,
    reader: Reader,
    /// The worker's place among the readers.
    place: usize,
}

impl Joined {
    fn join(invitation: &Invitation) -> Result<Self> {
        let refused = |error| Error::system(format!("{} can't make an eventfd", invitation.worker), error);
        let waker = Arc::new(Waker::new().map_err(refused)?);
        let connection = Arc::new(connect(invitation, &waker)?);
        let mut incoming = Incoming::new(MAX_PACKET_BYTES);
        let welcome = introduce(invitation, &connection, &mut incoming, &waker)?;
        let limit = packet_limit(welcome.config.value_limit);
        incoming.set_limit(limit);
        incoming.accept_reused_memory();
        connection.serve(1, limit);
        let recorder = welcome.config.recorder;
        let ring = welcome.ring.map(|place| OpenRing::open(&mut incoming, place, recorder)).transpose()?;
        let (ring, activity) = ring.unzip();
        let activity = activity.unwrap_or_else(|| Activity::new(recorder));
        Ok(Self { connection, waker, incoming, welcome, ring, activity })
    }
}

fn connect(invitation: &Invitation, waker: &Arc<Waker>) -> Result<Connection> {
    let connect = || {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&invitation.socket)?)?;
        // Another user may have taken the abstract name after the controller ended.
        if sockopt::socket_peercred(&stream)?.uid == rustix::process::geteuid() {
            Connection::new(stream, waker.clone())
        } else {
            Err(io::Error::other("its socket is another user's"))
        }
    };
    connect().map_err(|error| {
        let why = format!("{} can't connect to it: {error}", invitation.worker);
        controller_lost(LossCause::ConnectionFailed(why))
    })
}

fn introduce(
    invitation: &Invitation,
    connection: &Connection,
    incoming: &mut Incoming,
    waker: &Waker,
) -> Result<Welcome> {
    let hello = Hello {
        token: invitation.token.clone(),
        worker: invitation.worker,
        // The worker runs on the thread that has introduced it.
        thread: rustix::thread::gettid().as_raw_nonzero().get() as u32,
        functions: function::names().into_iter().map(str::to_owned).collect(),
    };
    let mut joining = Joining::new(Message::Hello(hello), Instant::now());
    match member::join(&mut joining, connection, incoming, waker, || {}, |_| Ok(Vec::new()))? {
        Ok(Message::Welcome(welcome)) => Ok(welcome),
        Ok(other) => Err(Error::protocol(format!("the controller sent {other:?} before WELCOME"))),
        Err(why) => Err(controller_lost(why)),
    }
}

impl OpenRing {
    /// Opens the ring, and the worker's records behind it.
    fn open(incoming: &mut Incoming, place: RingPlace, recorder: RecorderConfig) -> Result<(Self, Activity)> {
        let RingPlace { reader, readers, capacity } = place;
        if reader >= readers {
            return Err(Error::protocol(format!("place {reader} in a ring for {readers} readers")));
        }
        let words = segment_words(readers, capacity, recorder);
        let segment = Arc::new(Segment::open(incoming.take_fd()?, 8 * words)?);
        let memory = Memory::new(segment.clone(), readers, capacity)?;
        let activity = activity(&segment, (reader, readers, capacity), recorder)?;
        Ok((Self { reader: Reader::new(memory.clone(), reader), memory, place: reader }, activity))
    }
}
