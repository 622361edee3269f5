//! A node of a session of TVM over sockets.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::channel::{FrameSize, Notice, Reply, Signal};
use disco_core::error::{Failure, LossCause, LostPeer};
use disco_core::wire::Packet;
use disco_core::wire::tvm::{Envelope, EnvelopeAction, Metadata};
use disco_core::{Channel, Command, Error, Frame, Inbox, Result, WorkerConfig, WorkerId, WorkerRange, World, sync};

use rustix::event::{PollFd, PollFlags};

use super::address::{self, Authentication};
use super::endpoint::{encode_reply, report, with_own_ids};
use super::packets::{Packets, packet_limit};
use crate::remote::reactor::poll;

/// How often a connection is tried.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// How often a node that waits for a reply of a worker checks whether TVM's controller has closed the connection.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Limit of the wait for workers at the end.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How a node joins a session of TVM over sockets.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// Where TVM's controller listens: `HOST:PORT`.
    pub address: String,
    /// Whether addresses other than the loopback's are permitted.
    pub authentication: Authentication,
    /// Timeout for the controller to listen.
    pub start: Duration,
}

impl JoinOptions {
    /// Defaults: only the loopback, start timeout 30 s.
    pub fn new(address: impl Into<String>) -> Self {
        let (authentication, start) = (Authentication::Required, Duration::from_secs(30));
        Self { address: address.into(), authentication, start }
    }
}

/// Serves as a node of TVM's `SocketSession` until the session ends. The node's workers are a world of their own, in one
/// group: TVM's worker `node * workers_per_node` is worker 0. `lane` makes the lane to them.
///
/// # Errors
/// The address is not permitted; TVM's controller does not listen in time, sends garbage or closes the connection
/// without a shutdown; the workers can't be started.
pub fn join<F>(options: &JoinOptions, lane: F) -> Result<()>
where
    F: FnOnce(WorkerRange, WorkerConfig) -> Result<Arc<dyn Channel>>,
{
    let mut stream = connect(options)?;
    // Each reply is a small packet of its own.
    _ = stream.set_nodelay(true);
    let mut packets = Packets::new(packet_limit(WorkerConfig::VALUE_LIMIT));
    let metadata = next(&mut packets, &mut stream)?.ok_or_else(|| lost(LossCause::ConnectionClosed))?;
    let metadata = Metadata::decode(&metadata[Packet::PREFIX..])?;
    let first = metadata.node.checked_mul(metadata.workers_per_node);
    let first = first.ok_or_else(|| Error::protocol(format!("TVM's controller sent {metadata:?}")))?;
    let config = WorkerConfig::new(World::new(metadata.workers_per_node as usize, 1)?);
    let workers = WorkerRange::new(0..metadata.workers_per_node);
    let lane = lane(workers, config)?;
    let inbox = Arc::new(Replies::new(workers, first));
    *sync::lock(&inbox.lane) = Some(Arc::downgrade(&lane));
    lane.start(inbox.clone())?;
    tracing::info!(node = metadata.node, workers = metadata.workers_per_node, "joined TVM's controller");
    let mut node = Node { lane, inbox, workers, first, seq: 0, epoch: 0, asked: HashMap::new() };
    let served = node.serve(&mut packets, &mut stream);
    _ = node.lane.signal(Signal::Shutdown);
    let closed = node.lane.close(CLOSE_LIMIT);
    served.and(closed)
}

fn connect(options: &JoinOptions) -> Result<TcpStream> {
    let addresses = address::resolve("the node", &options.address, options.authentication)?;
    let begun = Instant::now();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        for address in &addresses {
            let left = options.start.saturating_sub(begun.elapsed()).max(RETRY_INTERVAL);
            match TcpStream::connect_timeout(address, left) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        if begun.elapsed() >= options.start {
            let what = format!("TVM's controller does not answer at {} within {:?}", options.address, options.start);
            return Err(Error::system(what, last));
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

fn next(packets: &mut Packets, stream: &mut TcpStream) -> Result<Option<Vec<u8>>> {
    packets.read(stream).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Error::protocol(format!("TVM's controller sent garbage: {error}")),
        _ => lost(LossCause::ConnectionFailed(error.to_string())),
    })
}

fn lost(cause: LossCause) -> Error {
    Error::peer_lost(LostPeer::Controller, cause)
}

struct Node {
    lane: Arc<dyn Channel>,
    inbox: Arc<Replies>,
    workers: WorkerRange,
    /// TVM's id of worker 0 of the node.
    first: u32,
    seq: u64,
    epoch: u64,
    /// Commands whose replies TVM has not received.
    asked: HashMap<u64, Arc<Frame>>,
}

impl Node {
    fn serve(&mut self, packets: &mut Packets, stream: &mut TcpStream) -> Result<()> {
        loop {
            let packet = next(packets, stream)?.ok_or_else(|| lost(LossCause::ConnectionClosed))?;
            let (envelope, packet) = Envelope::unwrap_content(&packet[Packet::PREFIX..])?;
            match envelope.action {
                EnvelopeAction::Shutdown => return Ok(()),
                EnvelopeAction::Send => self.pass(&packet)?,
                EnvelopeAction::Receive => {
                    let worker = envelope.worker.and_then(|worker| (worker.index() as u32).checked_sub(self.first));
                    let worker = worker.map(WorkerId::new).filter(|worker| self.workers.contains(*worker));
                    let worker = worker.ok_or_else(|| {
                        Error::protocol(format!("TVM's controller asks for a reply of another node: {envelope:?}"))
                    })?;
                    let reply = self.reply(worker, stream)?;
                    stream.write_all(&reply).map_err(|error| lost(LossCause::ConnectionFailed(error.to_string())))?;
                }
            }
        }
    }

    /// Passes a command to the workers.
    fn pass(&mut self, packet: &[u8]) -> Result<()> {
        self.seq += 1;
        let frame = Frame::decode(self.seq, packet).map_err(|error| {
            Error::protocol(format!("command {} of TVM's controller can't be read: {error}", self.seq))
        })?;
        if matches!(frame.command(), Command::Shutdown) {
            // The session's shutdown comes with an envelope of its own.
            return Ok(());
        }
        let frame = Arc::new(with_own_ids(frame, self.first));
        if let Command::SyncWorker { worker } | Command::DebugGet { worker, .. } | Command::DebugSet { worker, .. } =
            frame.command()
            && self.workers.contains(*worker)
        {
            self.asked.insert(self.seq, frame.clone());
        }
        self.send(&frame)
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        self.inbox.wait_for_room(&*self.lane)?;
        self.lane.send(frame)
    }

    /// The next reply of a worker. After a failure, all workers of the node recover.
    fn reply(&mut self, worker: WorkerId, stream: &TcpStream) -> Result<Vec<u8>> {
        let (seq, reply) = loop {
            if let Some(reply) = self.inbox.next_reply(worker)? {
                break reply;
            }
            if poll(&mut [PollFd::new(stream, PollFlags::RDHUP)], Duration::ZERO) {
                return Err(lost(LossCause::ConnectionClosed));
            }
        };
        let theirs = WorkerId::new(self.first + worker.index() as u32);
        let asked = self.asked.remove(&seq);
        let asked = asked.ok_or_else(|| Error::state(format!("{theirs} has replied to command {seq} unasked")))?;
        let packet = encode_reply(asked.command(), theirs, seq, &reply)?;
        if reply.is_err() {
            self.seq += 1;
            self.epoch += 1;
            self.send(&Arc::new(Frame::new(self.seq, [], Command::Recover { epoch: self.epoch })))?;
        }
        Ok(packet)
    }
}

/// The replies of a node's workers, until TVM's controller asks for them.
struct Replies {
    workers: WorkerRange,
    first: u32,
    state: Mutex<State>,
    changed: Condvar,
    lane: Mutex<Option<Weak<dyn Channel>>>,
}

#[derive(Default)]
struct State {
    /// For each worker.
    replies: Vec<VecDeque<(u64, Reply)>>,
    lost: Option<Error>,
}

impl Replies {
    fn new(workers: WorkerRange, first: u32) -> Self {
        let replies = workers.iter().map(|_| VecDeque::new()).collect();
        Self {
            workers,
            first,
            state: Mutex::new(State { replies, lost: None }),
            changed: Condvar::new(),
            lane: Mutex::default(),
        }
    }

    /// The next reply of a worker; none if there is none for a while.
    fn next_reply(&self, worker: WorkerId) -> Result<Option<(u64, Reply)>> {
        let mut state = sync::lock(&self.state);
        let index = self.workers.position(worker);
        let replies = |state: &mut State| index.and_then(|index| state.replies.get_mut(index)?.pop_front());
        if let Some(reply) = replies(&mut state) {
            return Ok(Some(reply));
        }
        if state.lost.is_none() {
            state = self.changed.wait_timeout(state, CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        match (replies(&mut state), &state.lost) {
            (None, Some(error)) => Err(error.clone()),
            (reply, _) => Ok(reply),
        }
    }

    fn wait_for_room(&self, lane: &dyn Channel) -> Result<()> {
        let mut state = sync::lock(&self.state);
        loop {
            if let Some(error) = &state.lost {
                return Err(error.clone());
            }
            if lane.room(FrameSize::Large) > 0 {
                return Ok(());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Inbox for Replies {
    fn reply(&self, from: WorkerId, seq: u64, reply: Reply) {
        let mut state = sync::lock(&self.state);
        if let Some(replies) = self.workers.position(from).and_then(|index| state.replies.get_mut(index)) {
            replies.push_back((seq, reply));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Prints the failure, and ends collectives of the other workers.
    fn notice(&self, from: WorkerId, notice: Notice) {
        match notice {
            Notice::Failed { epoch, failure } => {
                let theirs = WorkerId::new(self.first + from.index() as u32);
                report(&Failure { worker: theirs, ..(*failure).clone() });
                let lane = sync::lock(&self.lane).as_ref().and_then(Weak::upgrade);
                if let Some(lane) = lane {
                    _ = lane.signal(Signal::Abort { epoch, cause: failure.to_string().into() });
                }
            }
            other => tracing::warn!(%other, "not sent: TVM's controller does not understand it"),
        }
    }

    fn room(&self, _: WorkerRange) {
        drop(sync::lock(&self.state));
        self.changed.notify_all();
    }

    fn left(&self, _: WorkerRange) {}

    fn lost(&self, _: WorkerRange, why: Error) {
        sync::lock(&self.state).lost.get_or_insert(why);
        self.changed.notify_all();
    }
}
