//! The output of a replay: recorded and replayed numbers and times.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use disco_trace::command_log::OperationScope;
use serde::Serialize;

use super::conductor::Counts;
use super::plan::Plans;
use super::player::{Measured, Sum};
use super::recorded::Recorded;
use crate::output::table;

/// The results, as JSON.
#[derive(Serialize)]
pub(super) struct Report {
    program: String,
    recorded: World,
    replayed: World,
    /// Time from the first command to the end of the last command or wait, in ms.
    total_ms: Compared,
    /// Number of commands that were recorded and that the session of the replay has executed for them.
    commands: Numbers,
    kinds: Vec<Kind>,
    waits: Vec<Row>,
    /// Calls of one worker.
    functions: Vec<Row>,
    /// Operations of all workers.
    operations: Vec<Row>,
    /// Number of calls whose own records the log lacks. They have the duration and the operations of another call of their
    /// function.
    sampled_calls: u64,
    /// Number of calls without a recorded duration.
    calls_without_duration: u64,
    /// Number of operations of all workers that are left out, because not all ranks have recorded them.
    incomplete_operations: u64,
    /// Number of operations of all workers that are left out, because worker functions had split their communicators off.
    split_operations: u64,
    /// How the recorded program failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
    /// The log ends early: the program was killed, or still runs.
    is_cut: bool,
}

/// A session.
#[derive(Serialize)]
pub(super) struct World {
    session: String,
    workers: usize,
    groups: usize,
    /// `None` without a data plane.
    backend: Option<String>,
}

/// A time, recorded and replayed.
#[derive(Clone, Copy, Serialize)]
struct Compared {
    recorded: f64,
    replayed: f64,
    /// Replayed by recorded; `None` if nothing was recorded.
    ratio: Option<f64>,
}

#[derive(Clone, Copy, Serialize)]
struct Numbers {
    recorded: u64,
    replayed: u64,
}

#[derive(Serialize)]
struct Kind {
    kind: &'static str,
    recorded: u64,
    replayed: u64,
}

/// Calls, waits or operations of one kind.
#[derive(Serialize)]
struct Row {
    name: String,
    recorded: u64,
    replayed: u64,
    /// Mean time, in µs.
    mean_us: Compared,
}

#[derive(Serialize)]
struct Failure {
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
    error: String,
}

impl World {
    /// A session of kind `session`. `data_plane` has the backend.
    pub(super) fn new(session: &str, world: disco::World, data_plane: Option<&(String, Vec<i64>)>) -> Self {
        let backend = data_plane.map(|(backend, _)| backend.clone());
        Self { session: session.to_owned(), workers: world.size(), groups: world.groups(), backend }
    }
}

impl Compared {
    fn new(recorded: f64, replayed: f64) -> Self {
        Self { recorded, replayed, ratio: (recorded > 0.0).then(|| replayed / recorded) }
    }

    fn of_means(recorded: Sum, replayed: Sum) -> Self {
        let mean = |sum: Sum| sum.ns as f64 / 1e3 / sum.count.max(1) as f64;
        Self::new(mean(recorded), mean(replayed))
    }

    fn ratio(self) -> String {
        self.ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"))
    }
}

impl Report {
    pub(super) fn new(
        log: &Recorded,
        (recorded, replayed): (World, World),
        plans: &Plans,
        counts: &Counts,
        measured: &[Measured],
    ) -> Self {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let kinds = counts.commands.iter().map(|(kind, (recorded, replayed))| Kind {
            kind: kind.name(),
            recorded: *recorded,
            replayed: *replayed,
        });
        let waits = counts.waits.iter().map(|(kind, (recorded, replayed))| Row {
            name: kind.name().to_owned(),
            recorded: recorded.count,
            replayed: replayed.count,
            mean_us: Compared::of_means(*recorded, *replayed),
        });
        let failure = log.failure.as_ref().map(|failed| Failure {
            command: failed.command,
            function: failed.function.clone(),
            error: failed.why.clone(),
        });
        Self {
            program: log.head.program.clone(),
            recorded,
            replayed,
            total_ms: Compared::new(milliseconds(counts.total.0), milliseconds(counts.total.1)),
            commands: Numbers {
                recorded: counts.commands.values().map(|(recorded, _)| recorded).sum(),
                replayed: counts.submitted,
            },
            kinds: kinds.collect(),
            waits: waits.collect(),
            functions: functions(log, measured),
            operations: operations(log, measured),
            sampled_calls: plans.sampled,
            calls_without_duration: plans.unknown,
            incomplete_operations: plans.lonely,
            split_operations: plans.splits,
            failure,
            is_cut: log.end.is_none(),
        }
    }

    /// # Errors
    /// `out` fails.
    pub(super) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "Replay of {}: {}, as {}", self.program, self.recorded, self.replayed)?;
        let Compared { recorded, replayed, .. } = self.total_ms;
        writeln!(out, "recorded {recorded:.3} ms, replayed {replayed:.3} ms, ratio {}\n", self.total_ms.ratio())?;
        let kinds = self.kinds.iter().map(|it| [it.kind.to_owned(), it.recorded.to_string(), it.replayed.to_string()]);
        let total = ["all".to_owned(), self.commands.recorded.to_string(), self.commands.replayed.to_string()];
        table(out, &["commands", "recorded", "replayed"], kinds.chain([total]))?;
        for (title, rows) in [
            ("waits", &self.waits),
            ("functions, on each worker", &self.functions),
            ("operations, of all workers", &self.operations),
        ] {
            if !rows.is_empty() {
                writeln!(out)?;
                let head = [title, "recorded", "replayed", "recorded µs", "replayed µs", "ratio"];
                table(out, &head, rows.iter().map(Row::cells))?;
            }
        }
        self.notes().iter().try_for_each(|note| writeln!(out, "\n{note}"))
    }

    /// Sentences about differences between recording and replay.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |number: u64, text: &str| {
            if number > 0 {
                notes.push(format!("{number} {text}"));
            }
        };
        note(
            self.sampled_calls,
            "calls have the duration and the operations of another call of their function, because the log lacks their own records: later records have replaced them (DISCO_TRACE_RECORDS), or the log ends early.",
        );
        note(self.calls_without_duration, "calls have no recorded duration and take none.");
        note(
            self.incomplete_operations,
            "operations of workers are left out, because other ranks have not recorded their part.",
        );
        note(
            self.split_operations,
            "operations of communicators that the program had split off are left out; their time is not.",
        );
        if self.recorded.backend.is_some() && self.replayed.backend.is_none() {
            notes.push("Operations are left out, because the replay has no data plane; their time is not.".to_owned());
        }
        if self.is_cut {
            notes.push("The log ends early: the program was killed, or still runs.".to_owned());
        }
        if let Some(Failure { command, function, error }) = &self.failure {
            let at = match (command, function) {
                (Some(command), Some(function)) => {
                    format!(" in command {command}, `{function}`; later ones are left out")
                }
                (Some(command), None) => format!(" in command {command}; later ones are left out"),
                _ => String::new(),
            };
            notes.push(format!("The recorded program failed{at}: {error}"));
        }
        notes
    }
}

impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { session, workers, groups, backend } = self;
        write!(f, "{workers} workers ({session}")?;
        if *groups > 1 {
            write!(f, ", {groups} groups")?;
        }
        backend.iter().try_for_each(|backend| write!(f, ", {backend}"))?;
        f.write_str(")")
    }
}

impl Row {
    fn cells(&self) -> [String; 6] {
        let Self { name, recorded, replayed, mean_us } = self;
        let time = |us: f64| format!("{us:.1}");
        let (before, after) = (time(mean_us.recorded), time(mean_us.replayed));
        [name.clone(), recorded.to_string(), replayed.to_string(), before, after, mean_us.ratio()]
    }
}

fn functions(log: &Recorded, measured: &[Measured]) -> Vec<Row> {
    // Number of calls, and the durations of all workers.
    let mut calls: BTreeMap<&str, (u64, Sum)> = BTreeMap::new();
    for call in log.replayed() {
        let (number, durations) = calls.entry(&log.functions[call.function as usize]).or_default();
        *number += 1;
        log.workers.iter().filter_map(|calls| calls.get(&call.number)?.ns).for_each(|ns| durations.add(ns));
    }
    let row = |(name, (recorded, durations)): (&str, (u64, Sum))| {
        let sums = || measured.iter().map(|of| of.functions.get(name).copied().unwrap_or_default());
        Row {
            name: name.to_owned(),
            recorded,
            // All workers have executed all commands, so their numbers are equal.
            replayed: sums().map(|sum| sum.count).min().unwrap_or_default(),
            mean_us: Compared::of_means(durations, sums().fold(Sum::default(), Sum::plus)),
        }
    };
    calls.into_iter().map(row).collect()
}

fn operations(log: &Recorded, measured: &[Measured]) -> Vec<Row> {
    let mut sums: BTreeMap<&str, (Sum, Sum)> = BTreeMap::new();
    let recorded = log.workers.iter().flat_map(|calls| log.replayed().filter_map(|call| calls.get(&call.number)));
    for op in recorded.flat_map(|call| &call.ops).filter(|op| !op.failed && op.scope != OperationScope::Split) {
        sums.entry(&op.kind).or_default().0.add(op.ns);
    }
    for (kind, sum) in measured.iter().flat_map(|of| &of.ops) {
        let replayed = &mut sums.entry(kind).or_default().1;
        *replayed = replayed.plus(*sum);
    }
    let row = |(name, (recorded, replayed)): (&str, (Sum, Sum))| Row {
        name: name.to_owned(),
        recorded: recorded.count,
        replayed: replayed.count,
        mean_us: Compared::of_means(recorded, replayed),
    };
    sums.into_iter().map(row).collect()
}
