//! State that the workers of one process share.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::descriptors::{Descriptors, SharedFd};
use super::keeper::{Keeper, KeptMemory, KeptName};
use super::proc_descriptors::ProcDescriptors;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::shared_memory::Arena;
use crate::store::{MemoryStore, SharedStore};
use crate::sync;

/// State that the workers of one process and of its child processes share: a store, descriptors, and the memory that it keeps for
/// them.
#[derive(Debug)]
pub struct Shared {
    store: Arc<dyn SharedStore>,
    fds: Mutex<HashMap<SharedFd, OwnedFd>>,
    next_fd: AtomicU32,
    kept: KeptMemory,
    arena: Option<Arc<Arena>>,
    /// How the workers of this process share descriptors with other nodes of this machine, in a session of nodes.
    beyond: Option<Arc<dyn Descriptors>>,
}

impl Default for Shared {
    /// An empty exchange with a new store.
    fn default() -> Self {
        Self::new(Arc::new(MemoryStore::default()))
    }
}

impl Shared {
    /// An empty exchange with `store`, which other processes may share.
    pub fn new(store: Arc<dyn SharedStore>) -> Self {
        let (fds, next_fd, kept) = Default::default();
        Self { store, fds, next_fd, kept, arena: None, beyond: None }
    }

    /// An empty exchange whose workers allocate their host tensors in `arena`.
    pub fn with_arena(arena: Arc<Arena>) -> Self {
        Self { arena: Some(arena), ..Self::default() }
    }

    /// Lets the workers, which allocate their host tensors in `arena`, share memory with other nodes of this machine.
    #[must_use]
    pub fn among_nodes(self, arena: Arc<Arena>) -> Self {
        Self { arena: Some(arena), beyond: Some(Arc::new(ProcDescriptors::default())), ..self }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn SharedStore> {
        &self.store
    }

    /// Adds a descriptor that a worker shares.
    pub fn put(&self, name: SharedFd, fd: OwnedFd) {
        self.fds().insert(name, fd);
    }

    /// Removes a descriptor that its worker no longer shares.
    pub fn remove(&self, name: SharedFd) {
        self.fds().remove(&name);
    }

    /// Removes all descriptors of a lost worker.
    pub fn remove_all_of(&self, worker: WorkerId) {
        self.fds().retain(|name, _| name.owner() != Some(worker));
    }

    /// A duplicate of a shared descriptor.
    ///
    /// # Errors
    /// No worker shares the descriptor, or the process has too many descriptors.
    pub fn copy(&self, name: SharedFd) -> Result<OwnedFd> {
        let fds = self.fds();
        let shared = fds.get(&name).ok_or_else(|| Error::state(format!("nobody shared {name:?}")))?;
        shared.try_clone().map_err(|error| Error::system(format!("{name:?} can't be duplicated"), error))
    }

    /// The memory of a worker with a name, if there is one.
    ///
    /// # Errors
    /// This process has too many descriptors.
    pub fn find(&self, worker: WorkerId, name: &KeptName) -> Result<Option<OwnedFd>> {
        self.kept.find(worker, name)
    }

    /// Keeps memory for a worker: see [`Keeper::keep`].
    ///
    /// # Errors
    /// As there.
    pub fn keep(&self, worker: WorkerId, name: &KeptName, memory: OwnedFd) -> Result<Option<OwnedFd>> {
        self.kept.keep(worker, name, memory)
    }

    /// Discards memory of a worker. Returns whether there was any.
    pub fn discard(&self, worker: WorkerId, name: &KeptName) -> bool {
        self.kept.discard(worker, name)
    }

    /// Discards all memory of a worker that no other worker replaces.
    pub fn discard_all_of(&self, worker: WorkerId) {
        self.kept.discard_all_of(worker);
    }

    /// The keeper of a worker that is a thread of this process.
    pub fn keeper_of(self: &Arc<Self>, worker: WorkerId) -> Arc<dyn Keeper> {
        Arc::new(KeeperOf { shared: self.clone(), worker })
    }

    /// The allocator of host tensors of this process's workers.
    pub(super) fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
    }

    /// How a worker of this process shares descriptors.
    pub(super) fn descriptors(self: &Arc<Self>) -> Arc<dyn Descriptors> {
        self.beyond.clone().unwrap_or_else(|| self.clone())
    }

    fn fds(&self) -> MutexGuard<'_, HashMap<SharedFd, OwnedFd>> {
        sync::lock(&self.fds)
    }
}

impl Descriptors for Shared {
    fn share(&self, fd: OwnedFd) -> Result<SharedFd> {
        let name = SharedFd::from_bits(self.next_fd.fetch_add(1, Ordering::Relaxed).into());
        self.put(name, fd);
        Ok(name)
    }

    fn unshare(&self, fd: SharedFd) {
        self.remove(fd);
    }

    fn receive(&self, fd: SharedFd, _: Duration) -> Result<OwnedFd> {
        self.copy(fd)
    }
}

/// The keeper of a worker of this process.
#[derive(Debug)]
struct KeeperOf {
    shared: Arc<Shared>,
    worker: WorkerId,
}

impl Keeper for KeeperOf {
    fn find(&self, name: &KeptName) -> Result<Option<OwnedFd>> {
        self.shared.find(self.worker, name)
    }

    fn keep(&self, name: &KeptName, memory: OwnedFd) -> Result<Option<OwnedFd>> {
        self.shared.keep(self.worker, name, memory)
    }

    fn discard(&self, name: &KeptName) -> Result<bool> {
        Ok(self.shared.discard(self.worker, name))
    }
}
