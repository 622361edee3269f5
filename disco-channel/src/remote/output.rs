//! Forwards the standard output and error of workers, line by line.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use disco_core::WorkerId;
use rustix::event::{PollFd, PollFlags};

use crate::remote::join_timeout;
use crate::remote::reactor::{Waker, poll};

/// Longer lines are split.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Reads from one stream before the next one has its turn.
const MAX_READS_PER_TURN: usize = 16;
/// How long pipes may stay open after all workers have left: another process may have inherited them.
const PIPE_GRACE: Duration = Duration::from_millis(300);

/// Gets a line of a worker without its newline; the flag tells whether it is of standard error.
pub type Sink = Arc<dyn Fn(WorkerId, bool, &[u8]) + Send + Sync>;

/// One stream of one worker.
pub(crate) struct Pipe {
    from: OwnedFd,
    worker: WorkerId,
    is_err: bool,
    /// The start of a line whose end was not read yet.
    line: Vec<u8>,
    is_open: bool,
}

impl Pipe {
    /// A worker's standard output.
    pub(crate) fn out(worker: WorkerId, from: OwnedFd) -> io::Result<Self> {
        Self::new(worker, from, false)
    }

    /// A worker's standard error.
    pub(crate) fn err(worker: WorkerId, from: OwnedFd) -> io::Result<Self> {
        Self::new(worker, from, true)
    }

    fn new(worker: WorkerId, from: OwnedFd, is_err: bool) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&from, true)?;
        Ok(Self { from, worker, is_err, line: Vec::new(), is_open: true })
    }

    /// Forwards the complete lines that can be read now.
    fn pump(&mut self, sink: &Sink) {
        let mut chunk = [0; 8 << 10];
        // Bounded, so that other streams have their turn.
        for _ in 0..MAX_READS_PER_TURN {
            match rustix::io::read(&self.from, &mut chunk) {
                Ok(0) => return self.end(sink),
                Ok(count) => self.take(&chunk[..count], sink),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => return self.end(sink),
            }
        }
    }

    fn end(&mut self, sink: &Sink) {
        self.is_open = false;
        self.flush(sink);
    }

    fn take(&mut self, bytes: &[u8], sink: &Sink) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.ends_with(b"\n") || self.line.len() >= MAX_LINE_BYTES {
                self.flush(sink);
            }
        }
    }

    /// Forwards the buffered bytes as one line.
    fn flush(&mut self, sink: &Sink) {
        if self.line.is_empty() {
            return;
        }
        sink(self.worker, self.is_err, self.line.strip_suffix(b"\n").unwrap_or(&self.line));
        self.line.clear();
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }
}

/// The thread that forwards output. It is separate from the reactor, since the reader of the program's output may be
/// slow.
pub(crate) struct Output {
    thread: Option<JoinHandle<()>>,
    waker: Arc<Waker>,
    over: Arc<AtomicBool>,
}

impl Output {
    /// Forwards lines from `pipes` to `sink` until all pipes are closed.
    ///
    /// # Errors
    /// The thread or its waker can't be created.
    pub(crate) fn start(pipes: Vec<Pipe>, sink: Sink) -> io::Result<Self> {
        let (waker, over) = (Arc::new(Waker::new()?), Arc::new(AtomicBool::new(false)));
        let thread = thread::Builder::new().name("disco-output".into()).spawn({
            let (waker, over) = (waker.clone(), over.clone());
            move || pump(pipes, &sink, &waker, &over)
        });
        Ok(Self { thread: Some(thread?), waker, over })
    }

    /// Forwards the remaining lines after all workers have left, within a timeout.
    pub(crate) fn finish(mut self) {
        self.end();
        let joined = self.thread.take().and_then(|thread| join_timeout::within(thread, 2 * PIPE_GRACE));
        if joined.is_none() {
            tracing::warn!("the output of this program is not read, so some output of its workers is lost");
        }
    }
}

impl Output {
    fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.end();
    }
}

fn pump(mut pipes: Vec<Pipe>, sink: &Sink, waker: &Waker, over: &AtomicBool) {
    let mut rest = None;
    while !pipes.is_empty() {
        let left = match rest {
            None if over.load(Ordering::Acquire) => *rest.insert(Instant::now()) + PIPE_GRACE,
            None => Instant::now() + Duration::from_secs(3600),
            Some(since) => since + PIPE_GRACE,
        };
        let Some(left) = left.checked_duration_since(Instant::now()) else { break };
        let mut polled: Vec<PollFd<'_>> = pipes.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
        polled.push(PollFd::new(waker, PollFlags::IN));
        poll(&mut polled, left);
        waker.reset();
        pipes.iter_mut().for_each(|pipe| pipe.pump(sink));
        pipes.retain(|pipe| pipe.is_open);
    }
    pipes.iter_mut().for_each(|pipe| pipe.flush(sink));
}
