//! Handles to objects that exist on every worker.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::id::RegisterId;
use crate::sync;
use crate::wire::Freed;

/// Controller-side handle to an object that every worker has in the same register.
///
/// ```
/// # use disco_core::{DRef, Result, Session};
/// # async fn example(session: &dyn Session, step: &DRef) -> Result<()> {
/// let mut state = session.call(step, (0,)).await?;
/// for _ in 0..100 {
///     // The handle stands for the state of each worker. The previous state is freed with the next command.
///     state = session.call(step, (&state,)).await?;
/// }
/// session.sync_all().await
/// # }
/// ```
///
/// Clones share the register. Dropping the last clone adds the register's id to a list, which the next command carries
/// to the workers. The drop sends no message and never blocks, also after shutdown.
#[derive(Clone)]
pub struct DRef(Arc<Slot>);

struct Slot {
    register: RegisterId,
    /// Number of the command that sets the register.
    command: u64,
    freed_ids: Arc<FreedIds>,
}

/// Register ids that dropped handles have freed. Its address is the session's identity.
#[derive(Debug, Default)]
pub(crate) struct FreedIds {
    /// The number above one id, or 0: a loop of calls frees one handle for each, and a lock costs more than an exchange.
    one: AtomicU32,
    /// Ids that were freed while there was one already.
    others: Mutex<Freed>,
    has_others: AtomicBool,
}

impl DRef {
    pub(super) fn new(register: RegisterId, command: u64, freed_ids: &Arc<FreedIds>) -> Self {
        Self(Arc::new(Slot { register, command, freed_ids: freed_ids.clone() }))
    }

    /// The register.
    pub fn register(&self) -> RegisterId {
        self.0.register
    }

    /// Number of the command that sets the register.
    pub(crate) fn command(&self) -> u64 {
        self.0.command
    }

    /// Whether there are other clones.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub(super) fn freed_ids(&self) -> &Arc<FreedIds> {
        &self.0.freed_ids
    }
}

crate::format_as!(Debug for DRef, |it| "<DRef {}>", it.register());

impl Drop for Slot {
    fn drop(&mut self) {
        self.freed_ids.add(self.register);
    }
}

impl FreedIds {
    fn add(&self, id: RegisterId) {
        if self.one.compare_exchange(0, id.wire() as u32 + 1, Ordering::Release, Ordering::Relaxed).is_err() {
            let mut others = sync::lock(&self.others);
            others.push(id);
            self.has_others.store(true, Ordering::Release);
        }
    }

    /// The ids freed since the last call.
    pub(super) fn take_freed(&self) -> Freed {
        let mut freed = Freed::new();
        if self.has_others.load(Ordering::Acquire) {
            let mut others = sync::lock(&self.others);
            self.has_others.store(false, Ordering::Relaxed);
            freed = std::mem::take(&mut others);
        }
        if self.one.load(Ordering::Relaxed) != 0 {
            freed.push(RegisterId::new(self.one.swap(0, Ordering::Acquire) - 1));
        }
        freed
    }

    /// Fails for a handle of another session.
    pub(crate) fn check(self: &Arc<Self>, handle: &DRef) -> Result<()> {
        if Arc::ptr_eq(self, handle.freed_ids()) { Ok(()) } else { Err(Error::ForeignRef(handle.register())) }
    }
}
