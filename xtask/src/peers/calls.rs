//! The control plane beside that of TVM.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::programs::{self, Programs, TVM_VERSION};
use super::tables::{self, between, spread, winner};
use super::{collectives, conditions};

/// Kinds of sessions with numbers of workers. Nodes are two.
const SESSIONS: [(&str, [usize; 3]); 3] = [("threads", [1, 4, 8]), ("processes", [1, 4, 8]), ("nodes", [2, 4, 8])];
/// Number of timed syncs, and of calls in hundreds.
const ROUNDS: &str = "200";

const DISCO: &str = "Disco";
const TVM: &str = "TVM";
const TVM_NODELAY: &str = "TVM, TCP_NODELAY";

/// The output of `disco ping --json` and of the driver of TVM.
#[derive(Debug, Deserialize)]
pub(super) struct Ping {
    ready_ms: f64,
    sync_one: Latency,
    sync_all: Latency,
    pub(super) calls_0_args: Rate,
    calls_4_args: Rate,
}

#[derive(Debug, Deserialize)]
struct Latency {
    median_us: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Rate {
    pub(super) per_call_us: f64,
}

pub(super) type Metric = (&'static str, &'static str, fn(&Ping) -> f64);
/// Figures of the control plane: name, unit, and value.
pub(super) const METRICS: [Metric; 4] = [
    ("call with 4 arguments", "µs", |ping| ping.calls_4_args.per_call_us),
    ("sync of one worker", "µs", |ping| ping.sync_one.median_us),
    ("sync of all workers", "µs", |ping| ping.sync_all.median_us),
    ("start-up", "ms", |ping| ping.ready_ms),
];

/// One system with one number of workers.
struct Series {
    kind: &'static str,
    workers: usize,
    system: &'static str,
    /// Results of each start of the program.
    pings: Vec<Ping>,
}

impl Series {
    /// The command that measures; `None` without TVM.
    fn command(&self, programs: &Programs, rounds: &str) -> Option<Command> {
        let workers = self.workers.to_string();
        if self.system == DISCO {
            let mut command = Command::new(&programs.disco);
            command.args(["ping", "--json", "--session", self.kind, "--workers", &workers, "--rounds", rounds]);
            return Some(command);
        }
        let mut command = Command::new(programs.tvm.as_ref()?);
        command.env("PEERS_NODELAY", if self.system == TVM_NODELAY { "1" } else { "0" });
        command.args(["ping", self.kind, &workers, rounds]);
        Some(command)
    }
}

/// Measures calls, syncs and start-up, `starts` times in turn, and shows the tables.
///
/// # Errors
/// Disco fails, or a document can't be written. A failure of a peer is printed.
pub(super) fn measure(programs: &Programs, starts: usize, quick: bool, is_written: bool) -> Result<()> {
    let rounds = if quick { "50" } else { ROUNDS };
    let mut all = Vec::new();
    for (kind, workers) in SESSIONS.iter().flat_map(|(kind, all)| all.iter().map(move |workers| (*kind, *workers))) {
        let systems = if kind == "nodes" { &[DISCO, TVM, TVM_NODELAY][..] } else { &[DISCO, TVM] };
        all.extend(systems.iter().map(|system| Series { kind, workers, system, pings: Vec::new() }));
    }
    let mut placement = collectives::placement(&programs.disco)?;
    for start in 0..starts {
        for series in &mut all {
            let Some(mut command) = series.command(programs, rounds) else { continue };
            let name = format!("{}: {} {}, start {}", series.system, series.kind, series.workers, start + 1);
            eprintln!("== calls: {name}");
            match programs::json(&mut command) {
                Ok(ping) => series.pings.push(ping),
                Err(error) if series.system == DISCO => return Err(error).context(name),
                Err(error) => eprintln!("== {name}: {error:#}"),
            }
        }
    }
    placement.extend(collectives::placement(&programs.disco)?);
    let conditions = conditions(&[format!("TVM {TVM_VERSION}")], &placement)?;
    let figures: String = METRICS.iter().map(|metric| table(&all, metric) + "\n").collect();
    tables::show("calls", &format!("{figures}{conditions}"), is_written)?;
    tables::show("summary", &format!("{}\n{conditions}", summary(&all)), is_written)
}

/// Values of one figure over the starts.
fn values(all: &[Series], kind: &str, workers: usize, system: &str, value: fn(&Ping) -> f64) -> Option<[f64; 3]> {
    let is_it = |it: &&Series| it.kind == kind && it.workers == workers && it.system == system;
    spread(all.iter().find(is_it)?.pings.iter().map(value))
}

/// A figure of all sessions and systems.
fn table(all: &[Series], (name, unit, value): &Metric) -> String {
    let mut text =
        format!("| {name}, {unit} | {DISCO} | {TVM} | {TVM_NODELAY} | TVM / Disco |\n|---|---|---|---|---|\n");
    for of in all.iter().filter(|of| of.system == DISCO) {
        let row = [DISCO, TVM, TVM_NODELAY].map(|system| values(all, of.kind, of.workers, system, *value));
        let kind = if of.kind == "nodes" { "workers on 2 nodes" } else { of.kind };
        let best = row[1..].iter().flatten().map(|it| it[0]).reduce(f64::min);
        let ratio = best.zip(row[0]).map_or("–".into(), |(best, ours)| format!("{:.1}", best / ours[0]));
        let [disco, tvm, nodelay] = winner(row);
        let _ = writeln!(text, "| {kind}: {} | {disco} | {tvm} | {nodelay} | {ratio} |", of.workers);
    }
    text
}

/// The ranges at 8 workers, for the README.
fn summary(all: &[Series]) -> String {
    let mut text =
        format!("| 8 workers: threads / processes / 2 nodes × 4 | {DISCO} | {TVM}'s Disco |\n|---|---|---|\n");
    for (name, unit, value) in &METRICS[..3] {
        let cells = [[DISCO; 3], [TVM, TVM, TVM_NODELAY]].map(|systems| {
            let ranges = ["threads", "processes", "nodes"].into_iter().zip(systems).map(|(kind, system)| {
                let range = values(all, kind, 8, system, *value);
                range.map_or("–".into(), |[_, low, high]| between(low, high))
            });
            ranges.collect::<Vec<_>>().join(" / ")
        });
        let _ = writeln!(text, "| {name} | {} {unit} | {} {unit} |", cells[0], cells[1]);
    }
    text
}
