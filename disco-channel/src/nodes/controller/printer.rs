//! What workers of nodes print, printed here.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{ending, terminal};

/// Bytes that may wait to be printed.
const WAITING: usize = 16 << 20;
/// What a line takes beside its bytes, about.
const ENTRY: usize = 128;
/// How long the last ones may take.
const REST: Duration = Duration::from_millis(600);

/// A thread that prints: whoever reads this program's output may be slow, and then lines are lost rather than nodes.
pub(super) struct Printer {
    lines: Sender<Line>,
    counts: Arc<Counts>,
    thread: JoinHandle<()>,
}

struct Line {
    prefix: String,
    is_err: bool,
    line: Arc<[u8]>,
}

#[derive(Default)]
struct Counts {
    /// Bytes that wait.
    waiting: AtomicUsize,
    /// Lines that were lost.
    lost: AtomicUsize,
}

impl Printer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses it.
    pub(super) fn start() -> io::Result<Self> {
        let (lines, receiver) = mpsc::channel();
        let counts = Arc::new(Counts::default());
        let theirs = counts.clone();
        let thread = thread::Builder::new().name("disco-output".into()).spawn(move || print(&receiver, &theirs))?;
        Ok(Self { lines, counts, thread })
    }

    /// Prints a line, in one piece.
    pub(super) fn print(&self, prefix: String, is_err: bool, line: Arc<[u8]>) {
        let line = Line { prefix, is_err, line };
        let size = line.size();
        let waiting = self.counts.waiting.fetch_add(size, Ordering::Relaxed);
        let goes = waiting < WAITING && self.lines.send(line).is_ok();
        if !goes {
            // Nothing is said of it on this thread, which must not wait for those who read.
            self.counts.waiting.fetch_sub(size, Ordering::Relaxed);
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Prints what is left.
    pub(super) fn finish(self) {
        drop(self.lines);
        if ending::within(self.thread, REST).is_none() {
            tracing::warn!("nobody reads the output of this program, so that some of its workers' is lost");
        }
    }
}

impl Line {
    /// What it takes while it waits.
    fn size(&self) -> usize {
        self.line.len() + self.prefix.len() + ENTRY
    }
}

fn print(lines: &Receiver<Line>, counts: &Counts) {
    for line in lines {
        terminal::print(&line.prefix, line.is_err, &line.line);
        counts.waiting.fetch_sub(line.size(), Ordering::Relaxed);
        let lost = counts.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(lines = lost, "output of workers is lost: this program's is read too slowly");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_that_nobody_reads_are_lost_in_the_end() {
        let ((lines, _receiver), counts) = (mpsc::channel(), Arc::new(Counts::default()));
        let printer = Printer { lines, counts: counts.clone(), thread: thread::spawn(|| {}) };
        let most = WAITING / ENTRY;
        (0..most + 100).for_each(|_| printer.print("node 1 worker 0".into(), false, [].into()));
        assert!(counts.lost.load(Ordering::Relaxed) >= 100);
        assert!(counts.waiting.load(Ordering::Relaxed) < WAITING + 2 * ENTRY);
    }
}
