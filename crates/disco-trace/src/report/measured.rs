//! Results of `disco bench` to compare with.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::error::TraceError;

/// Bandwidths of one operation by size, as `disco bench --json` writes them.
#[derive(Clone, Debug, Deserialize)]
pub struct Measured {
    operation: String,
    workers: usize,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, Deserialize)]
struct Row {
    size: u64,
    out_of_place: Figures,
    in_place: Option<Figures>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Figures {
    algbw: f64,
}

impl Measured {
    /// Reads a file of `disco bench --json`.
    ///
    /// # Errors
    /// The file can't be read, or is no such file; the error names it.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let bytes = fs::read(path).map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
        serde_json::from_slice(&bytes).map_err(|error| TraceError::Format {
            path: path.to_owned(),
            line: error.line() as u64,
            reason: format!("not an output of `disco bench --json`: {error}"),
        })
    }

    /// The measured bandwidth of an operation in GB/s, of the smallest size that is not smaller.
    pub(super) fn bandwidth(all: &[Self], operation: &str, ranks: usize, size: u64) -> Option<f64> {
        let same = all.iter().filter(|it| it.operation == operation && it.workers == ranks);
        let rows = same.flat_map(|it| &it.rows).filter(|row| row.size >= size && row.size < size.saturating_mul(4));
        let row = rows.min_by_key(|row| row.size)?;
        let in_place = row.in_place.map_or(0.0, |figures| figures.algbw);
        Some(row.out_of_place.algbw.max(in_place))
    }
}
