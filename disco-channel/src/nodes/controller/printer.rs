//! What workers of nodes print, printed here.

use std::io::{self, Write as _};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::join;

/// Lines that may wait to be printed.
const LINES: usize = 16 << 10;
/// How long the last ones may take.
const REST: Duration = Duration::from_millis(600);

/// A thread that prints: whoever reads this program's output may be slow, and then lines are lost rather than nodes.
pub(super) struct Printer {
    lines: SyncSender<Line>,
    thread: JoinHandle<()>,
}

/// Bytes with a line's end, for standard error if it says so.
type Line = (bool, Vec<u8>);

impl Printer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses it.
    pub(super) fn start() -> io::Result<Self> {
        let (lines, receiver) = mpsc::sync_channel(LINES);
        let thread = thread::Builder::new().name("disco-output".into()).spawn(move || print(&receiver))?;
        Ok(Self { lines, thread })
    }

    /// Prints a line, in one piece.
    pub(super) fn print(&self, is_err: bool, text: Vec<u8>) {
        if self.lines.try_send((is_err, text)).is_err() {
            tracing::warn!("a line of a worker's output is lost: nobody reads this program's output");
        }
    }

    /// Prints what is left.
    pub(super) fn finish(self) {
        drop(self.lines);
        if join::within(self.thread, REST).is_none() {
            tracing::warn!("nobody reads the output of this program, so that some of its workers' is lost");
        }
    }
}

fn print(lines: &Receiver<Line>) {
    for (is_err, text) in lines {
        // Whoever has closed the program's output does not want to know.
        _ = match is_err {
            true => io::stderr().lock().write_all(&text),
            false => io::stdout().lock().write_all(&text),
        };
    }
}
