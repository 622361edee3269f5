//! Interrupts calls on a blocking communicator, which block inside the library until all peers have called it.
//!
//! Since NCCL 2.22.3 each launch on a non-blocking communicator starts a thread, so communicators are blocking from
//! that version on. Two parties interrupt a call: an abort that finds the rank inside, and the [`Watchdog`], when the
//! call has taken longer than the deadline.
//!
//! The interruption is a two-phase abort on a separate thread. Inside a group, `ncclCommAbort` only sets the abort
//! flags, which end calls and kernels of the communicator; `ncclGroupEnd` then frees the communicator. The thread ends
//! the group after the rank has left its call and has handed the communicator over. `ncclCommRevoke` is not used: the
//! function clears the flags before a waiting rank must have seen them, and a later `ncclCommAbort` then frees the
//! communicator without waiting for kernels and graphs (NCCL 2.31, `src/init.cc`).
//!
//! The rank counts `steps` when it enters and leaves a call. The rank checks for an abort after it has counted its
//! entry, and an aborter reads the count after it has stored the abort, so at least one of them sees the other
//! (sequentially consistent).

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::attendance::{self, Announcer};
use disco_core::sync;
use disco_core::{Error, Result};

use crate::library::Library;
use crate::runtime::{Runtime, Teardown};
use crate::teardown::AbortedComm;

/// Polls of the watchdog per deadline.
const POLLS_PER_DEADLINE: u32 = 8;
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(250);
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The calls of one rank on one communicator.
pub(crate) struct Blocking {
    library: &'static Library,
    runtime: Arc<Runtime>,
    watchdog: Arc<Watchdog>,
    /// Holds the communicator, which the library writes early in the call that creates it.
    comm_ptr: Arc<AtomicPtr<c_void>>,
    /// Entries plus exits of the rank: odd while the rank is inside a call.
    steps: AtomicU64,
    /// The number of the current operation, reported to peers.
    operation: AtomicU64,
    announcer: OnceLock<Announcer>,
    /// Time limit of one call.
    deadline: Mutex<Duration>,
    /// Whether a call has exceeded the deadline.
    is_late: AtomicBool,
    /// Whether the watchdog retries the interruption of a running call.
    is_interrupted: AtomicBool,
    interruption: Mutex<Option<Interruption>>,
    seen: Mutex<Seen>,
}

/// A two-phase abort whose first phase has begun.
struct Interruption {
    give: Option<mpsc::Sender<Option<AbortedComm>>>,
    teardown: Option<Teardown>,
}

/// The watchdog's last observation.
struct Seen {
    step: u64,
    since: Instant,
    has_notified: bool,
}

/// A thread that monitors the calls of a communicator and of all communicators split off it. The thread ends with the
/// last of them.
#[derive(Debug)]
pub(crate) struct Watchdog {
    watched: Mutex<Vec<Weak<Blocking>>>,
    /// The thread ends when this sender is dropped.
    _life: mpsc::Sender<()>,
}

impl Blocking {
    /// For the communicator behind `comm_ptr`, or the one that the library will write there.
    pub(crate) fn new(
        library: &'static Library,
        runtime: &Arc<Runtime>,
        watchdog: Arc<Watchdog>,
        comm_ptr: Arc<AtomicPtr<c_void>>,
        deadline: Duration,
    ) -> Arc<Self> {
        let blocking = Arc::new(Self {
            library,
            runtime: runtime.clone(),
            watchdog,
            comm_ptr,
            steps: AtomicU64::new(0),
            operation: AtomicU64::new(0),
            announcer: OnceLock::new(),
            deadline: Mutex::new(deadline),
            is_late: AtomicBool::new(false),
            is_interrupted: AtomicBool::new(false),
            interruption: Mutex::default(),
            seen: Mutex::new(Seen { step: 0, since: Instant::now(), has_notified: false }),
        });
        blocking.watchdog.watch(&blocking);
        blocking
    }

    /// For a communicator that is split off this one.
    pub(crate) fn child(&self, comm_ptr: Arc<AtomicPtr<c_void>>) -> Arc<Self> {
        Self::new(self.library, &self.runtime, self.watchdog.clone(), comm_ptr, self.deadline())
    }

    /// Sets the channel through which the watchdog notifies peers that this rank waits in an operation.
    pub(crate) fn set_announcer(&self, announcer: Announcer) {
        _ = self.announcer.set(announcer);
    }

    /// Sets the time limit of later calls.
    pub(crate) fn set_deadline(&self, deadline: Duration) {
        *sync::lock(&self.deadline) = deadline;
    }

    fn deadline(&self) -> Duration {
        *sync::lock(&self.deadline)
    }

    /// Sets the number of the operation that the next calls belong to.
    pub(crate) fn set_operation(&self, operation: u64) {
        self.operation.store(operation, Ordering::Relaxed);
    }

    /// Runs `call`; None after an abort (`is_aborted`) or after a call that exceeded the deadline.
    #[inline]
    pub(crate) fn call<T>(&self, is_aborted: impl FnOnce() -> bool, call: impl FnOnce() -> T) -> Option<T> {
        self.steps.fetch_add(1, Ordering::SeqCst);
        let is_off = is_aborted() || self.is_late.load(Ordering::SeqCst);
        let answer = (!is_off).then(call);
        self.steps.fetch_add(1, Ordering::SeqCst);
        answer
    }

    /// Fails after a call that exceeded the deadline.
    ///
    /// # Errors
    /// [`Error::Deadline`].
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_late.load(Ordering::SeqCst) {
            return Ok(());
        }
        let state = "the call did not return within the deadline and was interrupted".into();
        Err(Error::Deadline { operation: "a call of the library".into(), after: self.deadline(), state })
    }

    /// Starts to interrupt the running call, if there is one; does not wait. The cause of the abort is already stored.
    pub(crate) fn interrupt(&self) {
        self.is_interrupted.store(true, Ordering::SeqCst);
        let mut interruption = self.interruption();
        let is_inside = is_inside(self.steps.load(Ordering::SeqCst));
        let comm = self.comm_ptr.load(Ordering::SeqCst);
        // Without a communicator yet, the watchdog retries.
        if interruption.is_none() && is_inside && !comm.is_null() {
            let (give, given) = mpsc::channel();
            let teardown = Teardown::interrupt(self.library, &self.runtime, comm, given);
            *interruption = Some(Interruption { give: Some(give), teardown: Some(teardown) });
        }
    }

    /// Hands the communicator to the thread that has begun to abort it, and returns that thread's teardown. The rank is
    /// in no call. Returns the communicator if no interruption has begun.
    pub(crate) fn hand_over(&self, aborted: Option<AbortedComm>) -> Result<Option<Teardown>, Option<AbortedComm>> {
        let mut interruption = self.interruption();
        let Some(Interruption { give, teardown }) = &mut *interruption else { return Err(aborted) };
        if let Some(give) = give.take() {
            // The thread waits for this message.
            _ = give.send(aborted);
        }
        Ok(teardown.take())
    }

    /// Polls once: notifies peers about a long call, and interrupts a call that exceeds the deadline.
    fn poll(&self) {
        let (step, deadline) = (self.steps.load(Ordering::SeqCst), self.deadline());
        let mut seen = sync::lock(&self.seen);
        if seen.step != step || !is_inside(step) {
            *seen = Seen { step, since: Instant::now(), has_notified: false };
        }
        let waited = seen.since.elapsed();
        let notifies = is_inside(step)
            && attendance::is_long(waited, deadline)
            && !std::mem::replace(&mut seen.has_notified, true);
        drop(seen);
        if notifies {
            let operation = self.operation.load(Ordering::Relaxed);
            let told = self.announcer.get().map_or(Ok(()), |announcer| announcer.announce(operation));
            told.unwrap_or_else(|error| tracing::debug!(%error, "peers can't be told that this rank waits"));
        }
        let is_late = is_inside(step) && waited > deadline;
        self.is_late.fetch_or(is_late, Ordering::SeqCst);
        if is_late || self.is_interrupted.load(Ordering::SeqCst) {
            self.interrupt();
        }
    }

    fn interruption(&self) -> MutexGuard<'_, Option<Interruption>> {
        sync::lock(&self.interruption)
    }
}

fn is_inside(step: u64) -> bool {
    step % 2 == 1
}

impl Watchdog {
    /// Starts the thread. A call is interrupted at most a quarter of `shortest`, and at most 0.5 s, after its deadline.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(crate) fn start(shortest: Duration) -> Result<Arc<Self>> {
        let (life, end) = mpsc::channel();
        let watchdog = Arc::new(Self { watched: Mutex::default(), _life: life });
        let (own, pause) =
            (Arc::downgrade(&watchdog), (shortest / POLLS_PER_DEADLINE).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL));
        let work = move || {
            while end.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let watched = own.upgrade().map(|watchdog| watchdog.watched());
                watched.iter().flatten().for_each(|blocking| blocking.poll());
            }
        };
        let spawned = thread::Builder::new().name("disco-ccl-watch".into()).spawn(work);
        spawned.map_err(|error| Error::system("no thread for the deadlines of calls", error))?;
        Ok(watchdog)
    }

    fn watch(&self, blocking: &Arc<Blocking>) {
        self.lock().push(Arc::downgrade(blocking));
    }

    fn watched(&self) -> Vec<Arc<Blocking>> {
        let mut watched = self.lock();
        watched.retain(|blocking| blocking.strong_count() > 0);
        watched.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Blocking>>> {
        sync::lock(&self.watched)
    }
}

disco_core::format_as!(Debug for Blocking, |it| "<{} calls entered and left>", it.steps.load(Ordering::Relaxed));
