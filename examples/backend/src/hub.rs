//! The shared state of a communicator: a mailbox for each rank, and the cause of the abort.
//!
//! After an abort, no operation succeeds. Each rank gets a wake-up message, so that a rank that waits for its mailbox
//! sees the abort.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use disco_core::{Abort, AbortCause, Error, Result};

/// A message between ranks.
pub(crate) enum Message {
    /// Bytes of a tensor.
    Bytes(Vec<u8>),
    /// Result of `split` for the receiver: the hub of its new communicator and its rank there; none if it passed no
    /// color.
    Child(Option<(Arc<Hub>, usize)>),
    /// The sender dropped its communicator.
    Dropped,
    /// Wakes the receiver, which then checks for an abort.
    Wake,
}

/// The receiving end of a mailbox: messages with the ranks that sent them.
pub(crate) type Inbox = Receiver<(usize, Message)>;

/// The state that all ranks of one communicator share.
pub(crate) struct Hub {
    senders: Vec<Sender<(usize, Message)>>,
    /// The receiving ends; each rank takes its own once.
    inboxes: Mutex<Vec<Option<Inbox>>>,
    /// The cause of the abort, once the communicator is aborted.
    cause: Mutex<Option<AbortCause>>,
    /// Communicators made by `split`: an abort of this one aborts them, too.
    children: Mutex<Vec<Weak<Hub>>>,
    /// The session aborts the root hub only, and holds it weakly. So children keep their parents alive.
    _parent: Option<Arc<Hub>>,
}

/// Locks a mutex whose value is valid even if a thread panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// Makes the hub of `size` ranks; `parent` is the hub that was split.
    pub(crate) fn new(size: usize, parent: Option<Arc<Hub>>) -> Arc<Self> {
        let (senders, inboxes) =
            (0..size).map(|_| mpsc::channel()).map(|(sender, inbox)| (sender, Some(inbox))).unzip();
        let hub = Arc::new(Self {
            senders,
            inboxes: Mutex::new(inboxes),
            cause: Mutex::default(),
            children: Mutex::default(),
            _parent: parent.clone(),
        });
        if let Some(parent) = parent {
            lock(&parent.children).push(Arc::downgrade(&hub));
            // An abort of the parent before this line has not reached the child.
            if let Some(cause) = parent.abort_cause() {
                hub.abort(&cause);
            }
        }
        hub
    }

    /// Returns the hub of the rendezvous with this number. The first rank that calls this makes the hub.
    pub(crate) fn meet(number: u64, size: usize) -> Arc<Self> {
        static MEETINGS: Mutex<Option<HashMap<u64, Weak<Hub>>>> = Mutex::new(None);
        let mut meetings = lock(&MEETINGS);
        let meetings = meetings.get_or_insert_default();
        meetings.retain(|_, hub| hub.strong_count() > 0);
        if let Some(hub) = meetings.get(&number).and_then(Weak::upgrade) {
            return hub;
        }
        let hub = Self::new(size, None);
        meetings.insert(number, Arc::downgrade(&hub));
        hub
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.senders.len()
    }

    /// Takes the receiving end of the mailbox of `rank`.
    ///
    /// # Errors
    /// It was taken before.
    pub(crate) fn inbox(&self, rank: usize) -> Result<Inbox> {
        let inbox = lock(&self.inboxes).get_mut(rank).and_then(Option::take);
        inbox.ok_or_else(|| Error::state(format!("rank {rank} has connected before")))
    }

    /// Sends `messages` (receiver and message) without waiting. Messages to a rank that has dropped its communicator
    /// are lost.
    ///
    /// The lock orders an abort before or after all of these messages, never between them. So if an operation has
    /// succeeded on one rank, it succeeds on all ranks, even if that rank aborts the communicator next.
    pub(crate) fn post(&self, from: usize, messages: impl IntoIterator<Item = (usize, Message)>) {
        let _no_abort = lock(&self.cause);
        self.send(from, messages);
    }

    fn send(&self, from: usize, messages: impl IntoIterator<Item = (usize, Message)>) {
        messages.into_iter().for_each(|(to, message)| _ = self.senders[to].send((from, message)));
    }

    /// The cause of the abort, if the communicator is aborted.
    pub(crate) fn abort_cause(&self) -> Option<AbortCause> {
        lock(&self.cause).clone()
    }
}

impl Abort for Hub {
    fn abort(&self, cause: &AbortCause) {
        lock(&self.cause).get_or_insert_with(|| cause.clone());
        (0..self.size()).for_each(|rank| self.send(rank, [(rank, Message::Wake)]));
        let children: Vec<_> = lock(&self.children).iter().filter_map(Weak::upgrade).collect();
        children.iter().for_each(|child| child.abort(cause));
    }
}
