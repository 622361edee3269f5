//! What workers write to their standard output and error, passed on line by line.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use disco_core::WorkerId;
use rustix::event::{PollFd, PollFlags};

use crate::ending;
use crate::reactor::{Waker, poll};

/// The longest line that is passed on as one.
const LINE: usize = 64 << 10;
/// Chunks that are taken of one stream before the next.
const ROUNDS: usize = 16;
/// How long pipes may stay open after their workers have left: somebody else may hold them.
const REST: Duration = Duration::from_millis(300);

/// Takes a line without its end, of a worker's standard error if it says so.
pub type Sink = Arc<dyn Fn(WorkerId, bool, &[u8]) + Send + Sync>;

/// One stream of one worker.
pub(super) struct Pipe {
    from: OwnedFd,
    worker: WorkerId,
    is_err: bool,
    /// The beginning of a line.
    line: Vec<u8>,
    is_open: bool,
}

impl Pipe {
    /// A worker's standard output.
    pub(super) fn out(worker: WorkerId, from: OwnedFd) -> io::Result<Self> {
        Self::new(worker, from, false)
    }

    /// A worker's standard error.
    pub(super) fn err(worker: WorkerId, from: OwnedFd) -> io::Result<Self> {
        Self::new(worker, from, true)
    }

    fn new(worker: WorkerId, from: OwnedFd, is_err: bool) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&from, true)?;
        Ok(Self { from, worker, is_err, line: Vec::new(), is_open: true })
    }

    /// Passes on whole lines, as far as there are any.
    fn pump(&mut self, sink: &Sink) {
        let mut chunk = [0; 8 << 10];
        // Others write, too.
        for _ in 0..ROUNDS {
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
            if self.line.ends_with(b"\n") || self.line.len() >= LINE {
                self.flush(sink);
            }
        }
    }

    /// Passes on what there is as one line.
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

/// The thread that passes output on. It has its own, for whoever reads the program's output may be slow.
pub(super) struct Output {
    thread: Option<JoinHandle<()>>,
    waker: Arc<Waker>,
    over: Arc<AtomicBool>,
}

impl Output {
    /// Passes on what comes out of `pipes` to `sink`, until all are closed.
    ///
    /// # Errors
    /// The system refuses a thread or a descriptor.
    pub(super) fn start(pipes: Vec<Pipe>, sink: Sink) -> io::Result<Self> {
        let (waker, over) = (Arc::new(Waker::new()?), Arc::new(AtomicBool::new(false)));
        let thread = thread::Builder::new().name("disco-output".into()).spawn({
            let (waker, over) = (waker.clone(), over.clone());
            move || pump(pipes, &sink, &waker, &over)
        });
        Ok(Self { thread: Some(thread?), waker, over })
    }

    /// All workers have left: passes on what is left.
    pub(super) fn finish(mut self) {
        self.end();
        let joined = self.thread.take().and_then(|thread| ending::within(thread, 2 * REST));
        if joined.is_none() {
            tracing::warn!("nobody reads the output of this program, so that some of its workers' is lost");
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
            None if over.load(Ordering::Acquire) => *rest.insert(Instant::now()) + REST,
            None => Instant::now() + Duration::from_secs(3600),
            Some(since) => since + REST,
        };
        let Some(left) = left.checked_duration_since(Instant::now()) else { break };
        let mut polled: Vec<PollFd<'_>> = pipes.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
        polled.push(PollFd::new(waker, PollFlags::IN));
        poll(&mut polled, left);
        waker.hear();
        pipes.iter_mut().for_each(|pipe| pipe.pump(sink));
        pipes.retain(|pipe| pipe.is_open);
    }
    pipes.iter_mut().for_each(|pipe| pipe.flush(sink));
}
