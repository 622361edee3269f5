//! Writes lines to a file on a thread of its own, within bounded memory.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use disco_core::error::causes;
use disco_core::sync;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::line::Line;
use crate::error::TraceError;
use crate::lines::MAX_LINE;

/// Bytes after which the thread writes.
const CHUNK_BYTES: usize = 1 << 16;
/// Largest number of bytes that wait for the thread.
const MAX_PENDING_BYTES: usize = 8 << 20;
/// Longest time that a line waits for the thread before the log ends.
const ADD_LIMIT: Duration = Duration::from_secs(1);
/// Longest time that the end of the log waits for the thread while the thread makes no progress.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// Interval of the checks whether the thread has panicked.
const CLOSE_POLL: Duration = Duration::from_millis(100);
/// Interval of flushes. Flushed lines can be read from the file, also if the program is killed.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time that less than a chunk of lines waits for the thread.
const WRITE_INTERVAL: Duration = Duration::from_millis(250);

/// Called once, with the reason why a log ends early.
pub(super) type Warn = Arc<dyn Fn(&str) + Send + Sync>;
/// Adds lines from another origin than commands and waits. The thread that writes calls it from time to time, and with
/// `true` for the last lines of the log.
pub(super) type Source = Box<dyn FnMut(bool, &mut dyn FnMut(&Line)) + Send>;

/// A file of lines, and the thread that writes it.
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    path: PathBuf,
    warn: Warn,
    pending: Mutex<Pending>,
    /// Notified when a chunk can be written, and when the log is closed.
    filled: Condvar,
    /// Notified when the thread has taken the pending lines, and when it ends.
    taken: Condvar,
}

#[derive(Default)]
struct Pending {
    lines: Vec<u8>,
    /// No more lines are accepted.
    is_closed: bool,
    /// Number of times that the thread has taken or written lines.
    taken: u64,
    /// The thread ends.
    is_done: bool,
}

enum Output {
    Plain(BufWriter<File>),
    Compressed(Box<GzEncoder<File>>),
}

impl Writer {
    /// Creates the file.
    ///
    /// # Errors
    /// The file can't be created, or the system refuses a thread.
    pub(super) fn create(path: &Path, warn: Warn, mut source: Source) -> Result<Self, TraceError> {
        let start = || -> io::Result<Self> {
            let file = File::create(path)?;
            let mut output = match path.extension().is_some_and(|extension| extension == "gz") {
                // The fastest level, because a program that is faster than the thread waits for the thread.
                true => Output::Compressed(Box::new(GzEncoder::new(file, Compression::fast()))),
                false => Output::Plain(BufWriter::with_capacity(CHUNK_BYTES, file)),
            };
            let shared = Arc::new(Shared {
                path: path.to_owned(),
                warn,
                pending: Mutex::default(),
                filled: Condvar::new(),
                taken: Condvar::new(),
            });
            let on_thread = shared.clone();
            let thread = thread::Builder::new().name("disco-record".to_owned()).spawn(move || {
                if let Err(error) = on_thread.write(&mut output, &mut source) {
                    on_thread.give_up(&error);
                }
                sync::lock(&on_thread.pending).is_done = true;
                on_thread.taken.notify_all();
            })?;
            Ok(Self { shared, thread: Mutex::new(Some(thread)) })
        };
        start().map_err(TraceError::write(path))
    }

    /// Adds a line, unless the log has ended. Waits while 8 MiB of lines are pending, up to the limit.
    pub(super) fn add(&self, line: &Line) {
        let shared = &self.shared;
        let mut pending = sync::lock(&shared.pending);
        let begun = Instant::now();
        while !pending.is_closed && pending.lines.len() >= MAX_PENDING_BYTES {
            let Some(left) = ADD_LIMIT.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else {
                drop(pending);
                let waited =
                    io::Error::new(io::ErrorKind::TimedOut, format!("no write has ended within {ADD_LIMIT:?}"));
                return shared.give_up(&waited);
            };
            pending = shared.taken.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if pending.is_closed {
            return;
        }
        let before = pending.lines.len();
        append(&mut pending.lines, line);
        if before < CHUNK_BYTES && pending.lines.len() >= CHUNK_BYTES {
            shared.filled.notify_one();
        }
    }

    /// Writes the pending lines, and ends the file. Does not wait longer for a thread that makes no progress.
    pub(super) fn close(&self) {
        let Some(thread) = sync::lock(&self.thread).take() else { return };
        let mut pending = sync::lock(&self.shared.pending);
        pending.is_closed = true;
        self.shared.filled.notify_one();
        let (mut taken, mut progress) = (pending.taken, Instant::now());
        while !pending.is_done && !thread.is_finished() {
            let waited = self.shared.taken.wait_timeout(pending, CLOSE_POLL);
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
            if pending.taken != taken {
                (taken, progress) = (pending.taken, Instant::now());
            } else if progress.elapsed() >= CLOSE_LIMIT {
                return;
            }
        }
        drop(pending);
        _ = thread.join();
    }
}

/// Adds a line, without some of its values if it is too long for readers.
fn append(lines: &mut Vec<u8>, line: &Line) {
    let before = lines.len();
    // Never fails: a vector takes all bytes, and all keys are strings.
    if serde_json::to_writer(&mut *lines, line).is_err() {
        return lines.truncate(before);
    }
    lines.push(b'\n');
    if lines.len() - before > MAX_LINE as usize {
        lines.truncate(before);
        let mut line = line.clone();
        if line.shorten() {
            append(lines, &line);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn write(&self, output: &mut Output, source: &mut Source) -> io::Result<()> {
        let (mut lines, mut flushed) = (Vec::new(), Instant::now());
        loop {
            let is_last = self.take(&mut lines);
            output.write_all(&lines)?;
            lines.clear();
            let mut written = Ok(());
            source(is_last, &mut |line| {
                append(&mut lines, line);
                if lines.len() >= CHUNK_BYTES && written.is_ok() {
                    written = output.write_all(&lines);
                    sync::lock(&self.pending).taken += 1;
                    lines.clear();
                }
            });
            written?;
            output.write_all(&lines)?;
            if is_last {
                return output.finish();
            }
            if flushed.elapsed() >= FLUSH_INTERVAL {
                output.flush()?;
                flushed = Instant::now();
            }
        }
    }

    /// Waits for a chunk, for at most the interval of writes. Replaces `lines` by the pending lines, and returns whether they
    /// are the last.
    fn take(&self, lines: &mut Vec<u8>) -> bool {
        lines.clear();
        let mut pending = sync::lock(&self.pending);
        let begun = Instant::now();
        while !pending.is_closed && pending.lines.len() < CHUNK_BYTES {
            let Some(left) = WRITE_INTERVAL.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else { break };
            pending = self.filled.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::swap(&mut pending.lines, lines);
        pending.taken += 1;
        self.taken.notify_all();
        pending.is_closed
    }

    /// Ends the log with a warning, the first time.
    fn give_up(&self, error: &io::Error) {
        {
            let mut pending = sync::lock(&self.pending);
            if pending.is_closed && error.kind() == io::ErrorKind::TimedOut {
                return;
            }
            (pending.is_closed, pending.lines) = (true, Vec::new());
        }
        self.taken.notify_all();
        let why: Vec<String> = [error.to_string()].into_iter().chain(causes(error)).collect();
        (self.warn)(&format!(
            "can't write {}: {}; the log of commands ends there",
            self.path.display(),
            why.join(": ")
        ));
    }
}

impl Output {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.write_all(bytes),
            Self::Compressed(file) => file.write_all(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Compressed(file) => file.flush(),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Compressed(file) => file.try_finish(),
        }
    }
}
