//! The start of new workers.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;

use super::fleet::Fleet;
use super::new_lanes::{NewLane, end};
use super::reply_table::ReplyTable;
use crate::channel::Channel;
use crate::error::{Error, Result};

/// Starts the lanes that `make` returns, at the same time.
pub(super) fn start(
    fleet: &Fleet,
    operation: &str,
    make: impl FnOnce() -> Result<Vec<Arc<dyn Channel>>>,
    table: &Arc<ReplyTable>,
) -> Result<Vec<NewLane>> {
    let run = AssertUnwindSafe(|| start_lanes(fleet, operation, make()?, table));
    panic::catch_unwind(run).unwrap_or_else(|_: Box<dyn Any + Send>| Err(panicked()))
}

fn start_lanes(
    fleet: &Fleet,
    operation: &str,
    lanes: Vec<Arc<dyn Channel>>,
    table: &Arc<ReplyTable>,
) -> Result<Vec<NewLane>> {
    let new: Vec<NewLane> = lanes.into_iter().map(|lane| NewLane::new(lane, table)).collect();
    fleet.note_starting(new.iter().map(|new| new.lane().clone()).collect());
    let start = |new: &NewLane| match fleet.is_over() {
        true => Err(Error::Closed(operation.to_owned())),
        false => new.start(),
    };
    let started = thread::scope(|scope| {
        let starts: Vec<_> = new.iter().map(|new| scope.spawn(move || start(new))).collect();
        let panicked = |_: Box<dyn Any + Send>| Err(panicked());
        // Waits for all of them, also after the first error.
        let ends: Vec<_> = starts.into_iter().map(|started| started.join().unwrap_or_else(panicked)).collect();
        ends.into_iter().collect::<Result<()>>()
    });
    fleet.note_starting(Vec::new());
    match started {
        Ok(()) => Ok(new),
        Err(error) => {
            end(&new);
            Err(error)
        }
    }
}

pub(super) fn panicked() -> Error {
    Error::state("replace_lost: the start of new workers panicked")
}
