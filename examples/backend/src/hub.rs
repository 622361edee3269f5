//! What all ranks of a communicator share: their mailboxes, and why the communicator ended.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use disco_core::{Abort, Error, Result};

/// What a rank finds in its mailbox.
pub(crate) enum Letter {
    /// Bytes of a tensor.
    Bytes(Vec<u8>),
    /// The receiver's place in a communicator that was split off, if it has one there: the hub and the rank.
    Place(Option<(Arc<Hub>, usize)>),
    /// The sender dropped its communicator.
    Gone,
    /// Nothing: the receiver looks whether the communicator has ended.
    Wake,
}

/// The receiving end of a mailbox. Letters carry the rank that sent them.
pub(crate) type Inbox = Receiver<(usize, Letter)>;

/// One communicator, as all of its ranks share it.
pub(crate) struct Hub {
    senders: Vec<Sender<(usize, Letter)>>,
    /// Each rank takes its own.
    inboxes: Mutex<Vec<Option<Inbox>>>,
    /// Why no operation succeeds any more.
    cause: Mutex<Option<Arc<str>>>,
    /// An abort reaches communicators that were split off.
    children: Mutex<Vec<Weak<Hub>>>,
    /// Kept alive, so that the session's abort still reaches this hub when the parent's communicators are dropped.
    _parent: Option<Arc<Hub>>,
}

/// Locks a mutex whose value is valid even if a thread panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// A hub for `size` ranks.
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
            // The parent may have ended before the child was on its list.
            if let Some(cause) = parent.ended() {
                hub.abort(&cause);
            }
        }
        hub
    }

    /// The hub of the communicator with this number, which the first rank to arrive makes.
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

    /// The mailbox of `rank`, once.
    ///
    /// # Errors
    /// The rank has taken it before.
    pub(crate) fn inbox(&self, rank: usize) -> Result<Inbox> {
        let inbox = lock(&self.inboxes).get_mut(rank).and_then(Option::take);
        inbox.ok_or_else(|| Error::state(format!("rank {rank} has connected before")))
    }

    /// Puts letters into mailboxes: receivers and letters. Does not wait for receivers. A rank that is gone does not read its letter.
    ///
    /// An abort comes before all of the letters or behind all of them. So an operation that one rank has finished succeeds on all ranks,
    /// even if that rank aborts the communicator next.
    pub(crate) fn post(&self, from: usize, letters: impl IntoIterator<Item = (usize, Letter)>) {
        let _no_abort = lock(&self.cause);
        self.send(from, letters);
    }

    fn send(&self, from: usize, letters: impl IntoIterator<Item = (usize, Letter)>) {
        letters.into_iter().for_each(|(to, letter)| _ = self.senders[to].send((from, letter)));
    }

    /// Why the communicator ended, if it did.
    pub(crate) fn ended(&self) -> Option<Arc<str>> {
        lock(&self.cause).clone()
    }
}

impl Abort for Hub {
    fn abort(&self, cause: &Arc<str>) {
        lock(&self.cause).get_or_insert_with(|| cause.clone());
        (0..self.size()).for_each(|rank| self.send(rank, [(rank, Letter::Wake)]));
        let children: Vec<_> = lock(&self.children).iter().filter_map(Weak::upgrade).collect();
        children.iter().for_each(|child| child.abort(cause));
    }
}
