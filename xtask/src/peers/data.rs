//! The measurements: one JSON file, from which the tables are rendered.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::built::root;

/// Our name among the systems of the control plane.
pub(crate) const DISCO: &str = "Disco";
pub(crate) const TVM: &str = "TVM";
pub(crate) const TVM_NODELAY: &str = "TVM, TCP_NODELAY";

/// All measurements. A run replaces the measurements that it repeats, and keeps the others.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Data {
    pub(crate) machine: Machine,
    /// Version by system.
    pub(crate) versions: BTreeMap<String, String>,
    /// The fastest of the settings that were tried, by number of ranks and library.
    pub(crate) settings: BTreeMap<String, String>,
    /// Smallest and largest latency of a cache line between two threads, in ns, by part of the measurements.
    pub(crate) placement: BTreeMap<String, [u64; 2]>,
    pub(crate) calls: Vec<Calls>,
    pub(crate) stuck: Vec<Stuck>,
    pub(crate) collectives: Vec<Collective>,
    pub(crate) idle: Vec<Idle>,
    pub(crate) beside: Vec<Beside>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
}

/// The control plane of one system with one number of workers.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Calls {
    /// Kind of session: `threads`, `processes` or `nodes`.
    pub(crate) kind: String,
    pub(crate) workers: usize,
    pub(crate) system: String,
    /// Results of each start of the program.
    pub(crate) starts: Vec<Ping>,
}

/// The output of `disco ping --json` and of the driver of TVM.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Ping {
    pub(crate) ready_ms: f64,
    pub(crate) sync_one: Latency,
    pub(crate) sync_all: Latency,
    pub(crate) calls_0_args: Rate,
    pub(crate) calls_4_args: Rate,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Latency {
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Rate {
    pub(crate) per_call_us: f64,
}

/// Memory of the controller for calls that are queued behind a stuck worker.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Stuck {
    pub(crate) kind: String,
    pub(crate) workers: usize,
    pub(crate) system: String,
    pub(crate) queued: Queued,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Queued {
    /// Number of calls that were queued until one waited for room, or until the limit of the measurement.
    pub(crate) calls: u64,
    /// Growth of the resident memory of the controller's process.
    pub(crate) bytes: u64,
    /// Whether a call waited for room.
    pub(crate) bounded: bool,
}

/// One collective of one system.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Collective {
    pub(crate) operation: String,
    pub(crate) ranks: usize,
    pub(crate) system: String,
    pub(crate) sizes: Vec<Size>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Size {
    /// Size of the larger of a rank's buffers.
    pub(crate) bytes: u64,
    /// Mean time of one operation, in µs, on the slowest rank, for each start of the program.
    pub(crate) us: Vec<f64>,
}

/// CPU time of a system that has nothing to do.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Idle {
    pub(crate) job: String,
    pub(crate) system: String,
    /// CPU time of all processes, in percent of one CPU.
    pub(crate) percent: f64,
}

/// A system beside a program that computes on all CPUs.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Beside {
    pub(crate) job: String,
    pub(crate) system: String,
    /// Rounds per second without and with the computing program.
    pub(crate) alone: f64,
    pub(crate) beside: f64,
    /// The rate of the computing program, in percent of its rate alone.
    pub(crate) compute_percent: f64,
}

pub(crate) fn file() -> PathBuf {
    root().join("docs/performance/peers.json")
}

impl Data {
    /// The measurements of the file, or none if there is no file.
    ///
    /// # Errors
    /// The file can't be read, or is not of this format.
    pub(crate) fn load() -> Result<Self> {
        let path = file();
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} has another format", path.display()))
    }

    pub(crate) fn save(&self) -> Result<()> {
        let path = file();
        fs::create_dir_all(path.parent().context("the file is in a folder")?)?;
        let mut text = serde_json::to_string(self)?;
        // One measurement a line.
        text = text.replace("{\"kind\"", "\n{\"kind\"").replace("{\"operation\"", "\n{\"operation\"");
        text = text.replace("{\"job\"", "\n{\"job\"").replace("],\"", "],\n\"") + "\n";
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The results of a system, without those of an earlier run.
    pub(crate) fn calls(&mut self, kind: &str, workers: usize, system: &str, start: usize) -> &mut Calls {
        let is_same = |it: &Calls| it.kind == kind && it.workers == workers && it.system == system;
        let new = || Calls { kind: kind.into(), workers, system: system.into(), starts: Vec::new() };
        let found = entry(&mut self.calls, is_same, new);
        found.starts.truncate(start);
        found
    }

    pub(crate) fn collective(&mut self, operation: &str, ranks: usize, system: &str) -> &mut Collective {
        let is_same = |it: &Collective| it.operation == operation && it.ranks == ranks && it.system == system;
        entry(&mut self.collectives, is_same, || Collective {
            operation: operation.into(),
            ranks,
            system: system.into(),
            sizes: Vec::new(),
        })
    }

    /// Widens the placement of a part. The first probe of a run begins a new range.
    pub(crate) fn placed(&mut self, part: &str, ns: u64, is_first: bool) {
        let range = self.placement.entry(part.to_owned()).or_insert([ns, ns]);
        *range = if is_first { [ns, ns] } else { [range[0].min(ns), range[1].max(ns)] };
    }
}

impl Collective {
    /// Adds a time of process start `start`, in place of those of an earlier run.
    pub(crate) fn add(&mut self, start: usize, bytes: u64, us: f64) {
        let size = entry(&mut self.sizes, |size| size.bytes == bytes, || Size { bytes, us: Vec::new() });
        size.us.truncate(start);
        size.us.push(us);
    }
}

/// The element that is the same, or a new one.
fn entry<T>(all: &mut Vec<T>, is_same: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let index = all.iter().position(is_same).unwrap_or_else(|| {
        all.push(new());
        all.len() - 1
    });
    &mut all[index]
}

/// Median, smallest and largest.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> Option<[f64; 3]> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let (first, last) = (*values.first()?, *values.last()?);
    let middle = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
    Some([middle, first, last])
}
