//! Arrows between slices: from a submission to the command on each worker, through the calls of a collective, and from an
//! operation to its time on the device.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;

use disco_core::activity::{Record, RecordKind, Recording};

use super::events::{Event, Events};
use crate::calls::Calls;
use crate::trace::{Trace, launch_key};

/// The slices that arrows connect. The arrows are written beside their slices.
pub(super) struct Flows {
    /// The numbers of the recorded commands: the controller's, then the workers'.
    commands: Vec<Option<RangeInclusive<u64>>>,
    /// For each worker its collectives, in the order of positions.
    calls: Vec<Vec<Step>>,
    /// For each worker the operations that have a time on the device, and these times, in the order of positions.
    launches: Vec<Vec<Step>>,
}

/// One call in the flow of its collective.
struct Step {
    /// Position of the record.
    position: usize,
    /// The flow.
    id: u64,
    phase: &'static str,
}

impl Flows {
    pub(super) fn of(trace: &Trace, calls: &Calls<'_>) -> Self {
        let workers = trace.workers.iter().map(|it| it.known().and_then(commands));
        let commands = std::iter::once(trace.controller.as_ref().and_then(commands)).chain(workers).collect();
        let mut steps: Vec<Vec<Step>> = trace.workers.iter().map(|_| Vec::new()).collect();
        for (id, call) in (1..).zip(&calls.all).filter(|(_, call)| call.entries.len() > 1) {
            let mut entries: Vec<_> = call.entries.iter().collect();
            entries.sort_by_key(|entry| (entry.start, entry.index));
            let last = entries.len() - 1;
            for (number, entry) in entries.into_iter().enumerate() {
                let phase = if number == 0 {
                    "s"
                } else if number == last {
                    "f"
                } else {
                    "t"
                };
                steps[entry.index].push(Step { position: entry.position, id, phase });
            }
        }
        steps.iter_mut().for_each(|steps| steps.sort_by_key(|step| step.position));
        let mut next = 1;
        let launches = trace.workers.iter().map(|it| it.known().map_or(Vec::new(), |it| launches(it, &mut next)));
        Self { commands, calls: steps, launches: launches.collect() }
    }

    /// Writes the arrows of a record whose slice is at `at` (process, thread, start).
    pub(super) fn write(
        &self,
        events: &mut Events<'_>,
        index: usize,
        position: usize,
        record: &Record,
        (pid, tid, start): (u64, u64, i128),
    ) -> io::Result<()> {
        let ts = Some(events.time(start));
        let mut add = |ph, cat, id| {
            // A flow is known by category, name and number.
            let bp = (ph == "f").then_some("e");
            let (name, cat) = (Cow::Borrowed(cat), Some(cat));
            events.add(&Event { ph, name, cat, pid, tid, ts, id: Some(id), bp, ..Event::<()>::default() })
        };
        let id =
            |worker: usize| record.command.saturating_mul(self.commands.len() as u64).saturating_add(worker as u64);
        let has = |index: usize| self.commands[index].as_ref().is_some_and(|range| range.contains(&record.command));
        match (record.kind, index.checked_sub(1)) {
            (RecordKind::Command, None) => (1..self.commands.len())
                .filter(|worker| has(*worker))
                .try_for_each(|worker| add("s", "submit", id(worker))),
            (RecordKind::Command, Some(_)) if has(0) => add("f", "submit", id(index)),
            (RecordKind::Op(_) | RecordKind::Device(_), Some(worker)) => {
                let flows = [("collective", &self.calls[worker]), ("launch", &self.launches[worker])];
                flows.into_iter().try_for_each(|(cat, steps)| {
                    match steps.binary_search_by_key(&position, |step| step.position) {
                        Ok(step) => add(steps[step].phase, cat, steps[step].id),
                        Err(_) => Ok(()),
                    }
                })
            }
            _ => Ok(()),
        }
    }
}

/// The flows from operations to their times on the device, numbered from `next` on.
fn launches(recording: &Recording, next: &mut u64) -> Vec<Step> {
    let mut open = HashMap::new();
    let mut steps = Vec::new();
    for (position, record) in recording.records.iter().enumerate() {
        match record.kind {
            RecordKind::Op(_) => _ = open.insert(launch_key(record), position),
            RecordKind::Device(_) => {
                if let Some(host) = open.remove(&launch_key(record)) {
                    let id = *next;
                    *next += 1;
                    steps.push(Step { position: host, id, phase: "s" });
                    steps.push(Step { position, id, phase: "f" });
                }
            }
            _ => {}
        }
    }
    steps.sort_by_key(|step| step.position);
    steps
}

/// The numbers of the commands that are recorded.
fn commands(recording: &Recording) -> Option<RangeInclusive<u64>> {
    let numbers = || recording.records.iter().filter(|it| it.kind == RecordKind::Command).map(|it| it.command);
    Some(numbers().min()?..=numbers().max()?)
}
