//! Calls of a worker that the controller has cancelled, and the operations that a cancellation ends.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::Link;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::sync;

/// The start of the cause with which a cancellation aborts operations. The number of the call's command is at the end.
const MARK: &str = "cancelled: ";
/// How long a worker waits for a cancellation of which a peer has learned before, or may have, and how often it looks.
const NEWS_LIMIT: Duration = Duration::from_secs(1);
const DROP_NEWS_LIMIT: Duration = Duration::from_millis(100);
const NEWS_INTERVAL: Duration = Duration::from_millis(1);
/// How often a wait for a key asks whether its call was cancelled.
const CANCELLED_INTERVAL: Duration = Duration::from_millis(100);

/// The cancelled calls of one worker, by the numbers of their commands, and the operations that run.
#[derive(Debug, Default)]
pub(super) struct Cancelled {
    /// Whether there are cancelled calls; read without the lock.
    is_any: AtomicBool,
    /// Operations that the worker is inside: at most one, and a synchronisation around it. Written by the worker's thread
    /// only.
    inside: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<(u64, Arc<str>)>,
    /// For each operation that runs beside the worker, the command that has started it.
    beside: Vec<u64>,
}

/// An operation that the worker is inside. A cancellation of its call aborts it.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Cancelled);

/// An operation that runs beside the worker. A cancellation of the call that has started it aborts it.
#[derive(Debug)]
pub(crate) struct Beside {
    cancelled: Arc<Cancelled>,
    command: u64,
}

/// The command whose cancellation is the cause of an abort.
pub(crate) fn cancelled_command(cause: &str) -> Option<u64> {
    let (_, number) = cause.strip_prefix(MARK)?.strip_suffix(')')?.rsplit_once(" (command ")?;
    number.parse().ok()
}

impl Cancelled {
    fn state(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    #[inline]
    fn cause(&self, command: u64) -> Option<Arc<str>> {
        // Sequentially consistent with `Link::cancel`, which first sets the mark and then counts the operations: one side
        // sees the other.
        if self.is_any.load(Ordering::SeqCst) { self.find(command) } else { None }
    }

    #[cold]
    fn find(&self, command: u64) -> Option<Arc<str>> {
        self.state().calls.iter().find(|call| call.0 == command).map(|call| call.1.clone())
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        // Without a barrier, which would wait until the peers have read what this rank has posted. A cancellation that counts
        // the operation after its end breaks the communicators as if it had come in time; `await_cancellation` waits for it.
        self.0.inside.store(self.0.inside.load(Ordering::Relaxed) - 1, Ordering::Release);
    }
}

impl Beside {
    /// The error of the operation, or the cancellation that was its cause.
    pub(crate) fn error(&self, error: Error) -> Error {
        match (&error, self.cancelled.cause(self.command)) {
            (Error::Aborted { .. } | Error::Broken { .. }, Some(cause)) => Error::Cancelled { cause },
            _ => error,
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let mut state = self.cancelled.state();
        if let Some(at) = state.beside.iter().position(|command| *command == self.command) {
            state.beside.swap_remove(at);
        }
    }
}

impl Link {
    /// Cancels the call with this command, unless it has ended. An operation that it is inside, or that it has started, is
    /// aborted, which breaks the worker's communicators. Lanes call this method.
    pub fn cancel(&self, command: u64, cause: &Arc<str>) {
        if command <= self.activity.finished() {
            return;
        }
        let mut state = self.cancelled.state();
        state.calls.push((command, cause.clone()));
        self.cancelled.is_any.store(true, Ordering::SeqCst);
        let is_inside = self.cancelled.inside.load(Ordering::SeqCst) > 0 && self.activity.received() == command;
        if is_inside || state.beside.contains(&command) {
            self.aborts.end_operations(&format!("{MARK}{cause} (command {command})").into());
        }
    }

    /// Why the call with this command was cancelled, if it was.
    #[inline]
    pub(crate) fn cancelled(&self, command: u64) -> Option<Arc<str>> {
        self.cancelled.cause(command)
    }

    /// Why the call that the worker runs was cancelled, if it was.
    pub(crate) fn cancelled_now(&self) -> Option<Arc<str>> {
        self.cancelled(self.activity.received())
    }

    /// Why the call with this command, which has failed with `error`, was cancelled, if it was. A peer that has learned of
    /// the cancellation before may have ended the operation that they had in common: then this waits for the news.
    pub(crate) fn cancelled_with(&self, command: u64, error: &(dyn StdError + 'static)) -> Option<Arc<str>> {
        let start = Instant::now();
        let cause = Error::abort_cause(error);
        let limit = match cause.as_ref().map(|cause| cancelled_command(cause)) {
            Some(Some(other)) if other == command => NEWS_LIMIT,
            // A peer has dropped its communicator, maybe after the cancellation.
            Some(None) if !self.is_aborted() => DROP_NEWS_LIMIT,
            _ => Duration::ZERO,
        };
        while start.elapsed() < limit && self.cancelled(command).is_none() && !self.is_aborted() {
            thread::sleep(NEWS_INTERVAL);
        }
        self.cancelled(command)
    }

    /// Begins an operation of a communicator.
    ///
    /// # Errors
    /// The call that the worker runs is cancelled.
    #[inline]
    pub(crate) fn begin_operation(&self) -> Result<Inside<'_>> {
        let operation = self.begin_wait();
        match self.cancelled_now() {
            None => Ok(operation),
            Some(cause) => Err(Error::Cancelled { cause }),
        }
    }

    /// Begins a wait for operations.
    #[inline]
    pub(crate) fn begin_wait(&self) -> Inside<'_> {
        self.cancelled.inside.store(self.cancelled.inside.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
        if self.cancelled.is_any.load(Ordering::SeqCst) {
            self.await_cancellation();
        }
        Inside(&self.cancelled)
    }

    /// Waits for a cancellation that aborts an operation now: it may have counted one that has ended, and must not hit a
    /// later operation or a new communicator.
    pub(crate) fn await_cancellation(&self) {
        drop(self.cancelled.state());
    }

    /// Begins an operation beside the worker. The caller has [begun](Link::begin_operation) it.
    pub(crate) fn go_beside(&self) -> Beside {
        let command = self.activity.received();
        self.cancelled.state().beside.push(command);
        Beside { cancelled: self.cancelled.clone(), command }
    }

    /// The error of an operation in the call that the worker runs, or the cancellation that was its cause.
    pub(crate) fn error_of_operation(&self, error: Error) -> Error {
        match (&error, self.cancelled_now()) {
            (Error::Aborted { .. } | Error::Broken { .. }, Some(cause)) => Error::Cancelled { cause },
            _ => error,
        }
    }

    /// [`Store::wait`], which a cancellation of the worker's call ends, too.
    ///
    /// # Errors
    /// As [`Store::wait`], and [`Error::Cancelled`].
    pub(crate) fn await_key(&self, store: &dyn Store, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        let start = Instant::now();
        loop {
            let left = deadline.saturating_sub(start.elapsed());
            match store.wait(key, left.min(CANCELLED_INTERVAL)) {
                Err(Error::Deadline { .. }) if left > CANCELLED_INTERVAL => {}
                Err(Error::Deadline { operation, state, .. }) => {
                    return Err(Error::Deadline { operation, after: deadline, state });
                }
                other => return other,
            }
            if let Some(cause) = self.cancelled_now() {
                return Err(Error::Cancelled { cause });
            }
        }
    }

    /// Forgets the cancellation of a call that has ended.
    #[inline]
    pub(crate) fn end_call(&self, command: u64) {
        if self.cancelled.is_any.load(Ordering::Relaxed) {
            let mut state = self.cancelled.state();
            state.calls.retain(|call| call.0 > command);
            self.cancelled.is_any.store(!state.calls.is_empty(), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::abort::{Abort, Heard};

    #[test]
    fn a_cancellation_aborts_the_operations_of_its_call_only() {
        let link = Link::bare(Arc::default());
        let listener = Arc::new(Heard::default());
        link.on_abort(&(listener.clone() as Arc<dyn Abort>));
        let heard = || listener.0.lock().unwrap().len();
        link.activity().receive(4);
        link.cancel(4, &"no longer needed".into());
        assert_eq!(heard(), 0, "the call has used no communicator");
        assert_eq!(link.begin_operation().unwrap_err().to_string(), "cancelled: no longer needed");
        link.activity().finish(4, true);
        link.end_call(4);
        link.activity().receive(5);
        let operation = link.begin_operation().unwrap();
        link.cancel(4, &"late".into());
        link.cancel(6, &"early".into());
        assert_eq!((heard(), link.cancelled_now()), (0, None));
        link.cancel(5, &"in time".into());
        assert_eq!((heard(), link.cancelled_now().as_deref()), (1, Some("in time")));
        assert_eq!(cancelled_command(&listener.0.lock().unwrap()[0]), Some(5));
        drop(operation);
        link.activity().finish(5, true);
        link.end_call(5);
        assert_eq!(link.cancelled(6).as_deref(), Some("early"));
    }

    #[test]
    fn nothing_begins_while_a_cancellation_aborts_an_operation_that_has_ended() {
        /// Takes its time to abort.
        struct Slow {
            has_begun: mpsc::Sender<()>,
            has_ended: AtomicBool,
        }
        impl Abort for Slow {
            fn abort(&self, _: &Arc<str>) {
                self.has_begun.send(()).unwrap();
                thread::sleep(Duration::from_millis(50));
                self.has_ended.store(true, Ordering::SeqCst);
            }
        }
        for begin in [|link: &Link| drop(link.begin_wait()), Link::await_cancellation] {
            let link = Link::bare(Arc::default());
            let (has_begun, aborts) = mpsc::channel();
            let slow = Arc::new(Slow { has_begun, has_ended: AtomicBool::new(false) });
            link.on_abort(&(slow.clone() as Arc<dyn Abort>));
            link.activity().receive(1);
            let operation = link.begin_wait();
            thread::scope(|scope| {
                scope.spawn(|| link.cancel(1, &"late".into()));
                aborts.recv().unwrap();
                drop(operation);
                begin(&link);
                assert!(slow.has_ended.load(Ordering::SeqCst));
            });
        }
    }

    #[test]
    fn an_operation_beside_the_worker_is_aborted_with_the_call_that_has_started_it() {
        let link = Link::bare(Arc::default());
        let listener = Arc::new(Heard::default());
        link.on_abort(&(listener.clone() as Arc<dyn Abort>));
        link.activity().receive(1);
        let beside = link.go_beside();
        link.activity().finish(1, true);
        link.activity().receive(2);
        link.cancel(2, &"another call".into());
        assert!(listener.0.lock().unwrap().is_empty());
        let aborted = || Error::Aborted { cause: "why".into() };
        assert!(matches!(beside.error(aborted()), Error::Aborted { .. }));
        let own = link.go_beside();
        link.cancel(2, &"its call".into());
        assert_eq!(listener.0.lock().unwrap().len(), 1);
        assert!(matches!(own.error(aborted()), Error::Cancelled { .. }));
        drop((beside, own));
        link.cancel(2, &"nothing runs".into());
        assert_eq!(listener.0.lock().unwrap().len(), 1);
    }
}
