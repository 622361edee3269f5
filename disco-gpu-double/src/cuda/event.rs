//! Events: each record makes a mark, which a stream reaches, and which others wait for.

use std::sync::{Arc, Condvar, Mutex};

use super::abi::{self, Code};
use super::device::Device;
use super::stream::Stream;
use crate::handles::Handles;
use crate::sync::{lock, wait};

static EVENTS: Handles<Event> = Handles::new(0x6_0000_0000);

/// One event.
pub(crate) struct Event {
    device: &'static Device,
    /// What was recorded last; none yet: it counts as reached.
    mark: Mutex<Option<Arc<Mark>>>,
}

#[derive(Default)]
struct Mark {
    is_reached: Mutex<bool>,
    reached: Condvar,
}

/// `cuEventCreate`.
pub(crate) fn create(device: &'static Device) -> abi::Event {
    EVENTS.insert(Arc::new(Event { device, mark: Mutex::new(None) }))
}

/// `cuEventDestroy`: who waits for it already goes on to.
pub(crate) fn destroy(handle: abi::Event) -> Result<(), Code> {
    EVENTS.remove(handle).map(drop).ok_or(Code::INVALID_HANDLE)
}

/// The event of a handle.
pub(crate) fn find(handle: abi::Event) -> Result<Arc<Event>, Code> {
    EVENTS.find(handle).ok_or(Code::INVALID_HANDLE)
}

/// How many events there are.
pub(crate) fn live() -> usize {
    EVENTS.len()
}

impl Event {
    /// Marks where a stream of the same device is now.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), Code> {
        if stream.device().ordinal != self.device.ordinal {
            return Err(Code::INVALID_HANDLE);
        }
        let mark = Arc::new(Mark::default());
        *lock(&self.mark) = Some(Arc::clone(&mark));
        stream.push(Box::new(move || {
            *lock(&mark.is_reached) = true;
            mark.reached.notify_all();
            Ok(())
        }));
        Ok(())
    }

    /// `cuEventQuery`: not ready before the stream has come to the mark.
    pub(crate) fn query(&self) -> Result<(), Code> {
        let is_reached = lock(&self.mark).as_ref().is_none_or(|mark| *lock(&mark.is_reached));
        self.device.check()?;
        if is_reached { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// `cuEventSynchronize`: waits for the mark that is there now, and says what the device has failed with.
    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        let mark = lock(&self.mark).clone();
        if let Some(mark) = mark {
            mark.wait();
        }
        self.device.check()
    }

    /// Has a stream, of any device, wait for the mark that is there now.
    pub(crate) fn hold_up(&self, stream: &Stream) {
        let mark = lock(&self.mark).clone();
        if let Some(mark) = mark {
            stream.push_wait(Box::new(move || {
                mark.wait();
                Ok(())
            }));
        }
    }
}

impl Mark {
    fn wait(&self) {
        let mut is_reached = lock(&self.is_reached);
        while !*is_reached {
            is_reached = wait(&self.reached, is_reached);
        }
    }
}
