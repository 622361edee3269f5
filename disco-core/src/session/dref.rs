//! Handles to objects that exist on every worker.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::{Error, Result};
use crate::id::RegisterId;
use crate::sync;
use crate::wire::Freed;

/// Controller-side handle to an object that every worker has in the same register.
///
/// ```
/// # use disco_core::{DRef, Result, Session, SessionExt};
/// # async fn example(session: &impl Session, step: &DRef) -> Result<()> {
/// let mut state = session.call(step, (0,)).await?;
/// for _ in 0..100 {
///     // The handle stands for the state of each worker. The one before is freed with the next command.
///     state = session.call(step, (&state,)).await?;
/// }
/// session.sync_all().await
/// # }
/// ```
///
/// Clones share it. Dropping the last one frees the register on every worker: the id is put on a list, which a later
/// command carries; nothing is sent and nothing blocks, also after shutdown.
#[derive(Clone)]
pub struct DRef(Arc<Slot>);

struct Slot {
    register: RegisterId,
    home: Arc<Home>,
}

/// What handles know of their session: where to put freed ids. Its address is the session's identity.
#[derive(Debug, Default)]
pub(super) struct Home {
    freed: Mutex<Freed>,
}

impl DRef {
    pub(super) fn new(register: RegisterId, home: &Arc<Home>) -> Self {
        Self(Arc::new(Slot { register, home: home.clone() }))
    }

    /// The register.
    pub fn register(&self) -> RegisterId {
        self.0.register
    }

    pub(super) fn home(&self) -> &Arc<Home> {
        &self.0.home
    }
}

impl fmt::Debug for DRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<DRef {}>", self.register())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.home.freed().push(self.register);
    }
}

impl Home {
    /// The ids freed since the last call.
    pub(super) fn take_freed(&self) -> Freed {
        std::mem::take(&mut *self.freed())
    }

    /// Fails for a handle of another session.
    pub(super) fn check(self: &Arc<Self>, handle: &DRef) -> Result<()> {
        match Arc::ptr_eq(self, handle.home()) {
            true => Ok(()),
            false => Err(Error::ForeignRef(handle.register())),
        }
    }

    fn freed(&self) -> MutexGuard<'_, Freed> {
        sync::lock(&self.freed)
    }
}
