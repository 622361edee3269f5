//! Passes on the output of nodes' workers: to the controller's standard output and error, or from a node that relays to
//! its own controller.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use disco_core::WorkerId;

use crate::remote::{join_timeout, terminal};

/// Bytes of lines that may wait to be printed. Lines beyond these are dropped.
const MAX_WAITING_BYTES: usize = 16 << 20;
/// Approximate overhead of a waiting line.
const LINE_OVERHEAD_BYTES: usize = 128;
/// Timeout for printing the remaining lines at the end.
const FINISH_TIMEOUT: Duration = Duration::from_millis(600);

/// Gets a line of a worker: the number of its node, the worker, whether the line is from standard error, and the line.
pub(crate) type Sink = Box<dyn Fn(u32, WorkerId, bool, &[u8]) + Send>;

/// A thread that prints. It decouples the reactor from a slow reader of this program's output: lines are dropped rather
/// than nodes lost.
pub(super) struct Printer {
    lines: Sender<Line>,
    counts: Arc<Counts>,
    thread: JoinHandle<()>,
}

struct Line {
    node: u32,
    worker: WorkerId,
    is_err: bool,
    line: Arc<[u8]>,
}

#[derive(Default)]
struct Counts {
    /// Bytes that wait to be printed.
    waiting: AtomicUsize,
    /// Lines dropped since the last warning.
    lost: AtomicUsize,
}

impl Printer {
    /// Starts the thread, which passes lines to `sink`.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn start(sink: Sink) -> io::Result<Self> {
        let (lines, receiver) = mpsc::channel();
        let counts = Arc::new(Counts::default());
        let theirs = counts.clone();
        let thread =
            thread::Builder::new().name("disco-output".into()).spawn(move || print(&receiver, &theirs, &sink))?;
        Ok(Self { lines, counts, thread })
    }

    /// Queues a line to be printed in one write. Never blocks.
    pub(super) fn print(&self, node: u32, worker: WorkerId, is_err: bool, line: Arc<[u8]>) {
        let line = Line { node, worker, is_err, line };
        let size = line.size();
        let waiting = self.counts.waiting.fetch_add(size, Ordering::Relaxed);
        let goes = waiting < MAX_WAITING_BYTES && self.lines.send(line).is_ok();
        if !goes {
            // The printing thread logs the loss: a log line could block this thread, too.
            self.counts.waiting.fetch_sub(size, Ordering::Relaxed);
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Prints the remaining lines, within a timeout.
    pub(super) fn finish(self) {
        drop(self.lines);
        if join_timeout::within(self.thread, FINISH_TIMEOUT).is_none() {
            tracing::warn!("the output of this program is not read, so some output of its workers is lost");
        }
    }
}

impl Line {
    /// Bytes that count while the line waits.
    fn size(&self) -> usize {
        self.line.len() + LINE_OVERHEAD_BYTES
    }
}

/// Prints lines on this program's standard output or error, with the prefix of the node from 1 on, or else its number, and
/// the worker in front.
pub(super) fn to_terminal(prefixes: Vec<String>) -> Sink {
    Box::new(move |node, worker, is_err, line| {
        let prefix = prefixes.get((node as usize).wrapping_sub(1));
        let prefix = prefix.map_or_else(|| format!("node {node}"), String::clone);
        terminal::print(&format!("{prefix} {worker}"), is_err, line);
    })
}

fn print(lines: &Receiver<Line>, counts: &Counts, sink: &Sink) {
    for line in lines {
        sink(line.node, line.worker, line.is_err, &line.line);
        counts.waiting.fetch_sub(line.size(), Ordering::Relaxed);
        let lost = counts.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(lines = lost, "some output of workers is lost, since it is read too slowly");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_count_towards_the_limit_and_lines_above_it_are_dropped() {
        let ((lines, _receiver), counts) = (mpsc::channel(), Arc::new(Counts::default()));
        let printer = Printer { lines, counts: counts.clone(), thread: thread::spawn(|| {}) };
        let most = MAX_WAITING_BYTES / LINE_OVERHEAD_BYTES;
        (0..most + 100).for_each(|_| printer.print(1, WorkerId::new(0), false, [].into()));
        assert!(counts.lost.load(Ordering::Relaxed) >= 100);
        assert!(counts.waiting.load(Ordering::Relaxed) < MAX_WAITING_BYTES + 2 * LINE_OVERHEAD_BYTES);
    }
}
