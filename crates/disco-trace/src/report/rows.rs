//! Workers as rows of a picture: one each, or several if there are many.

use disco_core::{WorkerId, WorkerRange};

use crate::trace::Trace;

/// Largest number of rows.
const MAX_ROWS: usize = 64;

/// The rows of a picture.
pub(super) struct Rows {
    workers: Vec<WorkerId>,
    /// Workers of a row.
    size: usize,
}

impl Rows {
    pub(super) fn of(trace: &Trace) -> Self {
        let workers: Vec<WorkerId> = trace.workers.iter().map(|it| it.worker).collect();
        let size = workers.len().div_ceil(MAX_ROWS).max(1);
        Self { workers, size }
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.workers.len().div_ceil(self.size)
    }

    /// The row of a worker.
    pub(super) fn of_worker(&self, worker: WorkerId) -> usize {
        self.workers.binary_search(&worker).unwrap_or_default() / self.size
    }

    pub(super) fn name(&self, row: usize) -> String {
        let workers = self.workers.chunks(self.size).nth(row).unwrap_or_default();
        WorkerRange::list(workers)
    }

    /// The name without its first word.
    pub(super) fn short(&self, row: usize) -> String {
        let name = self.name(row);
        name.split_once(' ').map_or(name.clone(), |(_, numbers)| numbers.replace(" to ", "–"))
    }
}
