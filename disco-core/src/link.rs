//! What a worker reaches besides its commands, from any thread, also while a function runs.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::abort::{Abort, AbortRegistry};
use crate::activity::Activity;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::shared_memory::Arena;
use crate::signal::Notice;
use crate::store::{MemoryStore, SharedStore, Store, View};
use crate::sync;

/// A worker's way to its peers and its controller, beside the command stream.
pub trait Link: fmt::Debug + Send + Sync {
    /// Tells the controller something at once.
    fn notify(&self, notice: Notice);

    /// The session's store in the epoch that this worker is in now; it stays in that epoch.
    fn store(&self) -> Arc<dyn Store>;

    /// Tells `abort` of the session's abort, now if it was already. Held weakly: dropping it unregisters.
    fn on_abort(&self, abort: &Arc<dyn Abort>);

    /// A new epoch starts: aborts of earlier ones are forgotten.
    fn reset(&self, epoch: u64);

    /// Hands a descriptor to peers on this machine; they take it by the name returned, which goes through the store.
    ///
    /// # Errors
    /// The descriptor can't be passed on.
    fn share(&self, fd: OwnedFd) -> Result<SharedFd>;

    /// Takes a shared descriptor back; peers that have received it keep it.
    fn unshare(&self, fd: SharedFd);

    /// A descriptor that a peer on this machine shared.
    ///
    /// # Errors
    /// Nobody shared it, or whoever did is gone; [`Error::Deadline`].
    fn receive(&self, fd: SharedFd, deadline: Duration) -> Result<OwnedFd>;

    /// Where this worker's state is written down.
    fn activity(&self) -> &Arc<Activity>;

    /// Where host tensors of this worker are made, if its peers are other processes that can map them.
    fn arena(&self) -> Option<&Arc<Arena>> {
        None
    }
}

/// The name of a descriptor handed over with [`Link::share`], unique in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedFd(u64);

impl SharedFd {
    /// The name of a worker's descriptor of this number, where workers name their own.
    pub const fn of(worker: WorkerId, number: u32) -> Self {
        Self((worker.index() as u64 + 1) << 32 | number as u64)
    }

    /// Whose it is, if it was named so.
    pub const fn owner(self) -> Option<WorkerId> {
        match (self.0 >> 32) as u32 {
            0 => None,
            above => Some(WorkerId::new(above - 1)),
        }
    }

    /// The name, to put in a store.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The name, read from a store.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// What the workers of one process and those that it has started share: a store, descriptors.
#[derive(Debug)]
pub struct Shared {
    store: Arc<dyn SharedStore>,
    fds: Mutex<HashMap<SharedFd, OwnedFd>>,
    next_fd: AtomicU32,
    arena: Option<Arc<Arena>>,
}

impl Default for Shared {
    /// Nothing so far, in a store of its own.
    fn default() -> Self {
        Self::new(Arc::new(MemoryStore::default()))
    }
}

impl Shared {
    /// Nothing so far, but a store that others may share.
    pub fn new(store: Arc<dyn SharedStore>) -> Self {
        Self { store, fds: Mutex::default(), next_fd: AtomicU32::default(), arena: None }
    }

    /// Nothing so far; workers of this process make their host tensors in `arena`.
    pub fn with_arena(arena: Arc<Arena>) -> Self {
        Self { arena: Some(arena), ..Self::default() }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn SharedStore> {
        &self.store
    }

    /// A worker has shared a descriptor.
    pub fn put(&self, name: SharedFd, fd: OwnedFd) {
        self.fds().insert(name, fd);
    }

    /// A worker has taken a descriptor back.
    pub fn remove(&self, name: SharedFd) {
        self.fds().remove(&name);
    }

    /// A worker is lost, and its descriptors with it.
    pub fn remove_all_of(&self, worker: WorkerId) {
        self.fds().retain(|name, _| name.owner() != Some(worker));
    }

    /// A copy of a descriptor.
    ///
    /// # Errors
    /// Nobody shared it, or there are too many descriptors.
    pub fn copy(&self, name: SharedFd) -> Result<OwnedFd> {
        let fds = self.fds();
        let shared = fds.get(&name).ok_or_else(|| Error::invalid(format!("nobody shared {name:?}")))?;
        shared.try_clone().map_err(|error| Error::system(format!("{name:?} can't be duplicated"), error))
    }

    fn fds(&self) -> MutexGuard<'_, HashMap<SharedFd, OwnedFd>> {
        sync::lock(&self.fds)
    }
}

/// The link of a worker that is a thread of the controller's process, or of no session at all.
pub struct ThreadLink {
    shared: Arc<Shared>,
    arena: Option<Arc<Arena>>,
    aborts: AbortRegistry,
    activity: Arc<Activity>,
    notify: Box<dyn Fn(Notice) + Send + Sync>,
}

impl ThreadLink {
    /// A link to `shared`, whose notices go to `notify`.
    pub fn new(shared: Arc<Shared>, notify: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        let arena = shared.arena.clone();
        Self { shared, arena, aborts: AbortRegistry::default(), activity: Arc::default(), notify: Box::new(notify) }
    }

    /// The same with an arena of its own, as a worker in another process would have it.
    #[must_use]
    pub fn in_arena(self, arena: Arc<Arena>) -> Self {
        Self { arena: Some(arena), ..self }
    }

    /// A link of a communicator without a session; notices are logged.
    pub fn bare(shared: Arc<Shared>) -> Self {
        Self::new(shared, |notice| tracing::warn!(%notice, "no session to tell"))
    }

    /// Aborts this worker's listeners and the store, unless `epoch` is over.
    pub fn abort(&self, epoch: u64, cause: &Arc<str>) {
        self.aborts.abort(epoch, cause);
        self.shared.store.abort(epoch, cause);
    }
}

impl fmt::Debug for ThreadLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadLink").field("aborts", &self.aborts).finish_non_exhaustive()
    }
}

impl Link for ThreadLink {
    fn notify(&self, notice: Notice) {
        (self.notify)(notice);
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(View::new(self.shared.store.clone(), self.aborts.epoch()))
    }

    fn on_abort(&self, abort: &Arc<dyn Abort>) {
        self.aborts.listen(abort);
    }

    fn reset(&self, epoch: u64) {
        self.aborts.reset(epoch);
        self.shared.store.begin(epoch);
    }

    fn share(&self, fd: OwnedFd) -> Result<SharedFd> {
        let name = SharedFd(self.shared.next_fd.fetch_add(1, Ordering::Relaxed).into());
        self.shared.put(name, fd);
        Ok(name)
    }

    fn unshare(&self, fd: SharedFd) {
        self.shared.remove(fd);
    }

    fn receive(&self, fd: SharedFd, _: Duration) -> Result<OwnedFd> {
        self.shared.copy(fd)
    }

    fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use super::*;

    fn pair() -> (ThreadLink, ThreadLink) {
        let shared = Arc::new(Shared::default());
        (ThreadLink::bare(shared.clone()), ThreadLink::bare(shared))
    }

    #[test]
    fn a_shared_descriptor_reaches_a_peer() {
        let (a, b) = pair();
        let path = std::env::temp_dir().join(format!("disco-link-{}", std::process::id()));
        let mut file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(b"segment").unwrap();
        let name = a.share(file.into()).unwrap();
        let mut file = File::from(b.receive(SharedFd::from_bits(name.to_bits()), Duration::ZERO).unwrap());
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "segment");
        a.unshare(name);
        assert!(b.receive(name, Duration::ZERO).unwrap_err().to_string().contains("nobody shared"));
    }

    #[test]
    fn an_abort_ends_store_waits_until_the_next_epoch() {
        let (a, b) = pair();
        a.abort(0, &"worker 1 failed".into());
        assert!(b.store().set("k", b"v").is_err(), "one store, one fate");
        a.reset(1);
        b.reset(1);
        b.store().set("k", b"v").unwrap();
        a.abort(0, &"late".into());
        assert_eq!(a.store().get("k").unwrap().as_deref(), Some(b"v".as_slice()));
    }

    #[test]
    fn a_worker_that_is_late_stays_in_the_store_of_its_epoch() {
        let (early, late) = pair();
        let held = late.store();
        early.reset(1);
        early.store().set("k", b"v").unwrap();
        for store in [&held, &late.store()] {
            assert!(store.add("count", 1).is_err() && store.get("k").is_err());
        }
        late.reset(1);
        assert!(held.get("k").is_err(), "a store stays in the epoch in which it was asked for");
        assert_eq!(late.store().get("k").unwrap().as_deref(), Some(b"v".as_slice()));
        assert_eq!(late.store().get("count").unwrap(), None);
    }
}
