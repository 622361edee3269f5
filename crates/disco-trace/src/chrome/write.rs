//! Writes a trace, track by track.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use disco_core::activity::{Record, RecordKind, Recording};
use serde::Serialize;

use super::args::{Entry, Head, Track, category};
use super::counters;
use super::events::{Event, Events, microseconds};
use super::flows::Flows;
use super::lanes::{DEVICE_LANE, Lanes, TRACKS};
use crate::calls::Calls;
use crate::trace::{Trace, aligned, end, is_running};

/// The process of the controller; the processes of places follow.
const CONTROLLER: u64 = 1;

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct SortIndex {
    sort_index: u64,
}

#[derive(Serialize)]
struct Note {
    note: &'static str,
}

/// Writes all events.
pub(super) fn trace(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let range = trace.range();
    let mut events = Events::new(out, range.0);
    let head = Event {
        ph: "M",
        name: "disco_trace".into(),
        pid: CONTROLLER,
        tid: tid(0, 0),
        args: Some(Head::of(trace)),
        ..Event::default()
    };
    events.add(&head)?;
    let processes = processes(trace);
    if trace.controller.is_some() {
        name_process(&mut events, CONTROLLER, "controller")?;
    }
    for (place, pid) in &processes {
        name_process(&mut events, *pid, place)?;
    }
    let pid = |index: usize| match index.checked_sub(1) {
        None => CONTROLLER,
        Some(worker) => processes.get(&*trace.workers[worker].place).copied().unwrap_or(CONTROLLER),
    };
    let tracks = trace.controller.iter().map(|recording| (0, Track::of_controller(recording)));
    let tracks = tracks.chain(trace.workers.iter().enumerate().map(|(index, it)| (index + 1, Track::of_worker(it))));
    for (index, track) in tracks {
        let tid = tid(index, 0);
        let name = "thread_name".into();
        events.add(&Event { ph: "M", name, pid: pid(index), tid, args: Some(track), ..Event::default() })?;
        sort(&mut events, "thread_sort_index", (pid(index), tid), index as u64)?;
    }
    let calls = Calls::of(trace);
    let flows = Flows::of(trace, &calls);
    let recordings = trace.workers.iter().enumerate().filter_map(|(index, it)| Some((index + 1, it.known()?)));
    for (index, recording) in trace.controller.iter().map(|recording| (0, recording)).chain(recordings) {
        let pid = pid(index);
        let worker = index.checked_sub(1).map(|worker| trace.workers[worker].worker);
        let owner = worker.map_or("controller".to_owned(), |worker| worker.to_string());
        let (events, calls, flows) = (&mut events, &calls, &flows);
        Body { events, calls, flows, index, owner: &owner, pid, recording }.write()?;
        if worker.is_some() {
            counters::write(events, trace, range, calls, (&owner, recording), pid)?;
        }
    }
    events.end()
}

/// The places with their processes, in the order of the places' first workers.
fn processes(trace: &Trace) -> BTreeMap<&str, u64> {
    let mut processes = BTreeMap::new();
    for it in &trace.workers {
        let next = CONTROLLER + 1 + processes.len() as u64;
        processes.entry(&*it.place).or_insert(next);
    }
    processes
}

/// The thread of a track; 0 is the controller's. Threads of different processes have different numbers, because
/// Perfetto knows threads by them.
fn tid(index: usize, lane: usize) -> u64 {
    (index * TRACKS + lane + 1) as u64
}

fn name_process(events: &mut Events<'_>, pid: u64, name: &str) -> io::Result<()> {
    let args = Some(Name { name });
    events.add(&Event { ph: "M", name: "process_name".into(), pid, args, ..Event::default() })?;
    sort(events, "process_sort_index", (pid, 0), pid)
}

fn sort(events: &mut Events<'_>, name: &str, (pid, tid): (u64, u64), sort_index: u64) -> io::Result<()> {
    let args = Some(SortIndex { sort_index });
    events.add(&Event { ph: "M", name: name.into(), pid, tid, args, ..Event::default() })
}

/// The events of one recording.
struct Body<'b, 'o, 't> {
    events: &'b mut Events<'o>,
    calls: &'b Calls<'t>,
    flows: &'b Flows,
    /// 0 for the controller, otherwise 1 + the worker's position.
    index: usize,
    owner: &'b str,
    pid: u64,
    recording: &'t Recording,
}

impl Body<'_, '_, '_> {
    fn write(&mut self) -> io::Result<()> {
        let records = &self.recording.records;
        let mut order: Vec<usize> = (0..records.len()).collect();
        // On the controller's clock, the order may differ.
        order.sort_by_cached_key(|position| {
            let (record, at) = (&records[*position], |time| aligned(self.recording, time));
            (at(record.start), Reverse(at(end(self.recording, record))), *position)
        });
        if records.iter().any(|record| matches!(record.kind, RecordKind::Device(_))) {
            self.name_track(DEVICE_LANE, &format!("{}, device", self.owner))?;
        }
        let (mut lanes, mut device_end) = (Lanes::default(), i128::MIN);
        for position in order {
            self.record(position, &mut lanes, &mut device_end)?;
        }
        Ok(())
    }

    /// Writes a record. `device_end` is the end of the last slice on the device's track.
    fn record(&mut self, position: usize, lanes: &mut Lanes, device_end: &mut i128) -> io::Result<()> {
        let recording = self.recording;
        let record = &recording.records[position];
        let start = aligned(recording, record.start);
        let size = match (record.kind, &record.op) {
            (RecordKind::Op(kind) | RecordKind::Device(kind), Some(op)) => self.calls.size(kind, op),
            _ => 0,
        };
        let event = Event {
            name: self.name(record),
            cat: Some(category(record.kind)),
            pid: self.pid,
            ts: Some(self.events.time(start)),
            args: Some(Entry::of(record, size)),
            ..Event::default()
        };
        if matches!(record.kind, RecordKind::Mark | RecordKind::Note) {
            return self.events.add(&Event { ph: "i", s: Some("t"), tid: tid(self.index, 0), ..event });
        }
        if record.kind == RecordKind::Counter {
            let name = record.name.as_deref().unwrap_or("unnamed");
            self.events.add(&Event {
                ph: "M",
                name: "disco_counter".into(),
                tid: tid(self.index, 0),
                ts: None,
                ..event
            })?;
            return counters::point(self.events, (self.owner, name), self.pid, (start, record.value as f64));
        }
        if let RecordKind::Device(_) = record.kind {
            // A stream runs one operation after the other. Slices overlap only by the error of the clocks, and are cut.
            let (start, tid) = (start.max(*device_end), tid(self.index, DEVICE_LANE));
            let end = aligned(recording, end(recording, record)).max(start);
            *device_end = end;
            let (ts, dur) = (Some(self.events.time(start)), Some(microseconds(end - start)));
            self.events.add(&Event { ph: "X", tid, ts, dur, ..event })?;
            return self.flows.write(self.events, self.index, position, record, (self.pid, tid, start));
        }
        let known = lanes.len();
        let (lane, drawn) = lanes.place(start, aligned(recording, end(recording, record)));
        let tid = tid(self.index, lane);
        if lane >= known.max(1) {
            self.name_track(lane, &format!("{} ({})", self.owner, lane + 1))?;
        }
        self.events.add(&Event { ph: "X", tid, dur: Some(microseconds(drawn - start)), ..event })?;
        self.wait(record, (start, drawn), lanes)?;
        self.flows.write(self.events, self.index, position, record, (self.pid, tid, start))
    }

    /// The part of an operation that it waited.
    fn wait(&mut self, record: &Record, (start, drawn): (i128, i128), lanes: &mut Lanes) -> io::Result<()> {
        let Some(op) = record.op.as_ref().filter(|op| op.waited > 0) else { return Ok(()) };
        let end = drawn.min(start + i128::from(op.waited));
        if end <= start {
            return Ok(());
        }
        let (lane, end) = lanes.place(start, end);
        self.events.add(&Event {
            ph: "X",
            name: op.last.map_or("wait for ranks".into(), |last| format!("wait for {last}").into()),
            cat: Some("part"),
            pid: self.pid,
            tid: tid(self.index, lane),
            ts: Some(self.events.time(start)),
            dur: Some(microseconds(end - start)),
            args: Some(Note { note: "The length is measured. The position is not: the wait is drawn at the start." }),
            ..Event::default()
        })
    }

    fn name_track(&mut self, lane: usize, label: &str) -> io::Result<()> {
        let tid = tid(self.index, lane);
        let (name, args) = ("thread_name".into(), Some(Name { name: label }));
        self.events.add(&Event { ph: "M", name, pid: self.pid, tid, args, ..Event::default() })?;
        sort(self.events, "thread_sort_index", (self.pid, tid), self.index as u64)
    }

    /// The name that viewers show.
    fn name<'r>(&self, record: &'r Record) -> Cow<'r, str> {
        let name = match (record.kind, &record.name) {
            (RecordKind::Op(kind) | RecordKind::Device(kind), _) => Cow::Borrowed(kind.name()),
            (RecordKind::Command, Some(name)) if self.index == 0 => format!("submit {name}").into(),
            (_, Some(name)) => Cow::Borrowed(&**name),
            (kind, None) => Cow::Borrowed(category(kind)),
        };
        if is_running(record) { format!("{name} (unfinished)").into() } else { name }
    }
}
