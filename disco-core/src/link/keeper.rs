//! Memory that outlives its worker.

use std::collections::HashMap;
use std::fmt::Debug;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::shared_memory::Segment;
use crate::sync;

/// The most bytes of a name of kept memory.
pub const MAX_NAME_BYTES: usize = 256;
/// The most kept memories of a worker, and of all workers together.
const MOST: usize = 256;

/// Keeps memory of workers, so that it outlives them: the program whose threads or child processes they are. All of it is freed with
/// the session.
pub trait Keeper: Debug + Send + Sync {
    /// A descriptor of the memory with a name, if there is one.
    ///
    /// # Errors
    /// The keeper can't be reached, or has too many descriptors.
    fn find(&self, name: &KeptName) -> Result<Option<OwnedFd>>;

    /// Keeps memory. If there is memory with this name already, that stays, and the result is its descriptor.
    ///
    /// # Errors
    /// As for [`find`](Self::find); the name is too long, or there are too many.
    fn keep(&self, name: &KeptName, memory: OwnedFd) -> Result<Option<OwnedFd>>;

    /// Stops keeping memory, which is freed once no process has mapped it. Returns whether there was any.
    ///
    /// # Errors
    /// The keeper can't be reached.
    fn discard(&self, name: &KeptName) -> Result<bool>;
}

/// The name of kept memory.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeptName {
    /// Whether all workers of the keeper find the memory; otherwise the worker that has kept it, and those that take its place.
    pub is_shared: bool,
    /// The name.
    pub name: Arc<str>,
}

impl KeptName {
    /// Memory of one worker.
    pub fn own(name: impl Into<Arc<str>>) -> Self {
        Self { is_shared: false, name: name.into() }
    }

    /// Memory of all workers of a keeper.
    pub fn shared(name: impl Into<Arc<str>>) -> Self {
        Self { is_shared: true, name: name.into() }
    }
}

/// What a worker asks its keeper for; a descriptor comes with a call of `Keep`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeeperCall {
    /// See [`Keeper::find`].
    Find(KeptName),
    /// See [`Keeper::keep`].
    Keep(KeptName),
    /// See [`Keeper::discard`].
    Discard(KeptName),
}

/// Finds memory of `bytes` bytes that a worker keeps, or makes it, zeroed; with `is_lazy` without pages. Returns whether it is new.
///
/// # Errors
/// The memory with this name has another size; the system has too little memory; errors of the keeper.
pub(crate) fn keep(keeper: &dyn Keeper, name: &str, bytes: usize, is_lazy: bool) -> Result<(Segment, bool)> {
    let own = KeptName::own(name);
    let mut found = keeper.find(&own)?;
    if found.is_none() {
        let segment = Segment::reserve(bytes.max(1))?.with_huge_pages();
        if !is_lazy {
            segment.commit(0..bytes.max(1))?;
        }
        let fd = segment.as_fd().try_clone_to_owned();
        let fd = fd.map_err(|error| Error::system(format!("the memory {name:?} can't be kept"), error))?;
        found = keeper.keep(&own, fd)?;
        if found.is_none() {
            return Ok((segment, true));
        }
    }
    let fd = found.ok_or_else(|| Error::state(format!("the memory {name:?} is lost")))?;
    let segment = Segment::open(fd, 0)?.with_huge_pages();
    let kept = segment.byte_len();
    if kept != bytes.max(1) {
        return Err(Error::invalid(format!(
            "{bytes} bytes of kept memory {name:?}, which has {kept} bytes: discard it first"
        )));
    }
    Ok((segment, false))
}

/// The memory of the workers of one program.
#[derive(Debug, Default)]
pub(super) struct KeptMemory(Mutex<HashMap<Key, OwnedFd>>);

/// The worker whose memory it is, if it is that of one, and the name.
type Key = (Option<WorkerId>, Arc<str>);

impl KeptMemory {
    pub(super) fn find(&self, worker: WorkerId, name: &KeptName) -> Result<Option<OwnedFd>> {
        let kept = sync::lock(&self.0);
        kept.get(&key(worker, name)).map(|fd| duplicate(fd, &name.name)).transpose()
    }

    pub(super) fn keep(&self, worker: WorkerId, name: &KeptName, memory: OwnedFd) -> Result<Option<OwnedFd>> {
        if name.name.len() > MAX_NAME_BYTES {
            return Err(Error::invalid(format!("a name of kept memory has at most {MAX_NAME_BYTES} bytes")));
        }
        let (mut kept, key) = (sync::lock(&self.0), key(worker, name));
        if let Some(fd) = kept.get(&key) {
            return duplicate(fd, &name.name).map(Some);
        }
        if kept.keys().filter(|(owner, _)| *owner == key.0).count() >= MOST {
            return Err(Error::invalid(format!("{:?}: a worker keeps at most {MOST} memories", name.name)));
        }
        kept.insert(key, memory);
        Ok(None)
    }

    pub(super) fn discard(&self, worker: WorkerId, name: &KeptName) -> bool {
        let discarded = sync::lock(&self.0).remove(&key(worker, name));
        let was_there = discarded.is_some();
        free(discarded.into_iter().collect());
        was_there
    }

    /// Discards all memory of a worker that no other worker replaces.
    pub(super) fn discard_all_of(&self, worker: WorkerId) {
        let discarded: Vec<_> = sync::lock(&self.0).extract_if(|(owner, _), _| *owner == Some(worker)).collect();
        free(discarded.into_iter().map(|(_, memory)| memory).collect());
    }
}

/// Closes memory on a thread of its own: Linux frees the pages with the last descriptor, which takes 0.1 s for each GiB.
fn free(memory: Vec<OwnedFd>) {
    if !memory.is_empty() {
        // Without a thread, they are closed here.
        _ = thread::Builder::new().name("disco-free".to_owned()).spawn(move || drop(memory));
    }
}

fn key(worker: WorkerId, name: &KeptName) -> Key {
    ((!name.is_shared).then_some(worker), name.name.clone())
}

fn duplicate(fd: &OwnedFd, name: &str) -> Result<OwnedFd> {
    fd.try_clone().map_err(|error| Error::system(format!("the kept memory {name:?} can't be opened"), error))
}
