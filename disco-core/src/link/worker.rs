//! The link of a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::cancel::Cancelled;
use super::credit::Credit;
use super::descriptors::Descriptors;
use super::keeper::Keeper;
use super::shared::Shared;
use crate::abort::{Abort, AbortRegistry};
use crate::activity::Activity;
use crate::error::{Error, Result};
use crate::shared_memory::Arena;
use crate::signal::Notice;
use crate::store::{SharedStore, Store, View};

/// A worker's link to its peers and the controller, outside the command stream. Clones share the link.
#[derive(Clone)]
pub struct Link {
    store: Arc<dyn SharedStore>,
    descriptors: Arc<dyn Descriptors>,
    pub(super) aborts: Arc<AbortRegistry>,
    pub(super) cancelled: Arc<Cancelled>,
    pub(super) credit: Arc<Credit>,
    pub(super) activity: Arc<Activity>,
    arena: Option<Arc<Arena>>,
    keeper: Option<Arc<dyn Keeper>>,
    /// Ordinal of the worker's device. A worker of a subset shares that of the worker it runs beside.
    ordinal: Arc<AtomicI32>,
    is_in_subset: bool,
    notify: Arc<dyn Fn(Notice) + Send + Sync>,
}

impl Link {
    /// A link over a store and descriptors. `activity` has the worker's progress and records; `notify` sends its notices.
    pub fn new(
        store: Arc<dyn SharedStore>,
        descriptors: Arc<dyn Descriptors>,
        activity: Activity,
        notify: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Self {
        let (aborts, cancelled, credit, ordinal) = Default::default();
        let (activity, arena, keeper, is_in_subset) = (Arc::new(activity), None, None, false);
        let notify = Arc::new(notify);
        Self { store, descriptors, aborts, cancelled, credit, activity, arena, keeper, ordinal, is_in_subset, notify }
    }

    /// The link of a worker that is a thread of the controller's process. `notify` gets its notices.
    pub fn of_thread(shared: Arc<Shared>, activity: Activity, notify: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        let (store, arena) = (shared.store().clone(), shared.arena().cloned());
        Self { arena, ..Self::new(store, shared.descriptors(), activity, notify) }
    }

    /// The link of a communicator without a session. It logs notices.
    pub fn bare(shared: Arc<Shared>) -> Self {
        Self::of_thread(shared, Activity::default(), |notice| tracing::warn!(%notice, "no session to tell"))
    }

    /// Sets the allocator of host tensors that peers in other processes can map.
    #[must_use]
    pub fn in_arena(self, arena: Arc<Arena>) -> Self {
        Self { arena: Some(arena), ..self }
    }

    /// Sets the keeper of the worker's memory.
    #[must_use]
    pub fn kept_by(self, keeper: Arc<dyn Keeper>) -> Self {
        Self { keeper: Some(keeper), ..self }
    }

    /// Makes this the link of a worker of a subset, which runs in the process of the worker with the link `parent`.
    #[must_use]
    pub fn in_subset_of(self, parent: &Self) -> Self {
        Self { ordinal: parent.ordinal.clone(), is_in_subset: true, ..self }
    }

    /// Whether the worker belongs to a subset, and so shares its process with a worker of the parent session.
    pub fn is_in_subset(&self) -> bool {
        self.is_in_subset
    }

    /// The ordinal of the device that the worker uses unless the program chooses one.
    pub(crate) fn default_ordinal(&self, position: usize) -> i32 {
        if self.is_in_subset { self.ordinal.load(Ordering::Relaxed) } else { position as i32 }
    }

    /// Records the ordinal of the worker's device, for workers beside it.
    pub(crate) fn note_ordinal(&self, ordinal: i32) {
        if !self.is_in_subset {
            self.ordinal.store(ordinal, Ordering::Relaxed);
        }
    }

    /// Sends a notice to the controller at once.
    pub fn notify(&self, notice: Notice) {
        (self.notify)(notice);
    }

    /// A view of the session's store in this worker's current epoch. The view stays in that epoch.
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::new(View::new(self.store.clone(), self.aborts.epoch()))
    }

    /// The epoch that this worker is in.
    pub fn epoch(&self) -> u64 {
        self.aborts.epoch()
    }

    /// The session's store without a view, for lanes that pass calls on.
    pub fn shared_store(&self) -> &Arc<dyn SharedStore> {
        &self.store
    }

    /// The exchange of file descriptors with peers on this machine.
    pub fn descriptors(&self) -> &Arc<dyn Descriptors> {
        &self.descriptors
    }

    /// Registers `abort` for the session's abort; calls it at once if the session is aborted. The link holds it weakly:
    /// dropping `abort` unregisters it.
    pub fn on_abort(&self, abort: &Arc<dyn Abort>) {
        self.aborts.listen(abort);
    }

    /// Number of listeners that [`Self::on_abort`] has registered and that still exist. A backend's communicators
    /// register one at least.
    pub fn abort_listeners(&self) -> usize {
        self.aborts.listeners()
    }

    /// Aborts this worker's listeners and store, unless `epoch` is over. Lanes call this method.
    pub fn abort(&self, epoch: u64, cause: &Arc<str>) {
        self.aborts.abort(epoch, &cause.clone().into());
        self.store.abort(epoch, cause);
        self.end_waits_for_cancellations(false);
        self.credit.wake();
    }

    /// Whether this worker's epoch is aborted.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborts.is_aborted()
    }

    /// Fails if this worker's epoch is aborted.
    pub(crate) fn check_aborted(&self) -> Result<()> {
        self.aborts.cause().map_or(Ok(()), |cause| Err(Error::Aborted { cause }))
    }

    /// Starts an epoch and clears aborts of earlier epochs.
    pub fn reset(&self, epoch: u64) {
        self.aborts.reset(epoch);
        self.store.begin(epoch);
        self.end_waits_for_cancellations(true);
    }

    /// The record of this worker's progress.
    pub fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// The keeper of the worker's memory.
    ///
    /// # Errors
    /// There is none, for workers of this kind of lane.
    pub fn keeper(&self) -> Result<&Arc<dyn Keeper>> {
        self.keeper
            .as_ref()
            .ok_or_else(|| Error::state("workers of this kind of session have no memory that outlives them"))
    }

    /// The allocator of host tensors that peers in other processes can map, if there is one.
    pub fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
    }
}

crate::format_as!(Debug for Link, |it| "Link {{ aborts: {:?}, .. }}", it.aborts);

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::time::Duration;

    use super::*;
    use crate::link::SharedFd;

    fn pair() -> (Link, Link) {
        let shared = Arc::new(Shared::default());
        (Link::bare(shared.clone()), Link::bare(shared))
    }

    #[test]
    fn a_shared_descriptor_reaches_a_peer() {
        let (a, b) = pair();
        let path = std::env::temp_dir().join(format!("disco-link-{}", std::process::id()));
        let mut file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(b"segment").unwrap();
        let name = a.descriptors().share(file.into()).unwrap();
        let mut file =
            File::from(b.descriptors().receive(SharedFd::from_bits(name.to_bits()), Duration::ZERO).unwrap());
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "segment");
        a.descriptors().unshare(name);
        assert!(b.descriptors().receive(name, Duration::ZERO).unwrap_err().to_string().contains("nobody shared"));
    }

    #[test]
    fn a_worker_of_a_subset_takes_the_device_of_the_worker_beside_it() {
        let (worker, other) = pair();
        let in_subset = other.in_subset_of(&worker);
        assert!(in_subset.is_in_subset() && !worker.is_in_subset());
        worker.note_ordinal(3);
        // It has another position in its own session, and does not change the device of the parent's worker.
        in_subset.note_ordinal(0);
        assert_eq!((in_subset.default_ordinal(0), worker.default_ordinal(1)), (3, 1));
        worker.note_ordinal(5);
        assert_eq!(in_subset.clone().in_subset_of(&in_subset).default_ordinal(0), 5);
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
    fn a_store_view_stays_in_its_epoch_while_peers_begin_the_next() {
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
