//! The nodes of a lane that was started.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use disco_core::wire::Message;
use disco_core::{Result, WorkerId};

use super::roster::Roster;
use crate::ending;

/// How long nodes may take to say who did not leave.
const FAREWELL: Duration = Duration::from_secs(2);

/// The nodes, and the thread that serves them.
pub(super) struct Crew {
    pub(super) roster: Arc<Roster>,
    service: Mutex<Option<JoinHandle<()>>>,
}

impl Crew {
    pub(super) fn new(roster: Arc<Roster>, service: JoinHandle<()>) -> Self {
        Self { roster, service: Mutex::new(Some(service)) }
    }

    pub(super) fn urge(&self, message: &Message) -> Result<()> {
        let packet: Arc<[u8]> = message.encode()?.into();
        (0..self.roster.len())
            .for_each(|index| self.roster.send(index, |connection| connection.send(packet.clone(), None)));
        Ok(())
    }

    /// Tells everybody to leave, now.
    pub(super) fn let_go(&self) -> Result<()> {
        self.roster.closed.store(true, Ordering::Release);
        self.roster.exits.expect();
        self.urge(&Message::Shutdown)
    }

    /// Waits for at most `limit`, then ends who is left. Returns the workers that did not leave.
    pub(super) fn dismiss(&self, limit: Duration) -> Result<Vec<String>> {
        let Roster { exits, .. } = &*self.roster;
        exits.wait(Instant::now().checked_add(limit));
        self.let_go()?;
        self.urge(&Message::Bye("the session shuts down".into()))?;
        exits.wait(Instant::now().checked_add(FAREWELL));
        let mut stuck = Vec::new();
        for index in 0..self.roster.len() {
            let seat = self.roster.seat(index);
            match seat.stuck.get() {
                Some(workers) if workers.is_empty() => {}
                Some(workers) => stuck.push(workers.clone()),
                None if exits.has_left(index) => {}
                None => {
                    let Range { start, end } = self.roster.members(index);
                    let workers = (start.index()..end.index()).map(|index| WorkerId::new(index as u32));
                    let name = seat.name.get().map_or("", String::as_str);
                    stuck.extend(workers.map(|w| format!("{w} ({}; {name} does not answer)", self.roster.progress(w))));
                }
            }
        }
        self.end();
        Ok(stuck)
    }

    /// Waits for the service thread, which ends at once.
    pub(super) fn end(&self) {
        self.abandon();
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(_)) = service.and_then(|thread| ending::within(thread, 2 * FAREWELL)) {
            tracing::error!("the service thread panicked");
        }
    }

    fn abandon(&self) {
        self.roster.exits.expect();
        self.roster.over.store(true, Ordering::Release);
        self.roster.waker.wake();
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if let Err(error) = self.let_go() {
            tracing::warn!(%error, "nodes can't be told to leave");
        }
        self.abandon();
    }
}
