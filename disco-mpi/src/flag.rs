//! Abort flags of the communicators of this process, and whether a communicator was left with a pending operation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::sync;
use disco_core::{Abort, AbortCause};

/// Whether a communicator was left with pending requests: `MPI_Finalize` would wait for them.
static UNFINISHED: AtomicBool = AtomicBool::new(false);
/// The flags of all communicators; some are dropped already.
static FLAGS: Mutex<Vec<Weak<AbortFlag>>> = Mutex::new(Vec::new());
/// How long threads may take to leave MPI after an abort.
const LEAVE_GRACE: Duration = Duration::from_secs(1);

/// Aborts the waits of one communicator.
#[derive(Debug, Default)]
pub(crate) struct AbortFlag {
    aborted: AtomicBool,
    cause: OnceLock<AbortCause>,
    /// The flag of the parent communicator, whose abort applies to this one too.
    parent: Option<Arc<AbortFlag>>,
    /// Whether the communicator's thread may be calling MPI now.
    is_inside: AtomicBool,
}

impl AbortFlag {
    /// The flag of a child communicator.
    pub(crate) fn child(parent: &Arc<Self>) -> Self {
        Self { parent: Some(parent.clone()), ..Self::default() }
    }

    /// Marks that the communicator's thread enters MPI. Called before the thread checks for an abort.
    pub(crate) fn enter(&self) {
        // Sequentially consistent with `abort_all`, which first sets the abort and then loads this mark: at least one
        // side sees the other.
        self.is_inside.swap(true, Ordering::SeqCst);
    }

    pub(crate) fn leave(&self) {
        self.is_inside.store(false, Ordering::Release);
    }

    /// Whether the communicator's thread may be inside MPI.
    fn is_inside(&self) -> bool {
        self.is_inside.load(Ordering::SeqCst)
    }

    pub(crate) fn cause(&self) -> Option<AbortCause> {
        if self.aborted.load(Ordering::SeqCst) {
            self.cause.get().cloned()
        } else {
            self.parent.as_ref().and_then(|parent| parent.cause())
        }
    }
}

impl Abort for AbortFlag {
    fn abort(&self, cause: &AbortCause) {
        self.cause.get_or_init(|| cause.clone());
        // Other ranks may have pending operations even if this rank has none.
        mark_unfinished();
        self.aborted.store(true, Ordering::SeqCst);
    }
}

/// Records that this rank or another has left an operation pending: `MPI_Finalize` may wait for it for ever.
pub(crate) fn mark_unfinished() {
    UNFINISHED.store(true, Ordering::Release);
}

/// Registers the flag of a new communicator, for [`abort_all`].
pub(crate) fn register(flag: &Arc<AbortFlag>) {
    let mut flags = sync::lock(&FLAGS);
    flags.retain(|flag| flag.strong_count() > 0);
    flags.push(Arc::downgrade(flag));
}

/// Aborts all communicators of this process, so that MPI can be finalised. Returns whether all threads have left MPI in
/// time.
pub(crate) fn abort_all() -> bool {
    let flags = std::mem::take(&mut *sync::lock(&FLAGS));
    let flags: Vec<Arc<AbortFlag>> = flags.iter().filter_map(Weak::upgrade).collect();
    flags.iter().for_each(|flag| flag.abort(&"MPI is finalised".into()));
    let start = Instant::now();
    while flags.iter().any(|flag| flag.is_inside()) {
        if start.elapsed() > LEAVE_GRACE {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Whether no operation was left pending.
pub(crate) fn is_finished() -> bool {
    !UNFINISHED.load(Ordering::Acquire)
}
