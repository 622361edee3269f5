//! A lane and its reactor thread.

use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use disco_core::{Error, Owner, Result};
use disco_engine::controller::{Controller, Event};

use super::lane::Lane;
use super::service::Reactor;
use super::transport::Transport;
use crate::remote::join_timeout;

/// Timeout for the reactor thread to end once its lane is closed: longer than killed processes take.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A lane with its reactor thread. Dropping it tells the peers to leave, and returns at once; in a forked child it does
/// nothing.
#[derive(Debug)]
pub(crate) struct Served {
    lane: Arc<Lane>,
    thread: Mutex<Option<JoinHandle<()>>>,
    owner: Owner,
}

impl Served {
    /// Starts the reactor thread under `name`.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(crate) fn start<T: Transport + 'static>(name: &str, reactor: Reactor<T>) -> io::Result<Self> {
        let lane = reactor.lane.clone();
        let thread = thread::Builder::new().name(name.into()).spawn(|| reactor.run())?;
        Ok(Self { lane, thread: Mutex::new(Some(thread)), owner: Owner::default() })
    }

    /// Waits until all peers have started. Calls `check` at intervals meanwhile.
    ///
    /// # Errors
    /// The start has failed, or `check` fails; all peers have ended then.
    pub(crate) fn wait_for_start(&self, check: impl Fn() -> Result<()>) -> Result<()> {
        self.lane.wait_for_start(check).map_err(|error| self.fail(error))
    }

    /// Ends a lane whose start has failed, and waits until all peers have ended. Returns `error`.
    pub(crate) fn fail(&self, error: Error) -> Error {
        self.note_dropped();
        self.join();
        error
    }

    /// Gives peers `limit` to leave, then ends the remaining ones.
    ///
    /// # Errors
    /// [`Error::Stuck`] with the workers that did not leave.
    pub(crate) fn close(&self, limit: Duration) -> Result<()> {
        if !self.owner.is_here() {
            return Ok(());
        }
        let stuck = self.lane.close(limit);
        self.join();
        if stuck.is_empty() { Ok(()) } else { Err(Error::Stuck { workers: stuck.join(", "), after: limit }) }
    }

    /// The process that serves the lane.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// The lane, for other lanes.
    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    fn note_dropped(&self) {
        self.lane.with(|engine: &mut Controller, now| engine.handle(Event::Dropped, now));
    }

    /// Joins the thread, which ends with the last peer, with a timeout. Each of several callers waits for the end: until
    /// then, peers that were told to end may not be killed yet.
    fn join(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        match thread.take().map(|thread| join_timeout::within(thread, JOIN_TIMEOUT)) {
            None | Some(Some(Ok(()))) => {}
            Some(Some(Err(_))) => tracing::error!("the service thread of a lane panicked"),
            Some(None) => tracing::error!("a killed process does not end; the service thread of its lane is detached"),
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
        if self.owner.is_here() {
            self.note_dropped();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, RecvTimeoutError};

    use super::*;
    use crate::remote::reactor::status::tests::lane;

    #[test]
    fn all_callers_wait_for_the_end_of_the_reactor_thread() {
        let (gate, opened) = mpsc::channel::<()>();
        let thread = thread::spawn(move || opened.recv().unwrap());
        let served = Served { lane: Arc::new(lane()), thread: Mutex::new(Some(thread)), owner: Owner::default() };
        let (begin, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..2 {
                let (served, begin, end) = (&served, begin.clone(), end.clone());
                scope.spawn(move || {
                    begin.send(()).unwrap();
                    served.join();
                    end.send(()).unwrap();
                });
            }
            (0..2).for_each(|_| begun.recv().unwrap());
            assert_eq!(ended.recv_timeout(Duration::from_millis(100)), Err(RecvTimeoutError::Timeout));
            gate.send(()).unwrap();
            (0..2).for_each(|_| ended.recv().unwrap());
        });
    }
}
