//! Reads a trace, line by line.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

use disco_core::activity::Recording;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::FORMAT;
use super::args::{Entry, Head, Track};
use super::lanes::TRACKS;
use crate::lines::{Failure, Lines, NOT_A_TRACE};
use crate::trace::{Missing, Trace};

/// The parts of an event that are read.
#[derive(Deserialize)]
struct Event<'a> {
    ph: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    tid: u64,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
}

/// Reads all events.
pub(super) fn trace(content: impl Read) -> Result<Trace, Failure> {
    Reader::default().read(Lines::of(content).map_err(Failure::Io)?)
}

#[derive(Default)]
struct Reader {
    trace: Trace,
    /// Number of workers and records of the head.
    expected: Missing,
    has_head: bool,
    names: BTreeSet<Arc<str>>,
}

impl Reader {
    fn read<R: Read>(mut self, mut lines: Lines<R>) -> Result<Trace, Failure> {
        let mut line = Vec::new();
        while let Some((text, is_whole)) = lines.next(&mut line)? {
            let text = text.strip_suffix(b",").unwrap_or(text);
            match text {
                b"[" | b"]" | b"" => continue,
                _ => {}
            }
            match self.event(text) {
                Ok(()) => {}
                // The line that was cut.
                Err(_) if !is_whole && self.has_head => break,
                Err(reason) => return Err(lines.wrong(reason)),
            }
        }
        if !self.has_head {
            return Err(lines.wrong(format!("{NOT_A_TRACE}: the file ends before its first event")));
        }
        let records = self.trace.recordings().map(|recording| recording.records.len() as u64).sum();
        let workers = self.trace.workers.len() as u64;
        let missing = &mut self.trace.missing;
        missing.workers = missing.workers.saturating_add(self.expected.workers.saturating_sub(workers));
        missing.records = missing.records.saturating_add(self.expected.records.saturating_sub(records));
        self.trace.workers.sort_by_key(|worker| worker.worker);
        // The file is in the order of their starts.
        let workers = self.trace.workers.iter_mut().filter_map(|worker| worker.recording.as_mut().ok());
        for recording in self.trace.controller.iter_mut().chain(workers) {
            recording.records.sort_by_key(|record| record.number);
        }
        Ok(self.trace)
    }

    fn event(&mut self, line: &[u8]) -> Result<(), String> {
        let event: Event<'_> = serde_json::from_slice(line).map_err(|error| {
            if self.has_head { format!("no event: {error}") } else { format!("{NOT_A_TRACE}: {error}") }
        })?;
        let args = event.args.map_or("{}", RawValue::get);
        match (&*event.ph, &*event.name, &*event.cat) {
            ("M", "disco_trace", _) => {
                let head: Head<'_> = parse(args)?;
                if head.format != FORMAT {
                    return Err(format!("the format is `{}`; this version reads `{FORMAT}`", head.format));
                }
                self.trace.program = head.program.to_string();
                self.trace.missing = head.missing();
                self.expected = Missing { workers: head.workers, records: head.records };
                self.has_head = true;
            }
            _ if !self.has_head => return Err(NOT_A_TRACE.to_owned()),
            // Further tracks of a worker have only a name.
            ("M", "thread_name", _) if event.tid % TRACKS as u64 == 1 => match parse::<Track<'_>>(args)?.decode() {
                Ok(worker) => self.trace.workers.push(worker),
                Err(controller) => self.trace.controller = Some(controller),
            },
            ("X" | "i", _, "command" | "op" | "span" | "wait" | "mark" | "device" | "note")
            | ("M", "disco_counter", _) => {
                let names = &mut self.names;
                let record = parse::<Entry<'_>>(args)?.decode(&mut |name| {
                    names.get(name).cloned().unwrap_or_else(|| {
                        let name: Arc<str> = name.into();
                        names.insert(name.clone());
                        name
                    })
                })?;
                let recording = recording(&mut self.trace, event.tid).ok_or("a record of no track")?;
                recording.records.push(record);
            }
            _ => {}
        }
        Ok(())
    }
}

fn parse<'a, T: Deserialize<'a>>(args: &'a str) -> Result<T, String> {
    serde_json::from_str(args).map_err(|error| error.to_string())
}

/// The recording of a thread.
fn recording(trace: &mut Trace, tid: u64) -> Option<&mut Recording> {
    let index = usize::try_from(tid.checked_sub(1)?).ok()? / TRACKS;
    match index.checked_sub(1) {
        None => trace.controller.as_mut(),
        Some(worker) => trace.workers.get_mut(worker)?.recording.as_mut().ok(),
    }
}
