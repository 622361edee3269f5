//! Writes the command log of a session while it runs.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use disco_core::activity::{OpDetails, OpState, Record, RecordKind, Recording, nanoseconds};
use disco_core::channel::Reply;
use disco_core::session::{Observer, Timeline};
use disco_core::{Command as Submitted, Error, Local, RegisterId, Value, sync};

use super::line::{Call, Command, CommandKind, End, Head, Line, Operation, OperationScope, Wait, Worker};
use super::writer::Writer;
use super::{Described, FORMAT};
use crate::error::TraceError;

/// Longest text of an error in a log, in bytes.
const MAX_ERROR: usize = 4 << 10;

/// Writes a command log: as the [`Observer`] of a session, and its calls once the session has ended.
///
/// A thread of its own writes the file, so that commands wait only if 8 MiB of lines are not written yet. If they wait
/// for 1 s, or a write fails, the log ends there with a warning. What was recorded 2 s ago can be read, also if the
/// program is killed.
pub struct Recorder {
    /// The time of the machine's clock at which the recording began.
    start: u64,
    writer: Writer,
    names: Mutex<Names>,
}

/// What the lines of earlier commands have told.
#[derive(Default)]
struct Names {
    /// The function in a register.
    functions: HashMap<RegisterId, Arc<str>>,
    /// The threads that have waited.
    threads: HashMap<ThreadId, u32>,
    /// The text of the last wait, if it failed.
    last_error: Option<String>,
}

impl Recorder {
    /// Creates the file, with its head. `warn` is called once, from another thread, if the log ends early.
    ///
    /// # Errors
    /// The file can't be created; the error names it.
    pub fn create(path: &Path, head: Head, warn: impl Fn(&str) + Send + Sync + 'static) -> Result<Self, TraceError> {
        let writer = Writer::create(path, Arc::new(warn))?;
        writer.add(&Line::Session(Head { format: FORMAT.to_owned(), ..head }));
        Ok(Self { start: nanoseconds(), writer, names: Mutex::default() })
    }

    /// Writes what the workers have recorded, and ends the file.
    pub fn finish(&self, timeline: &Timeline) {
        for (worker, recording) in &timeline.workers {
            let (replaced, error) = match recording {
                Ok(recording) => (recording.replaced, None),
                Err(error) => (0, Some(cut(error.to_string()))),
            };
            self.writer.add(&Line::Worker(Worker::new(*worker, replaced, error)));
            recording.iter().for_each(|recording| self.add_calls(recording));
        }
        let last_error = sync::lock(&self.names).last_error.take();
        // A session that is dropped without a shutdown counts as lost.
        let dropped = Error::Closed("drop".to_owned()).to_string();
        let failure = timeline.status.failure.clone().filter(|text| *text != dropped).or(last_error);
        let end = End { time_ns: self.now(), commands: timeline.status.commands, failure: failure.map(cut) };
        self.writer.add(&Line::End(end));
        self.writer.close();
    }

    fn now(&self) -> u64 {
        nanoseconds().saturating_sub(self.start)
    }

    /// Writes the calls of a worker, and the operations inside them.
    fn add_calls(&self, recording: &Recording) {
        let mut call: Option<(Call, u64)> = None;
        for record in &recording.records {
            match record.kind {
                RecordKind::Command => {
                    call.take().into_iter().for_each(|(call, _)| self.writer.add(&Line::Call(call)));
                    let failed = record.state == OpState::Failed;
                    let (number, ns) = (record.command, record.end.map(|end| end - record.start));
                    call = is_call(record).then(|| (Call { number, ns, failed, ops: Vec::new() }, record.start));
                }
                RecordKind::Op(kind) => {
                    let open = call.as_mut().filter(|(call, _)| call.number == record.command);
                    if let (Some((call, last)), Some(op)) = (open, &record.op) {
                        let end = record.end.unwrap_or(record.start);
                        let after_ns = record.start.saturating_sub(*last);
                        call.ops.push(operation(kind.name(), op, record, after_ns, end - record.start));
                        *last = end;
                    }
                }
                _ => {}
            }
        }
        call.into_iter().for_each(|(call, _)| self.writer.add(&Line::Call(call)));
    }
}

impl Observer for Recorder {
    fn submitted(&self, number: u64, freed: &[RegisterId], command: &Submitted) {
        let mut names = sync::lock(&self.names);
        let mut line = Command::new(number, self.now(), kind(command));
        line.register = command.register().map(wire);
        line.freed = freed.iter().copied().map(wire).collect();
        freed.iter().for_each(|register| _ = names.functions.remove(register));
        let mut name = None;
        match command {
            Submitted::GetGlobalFunc { register, name: function } => {
                names.functions.insert(*register, function.clone());
                name = Some(function.clone());
            }
            Submitted::CallPacked { function, args, .. } => {
                line.callee = Some(wire(*function));
                name = names.functions.get(function).cloned();
                line.args = args.iter().map(Described::of).collect();
            }
            Submitted::DebugSet { worker, value, .. } => {
                line.worker = Some(worker.index() as u32);
                line.args.push(Described::of(value));
            }
            Submitted::CopyFromWorker0 { host: Local(Some(host)), .. }
            | Submitted::CopyToWorker0 { host: Local(Some(host)), .. } => {
                line.args.push(Described::outline(&Value::Tensor(host.clone())));
            }
            // No worker has this number: a no-op.
            Submitted::SyncWorker { worker } if worker.index() == u32::MAX as usize => {}
            Submitted::SyncWorker { worker } | Submitted::DebugGet { worker, .. } => {
                line.worker = Some(worker.index() as u32);
            }
            Submitted::Recover { .. } => names.last_error = None,
            _ => {}
        }
        line.function = name.map(|name| Cow::Owned(name.to_string()));
        self.writer.add(&Line::Command(line));
    }

    fn waited(&self, number: u64, replies: &disco_core::Result<Vec<Reply>>) {
        let mut line = Wait { number, time_ns: self.now(), ..Wait::default() };
        match replies {
            Ok(replies) => {
                let failures = replies.iter().filter_map(|reply| reply.as_ref().err());
                // The failure that has aborted the others.
                let cause = failures.min_by_key(|failure| failure.aborted);
                line.error = cause.map(|failure| cut(failure.to_string()));
                line.replies = replies.iter().flatten().map(Described::outline).collect();
            }
            Err(error) => line.error = Some(cut(error.to_string())),
        }
        if line.replies.windows(2).all(|pair| pair[0] == pair[1]) {
            line.replies.truncate(1);
        }
        if line.replies == [Described::None] {
            line.replies.clear();
        }
        let mut names = sync::lock(&self.names);
        let next = names.threads.len() as u32;
        line.thread = *names.threads.entry(thread::current().id()).or_insert(next);
        names.last_error.clone_from(&line.error);
        self.writer.add(&Line::Wait(line));
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

fn kind(command: &Submitted) -> CommandKind {
    match command {
        Submitted::GetGlobalFunc { .. } => CommandKind::Function,
        Submitted::CallPacked { .. } => CommandKind::Call,
        Submitted::SyncWorker { worker } if worker.index() != u32::MAX as usize => CommandKind::SyncWorker,
        Submitted::SyncAll => CommandKind::SyncAll,
        Submitted::DebugGet { .. } => CommandKind::Get,
        Submitted::GetAll { .. } => CommandKind::GetAll,
        Submitted::DebugSet { .. } => CommandKind::Set,
        Submitted::CopyFromWorker0 { .. } => CommandKind::CopyFromWorker0,
        Submitted::CopyToWorker0 { .. } => CommandKind::CopyToWorker0,
        Submitted::Recover { .. } => CommandKind::Recover,
        Submitted::Shutdown => CommandKind::Shutdown,
        _ => CommandKind::Nothing,
    }
}

/// Whether the record of a command is that of a call, which has the name of its function.
fn is_call(record: &Record) -> bool {
    record.name.as_ref().is_none_or(|name| CommandKind::ALL_BUT_CALLS.iter().all(|kind| kind.name() != &**name))
}

fn operation(kind: &str, op: &OpDetails, record: &Record, after_ns: u64, ns: u64) -> Operation {
    let scope = match (op.is_of_split(), op.is_of_all()) {
        (true, _) => OperationScope::Split,
        (_, true) => OperationScope::World,
        _ => OperationScope::Group,
    };
    Operation {
        kind: kind.to_owned(),
        scope,
        dtype: op.dtype.map(|dtype| dtype.name().to_owned()),
        count: op.count,
        reduction: op.reduction.map(|reduction| reduction.name().to_owned()),
        root: op.root.map(|root| root.index() as u32),
        after_ns,
        ns,
        failed: record.state != OpState::Done,
    }
}

fn wire(register: RegisterId) -> u32 {
    register.index() as u32
}

/// A text of at most [`MAX_ERROR`] bytes.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_ERROR));
    text
}
