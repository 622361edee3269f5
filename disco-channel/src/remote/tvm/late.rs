//! The store and the descriptors of a worker of TVM's session, which exist once the workers have met.

use std::fmt::{self, Debug};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use disco_core::channel::Notice;
use disco_core::error::Failure;
use disco_core::link::{Descriptors, SharedFd};
use disco_core::store::SharedStore;
use disco_core::wire::StoreCall;
use disco_core::{Error, Link, Result, Value, sync};

/// The one worker of this process.
static OF_PROCESS: OnceLock<(Arc<Late>, Weak<Link>)> = OnceLock::new();

/// A store and descriptors that calls are passed on to after a meeting. Each meeting starts with an empty store, so
/// epochs of workers are ignored.
#[derive(Default)]
pub(super) struct Late {
    met: Mutex<Option<Met>>,
}

/// The result of a meeting.
pub(super) struct Met {
    /// The link with the store and the descriptors of the meeting.
    pub(super) link: Arc<Link>,
    /// Keeps the connections of the meeting open.
    pub(super) connections: Box<dyn Send>,
}

impl Late {
    /// Makes this the store of the process's worker, which has this link.
    ///
    /// # Errors
    /// The process has served as a worker of TVM before.
    pub(super) fn install(self: &Arc<Self>, link: &Arc<Link>) -> Result<()> {
        let installed = OF_PROCESS.set((self.clone(), Arc::downgrade(link)));
        installed.map_err(|_| Error::state("this process has served as a worker of TVM before"))
    }

    /// The store of this process's worker and the worker's link; none if the process does not serve as a worker of a
    /// session of processes.
    pub(super) fn of_process() -> Option<(Arc<Self>, Weak<Link>)> {
        OF_PROCESS.get().cloned()
    }

    /// Sets the result of a meeting, in place of the last one.
    pub(super) fn set(&self, met: Option<Met>) {
        let last = std::mem::replace(&mut *sync::lock(&self.met), met);
        // Dropped without the lock: it ends connections.
        if let Some(Met { connections, .. }) = last {
            drop(connections);
        }
    }

    /// Tells the other workers of a failure of this one, if they have met.
    pub(super) fn notify(&self, failure: Arc<Failure>) {
        if let Ok(link) = self.link() {
            // A meeting has one epoch.
            link.notify(Notice::Failed { epoch: 0, failure });
        }
    }

    fn link(&self) -> Result<Arc<Link>> {
        let met = sync::lock(&self.met);
        let link = met.as_ref().map(|met| met.link.clone());
        link.ok_or_else(|| {
            Error::state("the workers of TVM's session have not met; call `init_ccl` of the module `disco_tvm` first")
        })
    }
}

impl SharedStore for Late {
    fn begin(&self, _: u64) {}

    fn abort(&self, _: u64, cause: &Arc<str>) {
        if let Ok(link) = self.link() {
            link.shared_store().abort(0, cause);
        }
    }

    fn call(&self, _: u64, call: StoreCall, tell: Box<dyn FnOnce(Result<Value>) + Send>) {
        match self.link() {
            Ok(link) => link.shared_store().call(0, call, tell),
            Err(error) => tell(Err(error)),
        }
    }
}

impl Descriptors for Late {
    fn share(&self, fd: OwnedFd) -> Result<SharedFd> {
        self.link()?.descriptors().share(fd)
    }

    fn unshare(&self, fd: SharedFd) {
        if let Ok(link) = self.link() {
            link.descriptors().unshare(fd);
        }
    }

    fn receive(&self, fd: SharedFd, deadline: Duration) -> Result<OwnedFd> {
        self.link()?.descriptors().receive(fd, deadline)
    }
}

impl Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late").field("met", &sync::lock(&self.met).is_some()).finish()
    }
}
