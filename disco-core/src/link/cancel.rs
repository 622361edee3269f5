//! Calls of a worker that the controller has cancelled.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::Link;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::sync;

/// The start of the cause with which a cancellation aborts operations.
const MARK: &str = "cancelled: ";
/// How long a worker waits for the cancellation of which a peer was told, and how often it looks.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
const TOLD_INTERVAL: Duration = Duration::from_millis(1);
/// How often a wait for a key asks whether its call was cancelled.
const CANCELLED_INTERVAL: Duration = Duration::from_millis(100);

/// The cancelled calls of one worker, by the numbers of their commands, and the operations that a cancellation ends.
#[derive(Debug, Default)]
pub(super) struct Cancelled {
    /// Whether `calls` has any; read without the lock.
    is_any: AtomicBool,
    /// Operations of communicators that run, in a call or beside it.
    operations: AtomicUsize,
    calls: Mutex<Vec<(u64, Arc<str>)>>,
}

/// An operation of a communicator that runs. A cancellation of the worker's call aborts it.
#[derive(Debug)]
pub(crate) struct Operation(Arc<Cancelled>);

/// Whether this cause of an abort is a cancellation.
pub(crate) fn is_cancellation(cause: &str) -> bool {
    cause.starts_with(MARK)
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.0.operations.fetch_sub(1, Ordering::Release);
    }
}

impl Cancelled {
    fn calls(&self) -> MutexGuard<'_, Vec<(u64, Arc<str>)>> {
        sync::lock(&self.calls)
    }

    #[inline]
    fn cause(&self, command: u64) -> Option<Arc<str>> {
        // Sequentially consistent with `Link::cancel`, which first sets the mark and then counts the operations: one side
        // sees the other.
        if self.is_any.load(Ordering::SeqCst) { self.find(command) } else { None }
    }

    #[cold]
    fn find(&self, command: u64) -> Option<Arc<str>> {
        self.calls().iter().find(|call| call.0 == command).map(|call| call.1.clone())
    }
}

impl Link {
    /// Cancels the call with this command, unless it has ended. An operation that it is inside, or that runs beside it, is
    /// aborted, which breaks the worker's communicators. Lanes call this method.
    pub fn cancel(&self, command: u64, cause: &Arc<str>) {
        if command <= self.activity.finished() {
            return;
        }
        self.cancelled.calls().push((command, cause.clone()));
        self.cancelled.is_any.store(true, Ordering::SeqCst);
        let is_running = self.cancelled.operations.load(Ordering::SeqCst) > 0;
        if is_running && self.activity.received() == command {
            self.aborts.end_operations(&format!("{MARK}{cause}").into());
        }
    }

    /// Why the call with this command, which has failed with `error`, was cancelled, if it was. A peer that was told of the
    /// cancellation earlier may have ended the operation that they had in common: then this waits until this worker is told.
    pub(crate) fn cancelled_with(&self, command: u64, error: &(dyn StdError + 'static)) -> Option<Arc<str>> {
        let start = Instant::now();
        while Error::abort_cause(error).is_some_and(|cause| is_cancellation(&cause)) && start.elapsed() < TOLD_WITHIN {
            if let Some(cause) = self.cancelled(command) {
                return Some(cause);
            }
            thread::sleep(TOLD_INTERVAL);
        }
        self.cancelled(command)
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

    /// Begins an operation of a communicator.
    ///
    /// # Errors
    /// The call that the worker runs is cancelled.
    #[inline]
    pub(crate) fn begin_operation(&self) -> Result<Operation> {
        self.cancelled.operations.fetch_add(1, Ordering::SeqCst);
        let operation = Operation(self.cancelled.clone());
        match self.cancelled_now() {
            None => Ok(operation),
            Some(cause) => Err(Error::Cancelled { cause }),
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
            let mut calls = self.cancelled.calls();
            calls.retain(|call| call.0 > command);
            self.cancelled.is_any.store(!calls.is_empty(), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::abort::Abort;

    #[derive(Default)]
    struct Heard(Mutex<Vec<Arc<str>>>);

    impl Abort for Heard {
        fn abort(&self, cause: &Arc<str>) {
            self.0.lock().unwrap().push(cause.clone());
        }
    }

    #[test]
    fn a_cancellation_aborts_the_operations_of_its_call_only() {
        let link = Link::bare(Arc::default());
        let heard = Arc::new(Heard::default());
        link.on_abort(&(heard.clone() as Arc<dyn Abort>));
        let heard = || heard.0.lock().unwrap().len();
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
        drop(operation);
        link.activity().finish(5, true);
        link.end_call(5);
        assert_eq!(link.cancelled(6).as_deref(), Some("early"));
    }
}
