//! How many results of a call the controller has taken.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::sync;

/// The results of the last call that streams.
#[derive(Debug, Default)]
pub(super) struct Credit {
    state: Mutex<Taken>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// The number of the command that calls.
    command: u64,
    count: u64,
}

impl Credit {
    /// Wakes a wait, whose call may be cancelled or whose session may be aborted.
    pub(super) fn wake(&self) {
        drop(sync::lock(&self.state));
        self.changed.notify_all();
    }

    /// Notes that the controller has taken `count` results of the call with this command.
    pub(super) fn note(&self, command: u64, count: u64) {
        let mut taken = sync::lock(&self.state);
        if (taken.command, taken.count) < (command, count) {
            *taken = Taken { command, count };
        }
        drop(taken);
        self.changed.notify_all();
    }

    /// The number of results of the call with this command that were taken so far.
    pub(super) fn taken(&self, command: u64) -> u64 {
        let taken = *sync::lock(&self.state);
        if taken.command == command { taken.count } else { 0 }
    }

    /// Waits until more than `count` results of the call with this command are taken, while there is no error of `go_on`.
    ///
    /// # Errors
    /// [`Error::Deadline`]; errors of `go_on`.
    pub(super) fn wait(
        &self,
        command: u64,
        count: u64,
        deadline: Duration,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let (start, mut taken) = (Instant::now(), sync::lock(&self.state));
        while taken.command != command || taken.count <= count {
            go_on()?;
            let Some(left) = deadline.checked_sub(start.elapsed()) else {
                let state = format!("the controller has not taken result {count}");
                return Err(Error::Deadline { operation: "emit".to_owned(), after: deadline, state });
            };
            taken = sync::wait_timeout(&self.changed, taken, left);
        }
        Ok(())
    }
}
