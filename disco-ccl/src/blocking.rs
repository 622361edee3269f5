//! Calls on a blocking communicator can block inside the library until peers come. This module interrupts them.
//!
//! A launch on a communicator that does not block costs a thread since NCCL 2.22.3, so communicators are blocking from then on. A call
//! is interrupted where the rank is inside and its communicator is aborted, or where the [`Watchdog`] has seen the rank in one call
//! for longer than the deadline.
//!
//! The interruption is an abort in two halves, on a thread of its own: between `ncclGroupStart` and `ncclGroupEnd`, `ncclCommAbort`
//! only sets the flags at which calls and kernels of the communicator give up, and `ncclGroupEnd` frees the communicator. The second
//! half begins when the rank has left its call and has given its communicator to that thread. `ncclCommRevoke` would clear the flags
//! again before the rank has seen them, and have a later abort free the communicator without a wait for its kernels and graphs (NCCL
//! 2.31, `src/init.cc`).
//!
//! The rank counts when it enters and when it leaves a call. It looks whether calls are off when the count says that it is inside, and
//! who calls them off looks at the count afterwards: one of them sees the other.

use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::roll::{self, Voice};
use disco_core::{Error, Result};

use crate::ending::{Aborted, Ending};
use crate::library::Library;
use crate::runtime::Runtime;

/// The watchdog looks so often during a deadline.
const LOOKS: u32 = 8;
/// The longest and the shortest time between two looks.
const RARELY: Duration = Duration::from_millis(250);
const OFTEN: Duration = Duration::from_millis(1);

/// One rank's calls.
pub(crate) struct Blocking {
    library: &'static Library,
    runtime: Arc<Runtime>,
    watchdog: Arc<Watchdog>,
    /// Where the library writes the communicator, early in the call that makes it.
    place: Arc<AtomicPtr<c_void>>,
    /// How often the rank has entered and left calls: it is inside while this is odd.
    steps: AtomicU64,
    /// The number of the operation that the rank is in, for its peers.
    operation: AtomicU64,
    voice: OnceLock<Voice>,
    /// How long a call may take.
    deadline: Mutex<Duration>,
    /// A call has taken longer than that.
    is_late: AtomicBool,
    /// Calls are to be interrupted.
    is_off: AtomicBool,
    interruption: Mutex<Option<Interruption>>,
    seen: Mutex<Seen>,
}

/// The first half of an abort, and what the second waits for.
struct Interruption {
    give: Option<mpsc::Sender<Option<Aborted>>>,
    ending: Option<Ending>,
}

/// What the watchdog saw last.
struct Seen {
    step: u64,
    since: Instant,
    has_told: bool,
}

/// A thread that looks after the calls of a communicator and of all that are split off it. It ends with the last of them.
#[derive(Debug)]
pub(crate) struct Watchdog {
    watched: Mutex<Vec<Weak<Blocking>>>,
    /// The thread ends when this is gone.
    _life: mpsc::Sender<()>,
}

impl Blocking {
    /// For one communicator, which the library will write to `place`, or has written there.
    pub(crate) fn new(
        library: &'static Library,
        runtime: &Arc<Runtime>,
        watchdog: Arc<Watchdog>,
        place: Arc<AtomicPtr<c_void>>,
        deadline: Duration,
    ) -> Arc<Self> {
        let blocking = Arc::new(Self {
            library,
            runtime: runtime.clone(),
            watchdog,
            place,
            steps: AtomicU64::new(0),
            operation: AtomicU64::new(0),
            voice: OnceLock::new(),
            deadline: Mutex::new(deadline),
            is_late: AtomicBool::new(false),
            is_off: AtomicBool::new(false),
            interruption: Mutex::default(),
            seen: Mutex::new(Seen { step: 0, since: Instant::now(), has_told: false }),
        });
        blocking.watchdog.watch(&blocking);
        blocking
    }

    /// For one that is split off.
    pub(crate) fn child(&self, place: Arc<AtomicPtr<c_void>>) -> Arc<Self> {
        Self::new(self.library, &self.runtime, self.watchdog.clone(), place, self.deadline())
    }

    /// The rank's voice, by which it tells its peers that it waits in an operation.
    pub(crate) fn tell_by(&self, voice: Voice) {
        _ = self.voice.set(voice);
    }

    /// How long the next calls may take.
    pub(crate) fn set_deadline(&self, deadline: Duration) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    fn deadline(&self) -> Duration {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The operation that the next calls are for.
    pub(crate) fn begin(&self, operation: u64) {
        self.operation.store(operation, Ordering::Relaxed);
    }

    /// Makes a call, unless calls are off, or `is_aborted` says so.
    #[inline]
    pub(crate) fn call<T>(&self, is_aborted: impl FnOnce() -> bool, call: impl FnOnce() -> T) -> Option<T> {
        self.steps.fetch_add(1, Ordering::SeqCst);
        let is_off = is_aborted() || self.is_late.load(Ordering::SeqCst);
        let answer = (!is_off).then(call);
        self.steps.fetch_add(1, Ordering::SeqCst);
        answer
    }

    /// Refuses calls after one that took too long.
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

    /// Interrupts the call that the rank is in, if it is in one, without waiting for that. The rank has been told why.
    pub(crate) fn interrupt(&self) {
        self.is_off.store(true, Ordering::SeqCst);
        let mut interruption = self.interruption();
        let is_inside = is_inside(self.steps.load(Ordering::SeqCst));
        let comm = self.place.load(Ordering::SeqCst);
        // The watchdog tries again where there is no communicator yet.
        if interruption.is_none() && is_inside && !comm.is_null() {
            let (give, given) = mpsc::channel();
            let ending = Ending::interrupt(self.library, &self.runtime, comm, given);
            *interruption = Some(Interruption { give: Some(give), ending: Some(ending) });
        }
    }

    /// Gives a communicator, if there is one, to the thread that has begun to abort it. The rank is in no call. Gives it back where there
    /// is no such thread.
    pub(crate) fn give(&self, aborted: Option<Aborted>) -> Result<Option<Ending>, Option<Aborted>> {
        let mut interruption = self.interruption();
        let Some(Interruption { give, ending }) = &mut *interruption else { return Err(aborted) };
        if let Some(give) = give.take() {
            // The thread waits for it.
            _ = give.send(aborted);
        }
        Ok(ending.take())
    }

    /// Looks whether the rank has been in one call for long.
    fn look(&self) {
        let (step, deadline) = (self.steps.load(Ordering::SeqCst), self.deadline());
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.step != step || !is_inside(step) {
            *seen = Seen { step, since: Instant::now(), has_told: false };
        }
        let waited = seen.since.elapsed();
        let tells = is_inside(step) && roll::is_long(waited, deadline) && !std::mem::replace(&mut seen.has_told, true);
        drop(seen);
        if tells {
            let operation = self.operation.load(Ordering::Relaxed);
            let told = self.voice.get().map_or(Ok(()), |voice| voice.tell(operation));
            told.unwrap_or_else(|error| tracing::debug!(%error, "peers can't be told that this rank waits"));
        }
        let is_late = is_inside(step) && waited > deadline;
        self.is_late.fetch_or(is_late, Ordering::SeqCst);
        if is_late || self.is_off.load(Ordering::SeqCst) {
            self.interrupt();
        }
    }

    fn interruption(&self) -> MutexGuard<'_, Option<Interruption>> {
        self.interruption.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_inside(step: u64) -> bool {
    step % 2 == 1
}

impl Watchdog {
    /// Starts the thread. It interrupts a call that takes longer than its deadline at most a quarter of `shortest` or half a second
    /// later.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(shortest: Duration) -> Result<Arc<Self>> {
        let (life, end) = mpsc::channel();
        let watchdog = Arc::new(Self { watched: Mutex::default(), _life: life });
        let (own, pause) = (Arc::downgrade(&watchdog), (shortest / LOOKS).clamp(OFTEN, RARELY));
        let work = move || {
            while end.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let watched = own.upgrade().map(|watchdog| watchdog.watched());
                watched.iter().flatten().for_each(|blocking| blocking.look());
            }
        };
        let spawned = thread::Builder::new().name("disco-ccl-watch".into()).spawn(work);
        spawned.map_err(|error| Error::invalid(format!("no thread for the deadlines of calls: {error}")))?;
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
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} calls entered and left>", self.steps.load(Ordering::Relaxed))
    }
}
