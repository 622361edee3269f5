//! Counters that follow from records: commands that are submitted but unfinished, and bytes of operations per second.

use std::collections::BTreeMap;
use std::io;

use disco_core::activity::{Record, RecordKind, Recording};
use serde::Serialize;

use super::events::{Event, Events};
use crate::calls::Calls;
use crate::trace::{Trace, aligned, end};

/// Parts of the time of a trace, each with one bandwidth.
const PARTS: i128 = 1_000;

#[derive(Serialize)]
struct Value {
    value: f64,
}

/// Writes the value of a counter of `owner` at a time.
pub(super) fn point(
    events: &mut Events<'_>,
    (owner, name): (&str, &str),
    pid: u64,
    (time, value): (i128, f64),
) -> io::Result<()> {
    let (name, ts) = (format!("{owner} {name}").into(), Some(events.time(time)));
    events.add(&Event { ph: "C", name, pid, ts, args: Some(Value { value }), ..Event::default() })
}

/// Writes the counters of a worker.
pub(super) fn write(
    events: &mut Events<'_>,
    trace: &Trace,
    range: (i128, i128),
    calls: &Calls<'_>,
    (worker, recording): (&str, &Recording),
    pid: u64,
) -> io::Result<()> {
    let mut add =
        |name: &str, points: &[(i128, f64)]| points.iter().try_for_each(|at| point(events, (worker, name), pid, *at));
    if let Some(controller) = &trace.controller {
        add("unfinished commands", &unfinished(controller, recording))?;
    }
    add("GB/s", &bandwidth(range, calls, recording))
}

/// The number of unfinished commands, after each change.
fn unfinished(controller: &Recording, worker: &Recording) -> Vec<(i128, f64)> {
    let submitted = commands(controller).map(|(it, record)| (aligned(it, record.start), 1, record.command));
    let done = commands(worker).filter_map(|(it, record)| Some((aligned(it, record.end?), -1, record.command)));
    // A command counts only if both ends are recorded, or may still come.
    let first = commands(worker).map(|(_, record)| record.command).min().unwrap_or(u64::MAX);
    let known = commands(controller).map(|(_, record)| record.command).min().unwrap_or(u64::MAX);
    let mut changes: Vec<(i128, i64, u64)> =
        submitted.chain(done).filter(|(.., command)| *command >= first.max(known)).collect();
    changes.sort_unstable();
    let mut count = 0_i64;
    changes
        .into_iter()
        .map(|(time, change, _)| {
            count += change;
            (time, count.max(0) as f64)
        })
        .collect()
}

fn commands(recording: &Recording) -> impl Iterator<Item = (&Recording, &Record)> {
    let all = recording.records.iter().filter(|record| record.kind == RecordKind::Command);
    all.map(move |record| (recording, record))
}

/// The bytes of operations per second, in GB/s, at the start of each part in which it changes.
fn bandwidth((first, last): (i128, i128), calls: &Calls<'_>, recording: &Recording) -> Vec<(i128, f64)> {
    let part = ((last - first) / PARTS).max(1);
    let mut bytes: BTreeMap<i128, f64> = BTreeMap::new();
    for record in &recording.records {
        let (RecordKind::Op(kind), Some(op)) = (record.kind, &record.op) else { continue };
        let size = calls.size(kind, op) as f64;
        let (start, end) =
            (aligned(recording, record.start) - first, aligned(recording, end(recording, record)) - first);
        if size == 0.0 || record.end.is_none() {
            continue;
        }
        let length = (end - start).max(1);
        for at in start / part..=(end.max(start + 1) - 1) / part {
            let inside = (start + length).min((at + 1) * part) - start.max(at * part);
            *bytes.entry(at).or_default() += size * inside as f64 / length as f64;
        }
    }
    let mut points = Vec::new();
    for (at, size) in &bytes {
        // Bytes per nanosecond are GB/s.
        points.push((first + at * part, (size / part as f64 * 1e3).round() / 1e3));
        if !bytes.contains_key(&(at + 1)) {
            points.push((first + (at + 1) * part, 0.0));
        }
    }
    points
}
