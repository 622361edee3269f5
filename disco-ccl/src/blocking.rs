//! Calls of a blocking communicator, which may wait for peers inside the library, and what ends them.
//!
//! A launch on a communicator that does not block costs a thread since NCCL 2.23, so those that launch block where they can be told
//! to stop: `ncclCommRevoke` (since 2.28.7) ends a call from another thread, and frees nothing. It is called where the rank is
//! inside and its communicator is aborted, or where the [`Watchdog`] has seen the rank in one call for longer than the deadline.
//!
//! The rank counts when it enters and when it leaves a call. Whoever revokes does so under a lock, and only while the count says
//! that the rank is still in the same call; whoever ends the communicator takes that lock before.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::roll::{self, Voice};
use disco_core::{Error, Result};

use crate::abi::Comm;
use crate::ending::{self, Ending};
use crate::library::Library;
use crate::runtime::Runtime;
use crate::table::CommRevoke;

/// `NCCL_REVOKE_DEFAULT`
const DEFAULT: c_int = 0;
/// The watchdog looks so often during a deadline.
const LOOKS: u32 = 8;
/// The longest and the shortest time between two looks.
const RARELY: Duration = Duration::from_millis(250);
const OFTEN: Duration = Duration::from_millis(1);

/// One rank's calls.
pub(crate) struct Blocking {
    library: &'static Library,
    runtime: Arc<Runtime>,
    comm_revoke: CommRevoke,
    watchdog: Arc<Watchdog>,
    /// How often the rank has entered and left calls: it is inside while this is odd.
    steps: AtomicU64,
    /// The communicator, once the rank was inside.
    comm: AtomicPtr<c_void>,
    /// The number of the operation that the rank is in, for its peers.
    operation: AtomicU64,
    voice: OnceLock<Voice>,
    /// A call has taken longer than the deadline.
    is_late: AtomicBool,
    /// Locked by who revokes, and by who ends the communicator. Whether it was revoked.
    is_revoked: Mutex<bool>,
    seen: Mutex<Seen>,
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
    deadline: Duration,
    watched: Mutex<Vec<Weak<Blocking>>>,
    /// The thread ends when this is gone.
    _life: mpsc::Sender<()>,
}

impl Blocking {
    /// For one communicator of a library that has `ncclCommRevoke`.
    pub(crate) fn new(
        library: &'static Library,
        runtime: &Arc<Runtime>,
        comm_revoke: CommRevoke,
        watchdog: &Arc<Watchdog>,
    ) -> Arc<Self> {
        let blocking = Arc::new(Self {
            library,
            runtime: runtime.clone(),
            comm_revoke,
            watchdog: watchdog.clone(),
            steps: AtomicU64::new(0),
            comm: AtomicPtr::new(ptr::null_mut()),
            operation: AtomicU64::new(0),
            voice: OnceLock::new(),
            is_late: AtomicBool::new(false),
            is_revoked: Mutex::new(false),
            seen: Mutex::new(Seen { step: 0, since: Instant::now(), has_told: false }),
        });
        watchdog.watch(&blocking);
        blocking
    }

    /// For one that is split off.
    pub(crate) fn child(&self) -> Arc<Self> {
        Self::new(self.library, &self.runtime, self.comm_revoke, &self.watchdog)
    }

    /// The rank's voice, by which it tells its peers that it waits in an operation.
    pub(crate) fn tell_by(&self, voice: Voice) {
        _ = self.voice.set(voice);
    }

    /// The operation that the next calls are for.
    pub(crate) fn begin(&self, operation: u64) {
        self.operation.store(operation, Ordering::Relaxed);
    }

    /// Makes a call, unless `is_off` says that there are to be none: that is asked when everybody can see the rank inside.
    #[inline]
    pub(crate) fn call<T>(&self, comm: Comm, is_off: impl FnOnce() -> bool, call: impl FnOnce() -> T) -> Option<T> {
        self.comm.store(comm, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::SeqCst);
        let answer = (!is_off()).then(call);
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
        let (operation, after) = ("a call of the library".into(), self.watchdog.deadline);
        Err(Error::Deadline { operation, after, state: "it has not returned, and was called off".into() })
    }

    /// Ends the call that the rank is in, if it is in one, without waiting for that. The rank has been told why.
    pub(crate) fn revoke(self: &Arc<Self>) {
        let step = self.steps.load(Ordering::SeqCst);
        if is_inside(step) {
            let own = self.clone();
            drop(Ending::spawn("ncclCommRevoke", &self.runtime, move || own.revoke_in(step)));
        }
    }

    fn revoke_in(&self, step: u64) {
        let mut is_revoked = self.lock();
        if *is_revoked || self.steps.load(Ordering::SeqCst) != step {
            return;
        }
        *is_revoked = true;
        // SAFETY: the rank is in a call with the communicator, which nobody frees without the lock.
        let code = unsafe { (self.comm_revoke)(self.comm.load(Ordering::Relaxed), DEFAULT) };
        ending::report(self.library, "ncclCommRevoke", code);
    }

    /// Waits for a revoke that is under way, after which there is none: the rank is in no call, nor will be.
    pub(crate) fn end(&self) {
        drop(self.lock());
    }

    /// Looks whether the rank has been in one call for long.
    fn look(self: &Arc<Self>, deadline: Duration) {
        let step = self.steps.load(Ordering::SeqCst);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.step != step || !is_inside(step) {
            *seen = Seen { step, since: Instant::now(), has_told: false };
            return;
        }
        let waited = seen.since.elapsed();
        if roll::is_long(waited, deadline) && !std::mem::replace(&mut seen.has_told, true) {
            let operation = self.operation.load(Ordering::Relaxed);
            let told = self.voice.get().map_or(Ok(()), |voice| voice.tell(operation));
            told.unwrap_or_else(|error| tracing::debug!(%error, "peers can't be told that this rank waits"));
        }
        drop(seen);
        if waited > deadline && !self.is_late.swap(true, Ordering::SeqCst) {
            self.revoke();
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_revoked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_inside(step: u64) -> bool {
    step % 2 == 1
}

impl Watchdog {
    /// Starts the thread. A call may take as long as the deadline, and an eighth of it more.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(deadline: Duration) -> Result<Arc<Self>> {
        let (life, end) = mpsc::channel();
        let watchdog = Arc::new(Self { deadline, watched: Mutex::default(), _life: life });
        let (own, pause) = (Arc::downgrade(&watchdog), (deadline / LOOKS).clamp(OFTEN, RARELY));
        let work = move || {
            while end.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let watched = own.upgrade().map(|watchdog| watchdog.watched());
                watched.iter().flatten().for_each(|blocking| blocking.look(deadline));
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
