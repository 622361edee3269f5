//! What a node and its workers say, on its way to the controller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use disco_core::channel::{Inbox, Notice, Reply};
use disco_core::wire::{self, Message};
use disco_core::{Error, Result, WorkerId, WorkerRange};

use crate::engine::member::upward::{self, Priority};
use crate::engine::reply;
use crate::reactor::{Connection, Waker};

/// Bytes that may wait to be sent before threads that print wait.
const PRINT_BACKLOG: usize = 1 << 20;
/// Interval at which a thread that prints looks at the backlog.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The inbox of a node's own lane.
#[derive(Debug)]
pub(super) struct Upstream {
    connection: Arc<Connection>,
    waker: Arc<Waker>,
    /// Bytes of the value of a reply.
    value_limit: usize,
    /// The node ends: no reply is held back, since the connection may send nothing more.
    ends: AtomicBool,
}

impl Upstream {
    pub(super) fn new(connection: Arc<Connection>, waker: Arc<Waker>, value_limit: usize) -> Self {
        Self { connection, waker, value_limit, ends: AtomicBool::new(false) }
    }

    /// Holds no reply back from now on.
    pub(super) fn end(&self) {
        self.ends.store(true, Ordering::Release);
    }

    /// A worker has printed a line. Waits while the connection does not keep up.
    pub(super) fn print(&self, worker: WorkerId, is_err: bool, line: &[u8]) {
        while self.connection.backlog() > PRINT_BACKLOG && !self.connection.is_cut() {
            thread::sleep(POLL_INTERVAL);
        }
        self.tell_last(&upward::from(worker, Message::Output { is_err, line: line.into() }));
    }

    /// Sends a message ahead of frames and of the parts of large packets.
    pub(super) fn tell(&self, message: &Message) {
        self.send(message, Priority::Urgent);
    }

    /// Sends a message behind all others.
    pub(super) fn tell_last(&self, message: &Message) {
        self.send(message, Priority::Last);
    }

    fn send(&self, message: &Message, priority: Priority) {
        let packet = message.encode();
        self.look_into(packet.and_then(|packet| match priority {
            Priority::Urgent => self.connection.send(packet, None),
            Priority::Last => self.connection.send_last(packet),
        }));
    }

    /// That the controller is gone shows when it is listened to, for it may have said why.
    fn look_into(&self, told: Result<()>) {
        if let Err(error) = told {
            tracing::debug!(%error, "the controller can't be told");
            self.waker.wake();
        }
    }
}

impl Inbox for Upstream {
    fn reply(&self, worker: WorkerId, seq: u64, reply: Reply) {
        let reply = reply::within(self.value_limit, worker, seq, reply);
        let packet = reply::encode(worker, seq, reply, |message| upward::from(worker, message));
        self.look_into(packet.and_then(|packet| self.connection.send_owned(packet)));
    }

    fn accepts_large_replies(&self) -> bool {
        self.connection.has_room() || self.ends.load(Ordering::Acquire)
    }

    fn notice(&self, worker: WorkerId, notice: Notice) {
        match wire::encode_notice(&notice) {
            Ok(packet) => self.tell(&upward::from(worker, Message::Notice(packet.into()))),
            Err(error) => tracing::warn!(%notice, %error, "the controller can't be told"),
        }
    }

    fn room(&self, _: WorkerRange) {
        self.waker.wake();
    }

    fn left(&self, left: WorkerRange) {
        for worker in left {
            let (message, priority) = upward::left(worker);
            self.send(&message, priority);
        }
    }

    fn lost(&self, lost: WorkerRange, why: Error) {
        tracing::error!(%why, "workers lost");
        for worker in lost {
            let (message, priority) = upward::lost(worker, &why);
            self.send(&message, priority);
        }
    }
}
