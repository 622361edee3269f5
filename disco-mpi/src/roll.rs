//! Who has come: MPI does not say whom it waits for, so ranks that have waited too long tell each other through the session's
//! store that they did come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::{Rank, Store};

/// How long others may take to say that they have waited as long.
const GRACE: Duration = Duration::from_millis(300);

/// The ranks of one communicator, as far as they can be asked.
#[derive(Debug)]
pub(crate) struct Roll {
    store: Arc<dyn Store>,
    /// Alike on all ranks, unlike that of any other communicator.
    name: String,
    rank: usize,
    size: usize,
    splits: u64,
}

impl Roll {
    pub(crate) fn new(store: Arc<dyn Store>, name: String, rank: usize, size: usize) -> Self {
        Self { store, name, rank, size, splits: 0 }
    }

    /// That of a communicator which is split off this one, and of which this rank is another.
    pub(crate) fn child(&mut self, color: u32, rank: usize, size: usize) -> Self {
        self.splits += 1;
        Self::new(self.store.clone(), format!("{}, split {} color {color}", self.name, self.splits), rank, size)
    }

    /// In words, who is not in operation `number`, which this rank has waited in for too long.
    pub(crate) fn call(&self, number: u64) -> String {
        let key = |rank: usize| format!("{}: rank {rank} waits in {number}", self.name);
        if let Err(error) = self.store.set(&key(self.rank), b"") {
            return format!("who has not come can't be found out: {error}");
        }
        let start = Instant::now();
        let is_missing = |rank: &usize| self.store.wait(&key(*rank), GRACE.saturating_sub(start.elapsed())).is_err();
        let missing: Vec<String> =
            (0..self.size).filter(is_missing).map(|rank| Rank::new(rank as u32).to_string()).collect();
        match missing.as_slice() {
            [] => "all ranks have come; DISCO_CHECK=1 tells whether they call the same".to_owned(),
            [one] => format!("{one} has not come"),
            several => format!("{} have not come", several.join(", ")),
        }
    }
}
