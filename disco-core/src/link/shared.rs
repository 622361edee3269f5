//! What workers of one process share.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::descriptors::{Descriptors, SharedFd};
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::shared_memory::Arena;
use crate::store::{MemoryStore, SharedStore};
use crate::sync;

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
        let shared = fds.get(&name).ok_or_else(|| Error::state(format!("nobody shared {name:?}")))?;
        shared.try_clone().map_err(|error| Error::system(format!("{name:?} can't be duplicated"), error))
    }

    /// Where workers of this process make their host tensors.
    pub(super) fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
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
