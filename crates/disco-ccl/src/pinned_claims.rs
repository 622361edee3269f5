//! Claims of the pinned host tensors that copies of a stream use.

use std::sync::Arc;

use disco_core::Result;
use disco_core::device_api::Event;
use disco_core::tensor::{Access, Storage};

use crate::event::OwnedEvent;
use crate::runtime::Runtime;

/// The claims of one stream. All its copies share the claim of a storage.
#[derive(Default)]
pub(crate) struct PinnedClaims {
    /// One for each storage, in the order of the last copies.
    claims: Vec<Claim>,
    /// Events for reuse.
    free_events: Vec<OwnedEvent>,
}

struct Claim {
    access: Access,
    /// Recorded behind the last copy.
    event: OwnedEvent,
    /// Number of the queue's events before the last copy.
    events_before: u64,
}

impl PinnedClaims {
    /// Claims a storage for the next copy, and returns the event to record behind that copy. If the event is not
    /// recorded, [`PinnedClaims::release_passed`] keeps the claim. The queue has recorded `events_before` events. The
    /// device is current.
    ///
    /// # Errors
    /// [`Error::Busy`](disco_core::Error::Busy): the program views the storage; errors of the driver.
    pub(crate) fn claim(
        &mut self,
        runtime: &Arc<Runtime>,
        storage: &Arc<Storage>,
        writes: bool,
        events_before: u64,
    ) -> Result<&mut OwnedEvent> {
        let known = self.claims.iter().position(|claim| Arc::ptr_eq(claim.access.storage(), storage));
        let at = match known {
            Some(at) if writes => self.claims[at].access.upgrade().map(|()| at)?,
            Some(at) => at,
            None => {
                let access = if writes { storage.write() } else { storage.read() }?;
                let event = self.free_events.pop().map_or_else(|| OwnedEvent::new(runtime), Ok)?;
                self.claims.push(Claim { access, event, events_before });
                self.claims.len() - 1
            }
        };
        self.claims[at..].rotate_left(1);
        let last = self.claims.len() - 1;
        let claim = &mut self.claims[last];
        claim.events_before = events_before;
        claim.event.reset();
        Ok(&mut claim.event)
    }

    /// Releases the storages whose copies the stream has passed.
    ///
    /// # Errors
    /// Errors of the driver, also of work that has failed.
    pub(crate) fn release_passed(&mut self) -> Result<()> {
        let mut passed = 0;
        while passed < self.claims.len() && self.claims[passed].event.is_passed()? {
            passed += 1;
        }
        self.release_first(passed);
        Ok(())
    }

    /// Releases the storages whose copies are all before an event. The stream has passed the event.
    pub(crate) fn release_before(&mut self, event: Event) {
        self.release_first(self.claims.partition_point(|claim| claim.events_before < event.0));
    }

    /// Releases all storages. The stream has passed all copies.
    pub(crate) fn release_all(&mut self) {
        self.release_first(self.claims.len());
    }

    fn release_first(&mut self, count: usize) {
        self.free_events.extend(self.claims.drain(..count).map(|claim| claim.event));
    }
}
