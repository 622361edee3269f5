//! Analysis and diagnosis of a trace as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use disco_core::activity::{RecordKind, Recording};
use disco_core::{Diagnosis, WorkerId, WorkerRange};

use crate::analysis::{DEVICE_HEAD, latest, mismatches, on_device, shares, slowest};
use crate::calls::{Call, Calls};
use crate::format::{bandwidth, bytes, number, percent, table, time};
use crate::trace::Trace;

/// Largest number of rows of a table, and of mismatches.
const MAX_ROWS: usize = 10;
/// Largest number of places, and of workers in the table of times.
const MAX_WORKERS: usize = 32;

/// Explains a trace for a terminal: the operation that hangs or has failed, collectives that workers call differently,
/// the parts of each worker's time, the slowest collectives, times on devices, and the workers for which other workers waited.
pub fn explain(trace: &Trace) -> String {
    let calls = Calls::of(trace);
    let parts = [findings(trace, &calls), times(trace), slow(&calls), device(trace, &calls), late(trace, &calls)];
    let parts = parts.iter().filter(|part| !part.is_empty());
    parts.fold(head(trace), |text, part| format!("{text}\n{part}"))
}

/// The faults: operations that hang or have failed, also before recoveries, and collectives that workers call differently.
fn findings(trace: &Trace, calls: &Calls<'_>) -> String {
    let diagnoses = diagnoses(trace);
    let differences = differences(trace, calls, &diagnoses);
    let hangs = hangs(&diagnoses);
    if differences.is_empty() { hangs } else { format!("{hangs}\n{differences}") }
}

/// The program, its workers and places, the missing parts of the trace, and the error of its clocks.
fn head(trace: &Trace) -> String {
    let records: usize = trace.recordings().map(|recording| recording.records.len()).sum();
    let (first, last) = trace.range();
    let span = time(u64::try_from(last - first).unwrap_or(u64::MAX));
    let count = trace.workers.len();
    let workers = if count == 1 { "worker" } else { "workers" };
    let mut text = format!("Trace of {}: {count} {workers}, {records} records over {span}\n", trace.program);
    let mut places: Vec<(&str, Vec<WorkerId>)> = Vec::new();
    for it in &trace.workers {
        match places.iter_mut().find(|(place, _)| *place == it.place) {
            Some((_, workers)) => workers.push(it.worker),
            None => places.push((&it.place, vec![it.worker])),
        }
    }
    for (place, workers) in places.iter().take(MAX_WORKERS) {
        _ = writeln!(text, "  {place}: {}", WorkerRange::list(workers));
    }
    if let Some(more @ 1..) = places.len().checked_sub(MAX_WORKERS) {
        _ = writeln!(text, "  and {more} more places");
    }
    if !trace.missing.is_empty() {
        _ = writeln!(text, "{}", trace.missing);
    }
    for (worker, error) in trace.workers.iter().filter_map(|it| Some((it.worker, it.recording.as_ref().err()?))) {
        _ = writeln!(text, "No records of {worker}: {error}");
    }
    text += &clocks(trace);
    for (note, workers) in notes(trace) {
        _ = writeln!(text, "{}: {note}", WorkerRange::list(&workers));
    }
    let replaced: u64 = trace.recordings().map(|recording| recording.replaced).fold(0, u64::saturating_add);
    if replaced > 0 {
        _ = writeln!(text, "Later records have replaced {replaced} older ones.");
    }
    text
}

/// The notes of recordings with their workers: reasons why records are missing.
fn notes(trace: &Trace) -> BTreeMap<&str, Vec<WorkerId>> {
    let mut notes: BTreeMap<&str, Vec<WorkerId>> = BTreeMap::new();
    for (worker, recording) in trace.workers.iter().filter_map(|it| Some((it.worker, it.known()?))) {
        let texts = recording.records.iter().filter(|record| record.kind == RecordKind::Note);
        for text in texts.filter_map(|record| record.name.as_deref()) {
            let workers = notes.entry(text).or_default();
            if workers.last() != Some(&worker) {
                workers.push(worker);
            }
        }
    }
    notes
}

/// How exactly times of different machines can be compared.
fn clocks(trace: &Trace) -> String {
    let known = || trace.workers.iter().filter_map(|it| Some((&*it.place, it.known()?)));
    let unaligned: BTreeSet<&str> =
        known().filter(|(_, recording)| recording.alignment.is_empty()).map(|(place, _)| place).collect();
    // One place without an alignment may be the controller's machine.
    if unaligned.len() > 1 {
        let places = Vec::from_iter(unaligned).join(", ");
        return format!("The clocks of {places} are not aligned: compare times only within one of these places.\n");
    }
    let errors = |recording: &Recording| {
        let starts = recording.records.iter().map(|record| record.start);
        starts.chain([recording.time]).map(|time| recording.alignment.at(time).1).max()
    };
    match known().filter_map(|(_, recording)| errors(recording)).max() {
        None | Some(0) => String::new(),
        Some(error) => format!("The clocks of different machines are aligned within {}.\n", time(error)),
    }
}

/// The diagnosis of the time before each recovery, and of the time since the last one.
fn diagnoses(trace: &Trace) -> Vec<Option<Diagnosis>> {
    let recordings: Vec<_> = trace
        .workers
        .iter()
        .map(|it| (it.worker, it.recording.as_ref().map_err(|error| error as &dyn fmt::Display)))
        .collect();
    Diagnosis::of_epochs(&recordings)
}

fn hangs(diagnoses: &[Option<Diagnosis>]) -> String {
    let Some((now, before)) = diagnoses.split_last() else { return String::new() };
    let mut text = String::new();
    let failures = (1..).zip(before).filter_map(|(recovery, diagnosis)| Some((recovery, diagnosis.as_ref()?)));
    for (recovery, diagnosis) in failures.take(MAX_ROWS) {
        _ = writeln!(text, "Before recovery {recovery} of {}:\n{diagnosis}\n", before.len());
    }
    match now {
        Some(diagnosis) => _ = writeln!(text, "{diagnosis}"),
        None if before.is_empty() => text += "No operation hangs or has failed.\n",
        None => text += "No operation hangs or has failed since the last recovery.\n",
    }
    text
}

/// Mismatches of other operations than those of the diagnoses, which have their own.
fn differences(trace: &Trace, calls: &Calls<'_>, diagnoses: &[Option<Diagnosis>]) -> String {
    let mut all = mismatches(trace, calls);
    all.retain(|it| {
        let diagnosis = diagnoses.get(it.epoch).and_then(Option::as_ref);
        diagnosis.is_none_or(|diagnosis| (&*diagnosis.comm, diagnosis.number) != (it.comm, it.number))
    });
    let mut text = String::new();
    for it in all.iter().take(MAX_ROWS) {
        _ = writeln!(text, "Operation {} of {} was called with different arguments:", it.number, it.comm);
        for (call, workers) in &it.calls {
            _ = writeln!(text, "  {}: {call}", WorkerRange::list(workers));
        }
        if !it.skipped.is_empty() {
            _ = writeln!(text, "  {}: skipped this operation, and called later ones", WorkerRange::list(&it.skipped));
        }
    }
    if let Some(more @ 1..) = all.len().checked_sub(MAX_ROWS) {
        _ = writeln!(text, "and {more} more such operations");
    }
    text
}

fn times(trace: &Trace) -> String {
    let mut shares = shares(trace);
    if shares.is_empty() {
        return String::new();
    }
    let mut title = "Time of each worker:";
    if shares.len() > MAX_WORKERS {
        title = "Time of the workers that waited least, the likely stragglers:";
        shares.sort_by_key(|share| share.waiting);
        shares.truncate(MAX_ROWS);
    }
    let rows: Vec<_> = shares
        .iter()
        .map(|share| {
            let percent = |part| percent(part, share.recorded);
            [
                share.worker.to_string(),
                time(share.recorded),
                percent(share.waiting),
                percent(share.operations),
                percent(share.code),
                percent(share.rest),
            ]
        })
        .collect();
    let head = ["", "recorded", "waiting", "in operations", "in code", "between commands"];
    format!("{title}\n{}", table(head, &rows))
}

fn slow(calls: &Calls<'_>) -> String {
    let rows: Vec<_> = slowest(calls, MAX_ROWS).into_iter().map(|(call, took)| row(calls, call, took)).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = ["operation", "number", "took", "size", "algbw (GB/s)", "came last", "after the first"];
    format!("Slowest collectives, from the last worker's arrival on:\n{}", table(head, &rows))
}

fn row(calls: &Calls<'_>, call: &Call<'_>, took: u64) -> [String; 7] {
    let size = call.kind().zip(call.entries.first()).map_or(0, |(kind, entry)| calls.size(kind, entry.op));
    let spread = call.spread();
    let signature = call.entries.first().and_then(|entry| entry.record.signature()).unwrap_or_default();
    [
        signature,
        call.number.to_string(),
        time(took),
        bytes(size),
        if size > 0 { number(bandwidth(size, took)) } else { "–".to_owned() },
        call.latecomer().map_or("–".to_owned(), |entry| entry.worker.to_string()),
        time(spread),
    ]
}

fn device(trace: &Trace, calls: &Calls<'_>) -> String {
    let (rows, error) = on_device(trace, calls);
    if rows.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = rows.iter().take(MAX_ROWS).map(|row| row.cells()).collect();
    let title = "Times on devices, by event records of each worker's stream";
    format!("{title} (starts are known within {}):\n{}", time(error), table(DEVICE_HEAD, &rows))
}

fn late(trace: &Trace, calls: &Calls<'_>) -> String {
    let latest = latest(trace, calls);
    if latest.is_empty() {
        return String::new();
    }
    let rows = latest.iter().take(MAX_ROWS);
    let rows: Vec<_> =
        rows.map(|(worker, late)| [worker.to_string(), late.count.to_string(), time(late.time)]).collect();
    let head = ["", "waits", "time"];
    format!("Workers that arrived last, by the time that other ranks waited:\n{}", table(head, &rows))
}
