//! Aborts, which end the waits of a communicator from other threads.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use disco_core::abort::AbortRegistry;
use disco_core::{Abort, AbortCause, Error, Result};
use rustix::event::{EventfdFlags, eventfd};

/// The first cause for which a communicator ends, and a descriptor that is readable from then on.
pub(crate) struct Alarm {
    cause: OnceLock<AbortCause>,
    event: OwnedFd,
    /// The alarms of children.
    children: AbortRegistry,
    /// Keeps the parent alive: a link holds only the alarm of the root communicator, weakly, and ends its children through it.
    _parent: Option<Arc<Alarm>>,
}

impl Alarm {
    /// The alarm of a communicator that a split of `parent` makes, or of the root.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub(crate) fn new(parent: Option<&Arc<Self>>) -> Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|error| Error::system("tcp: no event descriptor", error))?;
        let children = AbortRegistry::default();
        let alarm = Arc::new(Self { cause: OnceLock::new(), event, children, _parent: parent.cloned() });
        if let Some(parent) = parent {
            parent.children.listen(&(alarm.clone() as Arc<dyn Abort>));
        }
        Ok(alarm)
    }

    /// The cause, once there is one.
    pub(crate) fn cause(&self) -> Option<&AbortCause> {
        self.cause.get()
    }

    /// Fails after an abort.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub(crate) fn check(&self) -> Result<()> {
        self.cause().map_or(Ok(()), |cause| Err(Error::Aborted { cause: cause.clone() }))
    }
}

impl Abort for Alarm {
    fn abort(&self, cause: &AbortCause) {
        if self.cause.set(cause.clone()).is_ok() {
            // The counter can't overflow: this is its only increment.
            _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
        self.children.abort(0, cause);
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<alarm {:?}>", self.cause())
    }
}
