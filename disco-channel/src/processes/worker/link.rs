//! A worker's way to its controller and peers, beside the commands.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use disco_core::abort::AbortRegistry;
use disco_core::activity::Activity;
use disco_core::channel::Notice;
use disco_core::link::SharedFd;
use disco_core::shared_memory::Arena;
use disco_core::store::{SharedStore as _, View};
use disco_core::wire::{self, Message};
use disco_core::{Abort, Error, Link, Result, Store, WorkerId};

use crate::reactor::Connection;
use crate::remote_store::{ANSWER_LIMIT, RemoteStore};

/// The link of a worker that is a process of its own.
pub(super) struct ProcessLink {
    worker: WorkerId,
    connection: Arc<Connection>,
    pub(super) store: Arc<RemoteStore>,
    aborts: AbortRegistry,
    activity: Arc<Activity>,
    arena: Option<Arc<Arena>>,
    shared: AtomicU32,
}

impl ProcessLink {
    pub(super) fn new(worker: WorkerId, connection: Arc<Connection>, arena: Option<Arc<Arena>>) -> Self {
        let store = Arc::new(RemoteStore::new(connection.clone()));
        Self {
            worker,
            connection,
            store,
            aborts: AbortRegistry::default(),
            activity: Arc::default(),
            arena,
            shared: AtomicU32::new(0),
        }
    }

    /// Aborts whoever waits on peers, unless `epoch` is over.
    pub(super) fn abort(&self, epoch: u64, cause: &Arc<str>) {
        self.aborts.abort(epoch, cause);
        self.store.abort(epoch, cause);
    }

    fn send(&self, message: &Message, fd: Option<OwnedFd>) -> Result<()> {
        self.connection.send(message.encode()?, fd)
    }
}

impl Link for ProcessLink {
    fn notify(&self, notice: Notice) {
        let told = wire::encode_notice(&notice).and_then(|packet| self.send(&Message::Notice(packet.into()), None));
        if let Err(error) = told {
            tracing::warn!(%notice, %error, "the controller can't be told");
        }
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(View::new(self.store.clone(), self.aborts.epoch()))
    }

    fn on_abort(&self, abort: &Arc<dyn Abort>) {
        self.aborts.listen(abort);
    }

    fn reset(&self, epoch: u64) {
        self.aborts.reset(epoch);
        self.store.begin(epoch);
    }

    fn share(&self, fd: OwnedFd) -> Result<SharedFd> {
        let name = SharedFd::of(self.worker, self.shared.fetch_add(1, Ordering::Relaxed));
        // Its name may reach a peer by other ways than the controller's: it is known before.
        self.store.ask(Some(fd), "share", ANSWER_LIMIT, |id| Message::Share { id, name: name.to_bits() })?;
        Ok(name)
    }

    fn unshare(&self, fd: SharedFd) {
        if let Err(error) = self.send(&Message::Unshare(fd.to_bits()), None) {
            tracing::debug!(%error, ?fd, "can't be taken back");
        }
    }

    fn receive(&self, fd: SharedFd, deadline: Duration) -> Result<OwnedFd> {
        let question = |id| Message::Receive { id, name: fd.to_bits() };
        let (_, came) = self.store.ask(None, "receive", deadline, question)?;
        came.ok_or_else(|| Error::protocol(format!("{fd:?} did not come along")))
    }

    fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
    }
}

impl fmt::Debug for ProcessLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLink").field("worker", &self.worker).finish_non_exhaustive()
    }
}
