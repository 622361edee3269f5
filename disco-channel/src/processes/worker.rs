//! The life of a worker's process.

use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::activity::Progress;
use disco_core::shared_memory::{Arena, Segment};
use disco_core::wire::{Hello, Message, RingPlace, Welcome};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Link, Result, WorkerId, function};
use rustix::event::{self, PollFd, PollFlags, Timespec};

use super::commands::{Commands, Letterbox};
use super::connection::{Connection, Incoming, PACKET};
use super::endpoint::ProcessEndpoint;
use super::invitation::Invitation;
use super::link::ProcessLink;
use super::waker::Waker;
use crate::shared_ring::{Memory, Reader};

/// How long the controller may take to answer.
const WELCOME: Duration = Duration::from_secs(30);
/// How long a worker whose controller is gone has to end by itself.
const ORPHAN: Duration = Duration::from_secs(4);
/// How often what the worker does is looked at, at least.
const LOOK: Duration = Duration::from_millis(200);
/// How long what was sent last may take to go.
const FAREWELL: Duration = Duration::from_secs(5);

/// Serves as a worker: joins the controller, and calls `run` with its end of the lane.
///
/// # Errors
/// The controller is not there or refuses; or `run`'s own, of which the controller is told.
pub fn serve<F>(invitation: &Invitation, run: F) -> Result<()>
where
    F: FnOnce(WorkerId, WorkerConfig, ProcessEndpoint) -> Result<()>,
{
    let worker = invitation.worker;
    let waker = Arc::new(Waker::new().map_err(|error| Error::invalid(format!("{worker}: {error}")))?);
    let connection = Arc::new(connect(invitation, &waker)?);
    let mut incoming = Incoming::new(PACKET);
    let welcome = introduce(invitation, &connection, &mut incoming)?;
    let ring = welcome.ring.map(|place| open_ring(&mut incoming, place)).transpose()?;
    let arena = Arena::new().inspect_err(|error| tracing::warn!(%worker, %error, "no shared memory for tensors")).ok();
    let link = Arc::new(ProcessLink::new(worker, connection.clone(), arena));
    let (memory, reader) = ring.unzip();
    let letterbox = Arc::new(Letterbox::new(memory));
    let place = welcome.ring.map_or(0, |place| place.reader as u64);
    let reader = reader.map(|reader| (place, reader));
    let commands = Commands::new(worker, connection.clone(), reader, letterbox.clone());
    let endpoint = ProcessEndpoint { worker, connection: connection.clone(), commands, link: link.clone() };
    let service = Service {
        connection: connection.clone(),
        incoming,
        waker,
        letterbox,
        link,
        heartbeat: welcome.heartbeat,
        said: Progress::default(),
        last: Instant::now(),
    };
    let started = thread::Builder::new().name(format!("disco-service-{}", worker.index())).spawn(|| service.run());
    started.map_err(|error| Error::invalid(format!("{worker}: its service thread can't be started: {error}")))?;
    let result = run(worker, welcome.config, endpoint);
    if let Err(error) = &result {
        connection.send(Message::Bye(error.to_string()).encode()?, None)?;
    }
    drain(&connection);
    result
}

fn connect(invitation: &Invitation, waker: &Arc<Waker>) -> Result<Connection> {
    let connect = || {
        let address = SocketAddr::from_abstract_name(&invitation.socket)?;
        Connection::new(UnixStream::connect_addr(&address)?, waker.clone())
    };
    connect().map_err(|error| Error::Lost {
        workers: "the controller".into(),
        why: format!("{} can't connect to it: {error}", invitation.worker),
    })
}

fn introduce(invitation: &Invitation, connection: &Connection, incoming: &mut Incoming) -> Result<Welcome> {
    let hello = Hello {
        token: invitation.token.clone(),
        worker: invitation.worker,
        process: process::id(),
        functions: function::names().into_iter().map(str::to_owned).collect(),
    };
    connection.send(Message::Hello(hello).encode()?, None)?;
    let start = Instant::now();
    loop {
        if let Some(message) = incoming.next()? {
            return match message {
                Message::Welcome(welcome) => Ok(welcome),
                Message::Bye(why) => {
                    Err(Error::invalid(format!("the controller refuses {}: {why}", invitation.worker)))
                }
                other => Err(Error::invalid(format!("the controller says {other:?} before welcome"))),
            };
        }
        let gone = |why: &str| Error::Lost { workers: "the controller".into(), why: why.into() };
        if incoming.is_closed() {
            return Err(gone("it closed the connection"));
        }
        let left = WELCOME.checked_sub(start.elapsed()).ok_or_else(|| gone("it did not answer"))?;
        wait(connection, left);
        connection.flush()?;
        incoming.fill(connection)?;
    }
}

fn open_ring(incoming: &mut Incoming, place: RingPlace) -> Result<(Memory, Reader)> {
    let RingPlace { reader, readers, capacity } = place;
    if reader >= readers {
        return Err(Error::invalid(format!("place {reader} in a ring for {readers} readers")));
    }
    let segment = Segment::open(incoming.take_fd()?, 8 * Memory::words(readers, capacity))?;
    let memory = Memory::new(Arc::new(segment), readers, capacity)?;
    Ok((memory.clone(), Reader::new(memory, reader)))
}

/// Waits until something comes, or can be sent if something is to be.
fn wait(connection: &Connection, limit: Duration) {
    let mut events = PollFlags::IN;
    events.set(PollFlags::OUT, connection.is_behind());
    let limit = Timespec::try_from(limit).ok();
    // A signal ends it early, as it may.
    _ = event::poll(&mut [PollFd::new(connection, events)], limit.as_ref());
}

/// Sends what is left to be sent.
fn drain(connection: &Connection) {
    let start = Instant::now();
    while let (Ok(false), Some(left)) = (connection.flush(), FAREWELL.checked_sub(start.elapsed())) {
        let limit = Timespec::try_from(left).ok();
        _ = event::poll(&mut [PollFd::new(connection, PollFlags::OUT)], limit.as_ref());
    }
}

/// What goes on beside the commands, on a thread of its own, also while a function runs.
struct Service {
    connection: Arc<Connection>,
    incoming: Incoming,
    waker: Arc<Waker>,
    letterbox: Arc<Letterbox>,
    link: Arc<ProcessLink>,
    heartbeat: Duration,
    /// What the controller was told last, and when.
    said: Progress,
    last: Instant,
}

impl Service {
    /// Serves until the controller is gone, and then ends the process unless that happens by itself.
    fn run(mut self) {
        let why = loop {
            match self.step() {
                Ok(true) => {}
                Ok(false) => break "the controller is gone".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        self.link.abort(u64::MAX, &why.as_str().into());
        self.letterbox.close();
        thread::sleep(ORPHAN);
        tracing::error!(%why, "killed, since the worker's thread did not end");
        _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }

    /// Waits for what comes next. False: the controller is gone.
    fn step(&mut self) -> Result<bool> {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, self.connection.is_behind());
        let tick = Timespec::try_from((self.heartbeat / 5).min(LOOK)).ok();
        let mut polled =
            [PollFd::from_borrowed_fd(self.connection.as_fd(), events), PollFd::new(&*self.waker, PollFlags::IN)];
        _ = event::poll(&mut polled, tick.as_ref());
        self.waker.hear();
        self.connection.flush()?;
        while self.incoming.fill(&self.connection)? {}
        while let Some(message) = self.incoming.next()? {
            self.hear(message)?;
        }
        self.say_progress()?;
        Ok(!self.incoming.is_closed())
    }

    fn hear(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Frame { seq, bytes } => self.letterbox.put(seq, bytes),
            Message::Abort { epoch, cause } => self.link.abort(epoch, &cause),
            Message::Shutdown => self.letterbox.close(),
            Message::Answer { id, result } => self.link.questions.answer(id, result.map(|value| (value, None))),
            Message::Handed { id } => {
                let fd = self.incoming.take_fd()?;
                self.link.questions.answer(id, Ok((disco_core::Value::None, Some(fd))));
            }
            Message::Bye(why) => return Err(Error::invalid(format!("the controller says: {why}"))),
            other => return Err(Error::invalid(format!("the controller says {other:?}"))),
        }
        Ok(())
    }

    /// Tells what the worker does, if that has changed or was not said for long.
    fn say_progress(&mut self) -> Result<()> {
        let progress = self.link.activity().progress();
        if progress != self.said || self.last.elapsed() >= self.heartbeat {
            self.connection.send(Message::Progress(progress.clone()).encode()?, None)?;
            (self.said, self.last) = (progress, Instant::now());
        }
        Ok(())
    }
}
