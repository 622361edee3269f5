//! Sends the reports of a node and its workers to the controller.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::channel::{Inbox, Notice, Reply, Signal};
use disco_core::status::Status;
use disco_core::store::SharedStore as _;
use disco_core::wire::{self, Assignment, Message};
use disco_core::{Channel, Command, Error, Frame, Members, Result, Value, WorkerId, WorkerRange, WorkerSet, sync};
use disco_engine::member::upward::{self, Priority};
use disco_engine::reply;

use crate::remote::reactor::{Connection, Waker};
use crate::remote::store::RemoteStore;

/// Unsent bytes above which threads that print wait (back-pressure).
const PRINT_BACKLOG: usize = 1 << 20;
/// How often a waiting thread checks the backlog.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The inbox of a node's lane: to its own workers, and to those of the nodes behind it.
#[derive(Debug)]
pub(super) struct Upstream {
    connection: Arc<Connection>,
    waker: Arc<Waker>,
    store: Arc<RemoteStore>,
    /// The lane whose inbox this is, which owns it.
    lane: OnceLock<Weak<dyn Channel>>,
    /// Largest value of one reply, in bytes.
    value_limit: usize,
    replies: Mutex<upward::Replies>,
    departures: Mutex<upward::Departures>,
    /// Workers of this node that have a successor, which another `Upstream` serves.
    replaced: Mutex<WorkerSet>,
    /// The lane has started. A lane whose start fails ends its workers, which is no news to the controller.
    has_started: AtomicBool,
    /// Number of the last command that the node has passed on.
    commands: AtomicU64,
    /// The epoch of the last command that the node has passed on.
    epoch: AtomicU64,
    /// The workers of the session since its last resize.
    members: Mutex<Option<Arc<Members>>>,
    /// The node ends: replies no longer wait, since the connection may send nothing more.
    ends: AtomicBool,
}

impl Upstream {
    pub(super) fn new(
        connection: Arc<Connection>,
        waker: Arc<Waker>,
        store: Arc<RemoteStore>,
        assignment: &Assignment,
    ) -> Self {
        let (value_limit, workers) = (assignment.config.value_limit, assignment.workers);
        let (replies, departures) = (upward::Replies::new(workers).into(), upward::Departures::new(workers).into());
        let replaced = WorkerSet::new(workers).into();
        let (has_started, ends, commands, epoch, members, lane) = Default::default();
        Self {
            connection,
            waker,
            store,
            lane,
            value_limit,
            replies,
            departures,
            replaced,
            has_started,
            commands,
            epoch,
            members,
            ends,
        }
    }

    /// Sets the lane whose inbox this is.
    pub(super) fn set_lane(&self, lane: &Arc<dyn Channel>) {
        self.lane.get_or_init(|| Arc::downgrade(lane));
    }

    fn members(&self) -> Option<Arc<Members>> {
        sync::lock(&self.members).clone()
    }

    /// Aborts operations of this node's workers and of those behind it, and their calls of the store.
    pub(super) fn abort(&self, abort: Signal) {
        let Some(lane) = self.lane.get().and_then(Weak::upgrade) else { return };
        if let Signal::Abort { epoch, cause } = &abort {
            self.store.abort(*epoch, cause);
        }
        if let Err(error) = lane.signal(abort) {
            tracing::debug!(%error, "the node's workers can't be told of the abort");
        }
    }

    /// A function that returns the state of the node's part of the session, or `None` once `lane` is dropped.
    pub(super) fn observer(
        self: &Arc<Self>,
        assignment: &Assignment,
        lane: &Arc<dyn Channel>,
    ) -> impl Fn() -> Option<Status> + Send + Sync + 'static {
        let (this, lane, begun) = (Arc::downgrade(self), Arc::downgrade(lane), Instant::now());
        let (node, groups) = (assignment.node, assignment.config.world.groups());
        move || {
            let (this, lane) = this.upgrade().zip(lane.upgrade())?;
            let mut status = Status::default();
            (status.process, status.node, status.uptime) = (process::id(), Some(node), begun.elapsed());
            (status.groups, status.commands) = (groups, this.commands.load(Ordering::Relaxed));
            lane.describe(&mut status);
            let replaced = sync::lock(&this.replaced);
            status.workers.retain(|it| !replaced.contains(WorkerId::new(it.worker as u32)));
            Some(status)
        }
    }

    /// Lost workers of this node get successors.
    pub(super) fn note_replaced(&self, workers: WorkerRange) {
        sync::lock(&self.replaced).insert(workers);
    }

    /// Replies to a frame that is about to be passed on may go up together.
    pub(super) fn expect(&self, frame: &Frame) {
        self.commands.store(frame.seq(), Ordering::Relaxed);
        if let Some(epoch) = frame.command().epoch() {
            self.epoch.store(epoch, Ordering::Relaxed);
        }
        if let Command::Resize { members, .. } = frame.command() {
            *sync::lock(&self.members) = Some(members.clone());
        }
        self.lock().expect(frame);
    }

    /// Sends the replies that wait for those of other workers. Later ones go alone.
    pub(super) fn split(&self) {
        let mut replies = self.lock();
        replies.split().iter().for_each(|reply| self.send_urgent(reply));
    }

    /// Sends the replies that wait for those of other workers, and expects none of these `workers` any more.
    fn retire(&self, workers: WorkerRange) {
        let mut replies = self.lock();
        replies.split().iter().for_each(|reply| self.send_urgent(reply));
        replies.retire(workers);
    }

    /// Sends the replies that wait for those of other workers. Later ones wait again.
    pub(super) fn flush(&self) {
        let mut replies = self.lock();
        replies.flush().iter().for_each(|reply| self.send_urgent(reply));
    }

    /// Locked until the messages are sent: a worker must not be reported as left before its reply.
    fn lock(&self) -> MutexGuard<'_, upward::Replies> {
        sync::lock(&self.replies)
    }

    /// The lane has started.
    pub(super) fn start(&self) {
        self.has_started.store(true, Ordering::Release);
    }

    /// Large replies no longer wait for the connection.
    pub(super) fn end(&self) {
        self.ends.store(true, Ordering::Release);
    }

    /// Forwards a line that a worker has printed. Blocks while too many bytes are unsent.
    pub(super) fn print(&self, worker: WorkerId, is_err: bool, line: &[u8]) {
        while self.connection.backlog() > PRINT_BACKLOG && !self.connection.is_cut() {
            thread::sleep(POLL_INTERVAL);
        }
        self.send_last(&upward::from(worker, Message::Output { is_err, line: line.into() }));
    }

    /// Sends a message ahead of frames and of the parts of large packets.
    pub(super) fn send_urgent(&self, message: &Message) {
        self.send(message, Priority::Urgent);
    }

    /// Sends a message behind all others.
    pub(super) fn send_last(&self, message: &Message) {
        self.send(message, Priority::Last);
    }

    fn send(&self, message: &Message, priority: Priority) {
        let packet = message.encode();
        self.log_failure(packet.and_then(|packet| match priority {
            Priority::Urgent => self.connection.send(packet, None),
            Priority::Last => self.connection.send_last(packet),
        }));
    }

    /// Logs a failed send. The driver notices the lost controller when it reads, where the reason may still be found.
    fn log_failure(&self, result: Result<()>) {
        if let Err(error) = result {
            tracing::debug!(%error, "a message can't be sent to the controller");
            self.waker.wake();
        }
    }
}

impl Inbox for Upstream {
    fn reply(&self, worker: WorkerId, seq: u64, reply: Reply) {
        match reply {
            Ok(Value::None) => return self.replies(worker.into(), seq),
            Err(_) => self.split(),
            Ok(_) => {}
        }
        let reply = reply::within(self.value_limit, worker, seq, reply);
        let packet = reply::encode(worker, seq, reply, |message| upward::from(worker, message));
        self.log_failure(packet.and_then(|packet| self.connection.send_owned(packet)));
    }

    fn replies(&self, workers: WorkerRange, seq: u64) {
        let mut replies = self.lock();
        replies.add(workers, seq).iter().for_each(|message| self.send_urgent(message));
    }

    fn accepts_large_replies(&self) -> bool {
        self.connection.has_room() || self.ends.load(Ordering::Acquire)
    }

    fn notice(&self, worker: WorkerId, notice: Notice) {
        match wire::encode_notice(&notice) {
            Ok(packet) => self.send_urgent(&upward::from(worker, Message::Notice(packet.into()))),
            Err(error) => tracing::warn!(%notice, %error, "a message can't be sent to the controller"),
        }
        // Reported before the abort, so that the controller receives this failure before the failures that the abort causes.
        let members = self.members();
        upward::abort_after_failure(&notice, members.as_deref()).into_iter().for_each(|abort| self.abort(abort));
    }

    fn recording(&self, worker: WorkerId, bytes: Arc<[u8]>) {
        self.send_last(&upward::from(worker, Message::Recording(bytes)));
    }

    fn room(&self, _: WorkerRange) {
        self.waker.wake();
    }

    fn left(&self, left: WorkerRange) {
        if !self.has_started.load(Ordering::Acquire) {
            return;
        }
        self.retire(left);
        let departure = sync::lock(&self.departures).add(left);
        departure.iter().for_each(|(message, priority)| self.send(message, *priority));
    }

    fn lost(&self, lost: WorkerRange, why: Error) {
        tracing::error!(%why, "workers lost");
        // Read before the controller knows: it may replace the workers and begin the next epoch at once.
        let epoch = self.epoch.load(Ordering::Relaxed);
        self.retire(lost);
        let (messages, priority) = upward::workers_lost(lost, &why);
        messages.iter().for_each(|message| self.send(message, priority));
        self.abort(upward::abort_after_loss(epoch, why, self.members().as_deref()));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use disco_core::error::{ErrorKind, Failure, LossCause, LostPeer, Node};
    use disco_core::{WorkerConfig, World};

    use super::super::doubles::Lane;
    use super::*;
    use crate::remote::reactor::Incoming;

    #[test]
    fn a_failure_or_a_loss_aborts_the_node_s_workers_once_it_is_reported() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let waker = Arc::new(Waker::new().unwrap());
        let connect = |socket| Arc::new(Connection::new(socket, waker.clone()).unwrap());
        let (connection, other) = (connect(ours), connect(theirs));
        let store = Arc::new(RemoteStore::new(connection.clone()));
        let second = std::time::Duration::from_secs(1);
        let assignment = Assignment {
            behind: [].into(),
            node: 1,
            workers: WorkerRange::new(2..4),
            processes: false,
            config: WorkerConfig::new(World::new(4, 1).unwrap()),
            heartbeat: second,
            silence: 5 * second,
            start: 30 * second,
        };
        let upstream = Upstream::new(connection, waker.clone(), store, &assignment);
        let lane = Arc::new(Lane::default());
        upstream.set_lane(&(lane.clone() as Arc<dyn Channel>));
        let mut incoming = Incoming::new(1 << 20);
        let mut is_reported = || {
            incoming.fill(&other).unwrap();
            incoming.next().unwrap().is_some()
        };

        let worker = WorkerId::new(2);
        let fail = |aborted| {
            let (operation, message, kind) = ("f".into(), "no".into(), ErrorKind::User);
            let (causes, register, user) = (Vec::new(), None, None);
            let failure = Failure { worker, command: 1, operation, register, message, causes, aborted, kind, user };
            upstream.notice(worker, Notice::Failed { epoch: 3, failure: Arc::new(failure) });
        };
        fail(true);
        assert!(is_reported() && lane.aborts().is_empty(), "it follows from an abort");
        fail(false);
        let aborts = lane.aborts();
        assert!(is_reported() && aborts[0].0 == 3 && aborts[0].1.starts_with("worker 2: f"), "{aborts:?}");

        upstream.expect(&Frame::new(9, [], Command::Recover { epoch: 3 }));
        let node = Node::new(2, "node 2");
        let workers = WorkerRange::new(3..4);
        let lost = Error::peer_lost(LostPeer::Node { node, behind: 0, workers }, LossCause::ConnectionClosed);
        upstream.lost(workers, lost.clone());
        assert!(is_reported());
        assert_eq!(lane.aborts(), [(3, lost.to_string())]);

        // Worker 0 has left the session, so the numbers of the other workers differ from their places.
        let members = Members::new(World::new(3, 1).unwrap(), [1, 2, 3].map(WorkerId::new)).unwrap();
        upstream.expect(&Frame::new(10, [], Command::Resize { epoch: 4, members: members.into() }));
        fail(false);
        let aborts = lane.aborts();
        assert!(is_reported() && aborts[0].1.starts_with("worker 1: f"), "{aborts:?}");
        upstream.lost(workers, lost);
        let aborts = lane.aborts();
        assert!(is_reported() && aborts[0].1.contains("worker 2"), "{aborts:?}");
    }
}
