//! A lane and the thread that serves it.

use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use disco_core::{Error, Result};

use super::lane::Lane;
use super::service::Reactor;
use super::transport::Transport;
use crate::ending;
use crate::engine::controller::{Controller, Event};

/// How long the reactor thread may take to end once its lane is closed: longer than killed processes do.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A lane that is served by a reactor thread. Dropping it lets the peers go; nobody waits for them.
#[derive(Debug)]
pub(crate) struct Served {
    lane: Arc<Lane>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Served {
    /// Starts the thread, under this name.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn start<T: Transport + 'static>(name: &str, reactor: Reactor<T>) -> io::Result<Self> {
        let lane = reactor.lane.clone();
        let thread = thread::Builder::new().name(name.into()).spawn(|| reactor.run())?;
        Ok(Self { lane, thread: Mutex::new(Some(thread)) })
    }

    /// Waits until all peers have come.
    ///
    /// # Errors
    /// Why they have not; none is left then.
    pub(crate) fn wait_for_start(self) -> Result<Self> {
        match self.lane.wait_for_start() {
            Ok(()) => Ok(self),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// The lane does not come about: waits until nothing is left of any peer. Returns the error.
    pub(crate) fn fail(self, error: Error) -> Error {
        self.let_go();
        self.join();
        error
    }

    /// Gives peers `limit` to leave, and ends those that are left then.
    ///
    /// # Errors
    /// [`Error::Stuck`] with the workers that did not leave.
    pub(crate) fn close(&self, limit: Duration) -> Result<()> {
        let stuck = self.lane.close(limit);
        self.join();
        match stuck.is_empty() {
            true => Ok(()),
            false => Err(Error::Stuck { workers: stuck.join(", "), after: limit }),
        }
    }

    fn let_go(&self) {
        self.lane.with(|engine: &mut Controller, now| engine.handle(Event::Dropped, now));
    }

    /// Waits for the thread, which ends with the last peer; not for ever.
    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(|thread| ending::within(thread, JOIN_TIMEOUT)) {
            None | Some(Some(Ok(()))) => {}
            Some(Some(Err(_))) => tracing::error!("the service thread panicked"),
            Some(None) => tracing::error!("a killed process does not end; its lane is left behind"),
        }
    }
}

impl Deref for Served {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        &self.lane
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.let_go();
    }
}
