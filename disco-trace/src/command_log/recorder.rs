//! Writes the command log of a session while it runs.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use disco_core::activity::nanoseconds;
use disco_core::channel::Reply;
use disco_core::session::{Observer, Recordings, Timeline};
use disco_core::{Command as Submitted, Error, Local, RegisterId, Value, sync};

use super::calls::{self, Last};
use super::line::{Command, CommandKind, End, Head, Line, Wait, cut};
use super::writer::Writer;
use super::{Described, FORMAT};
use crate::error::TraceError;

/// Largest number of freed registers in one line.
const MAX_FREED: usize = 1 << 16;

/// Writes a command log: as the [`Observer`] of a session, with the recordings of its workers.
///
/// A thread of its own writes the file. A command waits only if 8 MiB of lines are not written yet. If a command waits
/// for 1 s, or a write fails, the log ends there with a warning. The file of a program that is killed lacks at most the
/// lines of the last 2 s.
pub struct Recorder {
    /// The time of the machine's clock at which the recording began.
    start: u64,
    writer: Writer,
    names: Mutex<Names>,
    last: Last,
}

/// State from earlier commands and waits.
#[derive(Default)]
struct Names {
    /// The name of the function in each register.
    functions: HashMap<RegisterId, Arc<str>>,
    /// The numbers of the threads that have waited.
    threads: HashMap<ThreadId, u32>,
    /// The error of the last wait, if that wait failed.
    last_error: Option<String>,
}

impl Recorder {
    /// Creates the file, with its head. `collect` returns the latest recordings of the session's workers
    /// ([`LaneSession::collector`](disco_core::session::LaneSession::collector)), or none once the session has ended. The
    /// thread that writes the file calls it while the program runs. `warn` is called once, from any thread, if the log ends
    /// early.
    ///
    /// # Errors
    /// The file can't be created; the error names it.
    pub fn create(
        path: &Path,
        head: Head,
        collect: impl FnMut(usize, Duration) -> Option<Recordings> + Send + 'static,
        warn: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, TraceError> {
        let last = Last::default();
        let source = calls::source(last.clone(), collect);
        let writer = Writer::create(path, Arc::new(warn), source)?;
        writer.add(&Line::Session(Head { format: FORMAT.to_owned(), ..head }));
        Ok(Self { start: nanoseconds(), writer, names: Mutex::default(), last })
    }

    /// Writes the last records of the workers, and ends the file.
    pub fn finish(&self, timeline: Timeline) {
        let last_error = sync::lock(&self.names).last_error.take();
        // The failure of a session that is dropped without a shutdown.
        let dropped = Error::Closed("drop".to_owned()).to_string();
        let failure = timeline.status.failure.filter(|text| *text != dropped).or(last_error);
        let end = End { time_ns: self.now(), commands: timeline.status.commands, failure: failure.map(cut) };
        *sync::lock(&self.last) = Some((timeline.workers, end));
        self.writer.close();
    }

    fn now(&self) -> u64 {
        nanoseconds().saturating_sub(self.start)
    }
}

impl Observer for Recorder {
    fn submitted(&self, number: u64, freed: &[RegisterId], command: &Submitted) {
        let mut names = sync::lock(&self.names);
        let mut line = Command::new(number, self.now(), kind(command));
        line.register = command.register().map(wire);
        for some in freed.chunks(MAX_FREED) {
            let before = std::mem::replace(&mut line.freed, some.iter().copied().map(wire).collect());
            if !before.is_empty() {
                self.writer.add(&Line::Freed(before));
            }
        }
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
            Submitted::SyncWorker { worker } | Submitted::DebugGet { worker, .. }
                if line.kind != CommandKind::Nothing =>
            {
                line.worker = Some(worker.index() as u32);
            }
            Submitted::Recover { .. } | Submitted::Resize { .. } => names.last_error = None,
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
                // Other workers were aborted because of this failure.
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
        // A no-op is a sync of a worker that does not exist.
        Submitted::SyncWorker { worker } if worker.index() == u32::MAX as usize => CommandKind::Nothing,
        Submitted::SyncWorker { .. } => CommandKind::SyncWorker,
        Submitted::SyncAll => CommandKind::SyncAll,
        Submitted::DebugGet { .. } => CommandKind::Get,
        Submitted::GetAll { .. } => CommandKind::GetAll,
        Submitted::DebugSet { .. } => CommandKind::Set,
        Submitted::CopyFromWorker0 { .. } => CommandKind::CopyFromWorker0,
        Submitted::CopyToWorker0 { .. } => CommandKind::CopyToWorker0,
        Submitted::Recover { .. } => CommandKind::Recover,
        Submitted::Resize { .. } => CommandKind::Resize,
        Submitted::Shutdown => CommandKind::Shutdown,
        _ => CommandKind::Nothing,
    }
}

fn wire(register: RegisterId) -> u32 {
    register.index() as u32
}
