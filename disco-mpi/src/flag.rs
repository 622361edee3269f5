//! What ends the waits of this process's communicators, and whether one of them was left with an operation under way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::Abort;
use disco_core::sync;

/// A communicator has been left with requests under way: finalising would wait for them.
static UNFINISHED: AtomicBool = AtomicBool::new(false);
/// Communicators, some of which are gone.
static FLAGS: Mutex<Vec<Weak<AbortFlag>>> = Mutex::new(Vec::new());
/// How long their threads may take to leave MPI.
const LEAVE_GRACE: Duration = Duration::from_secs(1);

/// The end of waiting, from outside.
#[derive(Debug, Default)]
pub(crate) struct AbortFlag {
    aborted: AtomicBool,
    cause: OnceLock<Arc<str>>,
    /// That of the communicator that this one was split off.
    parent: Option<Arc<AbortFlag>>,
    /// Whether its thread calls MPI now.
    is_inside: AtomicBool,
}

impl AbortFlag {
    /// For a communicator that is split off.
    pub(crate) fn child(parent: &Arc<Self>) -> Self {
        Self { parent: Some(parent.clone()), ..Self::default() }
    }

    /// Its thread is about to look whether it may call MPI.
    pub(crate) fn enter(&self) {
        // Before that look, for `host`, which ends what may be called before it looks whether somebody is inside.
        self.is_inside.swap(true, Ordering::SeqCst);
    }

    pub(crate) fn leave(&self) {
        self.is_inside.store(false, Ordering::Release);
    }

    /// Whether its thread may be inside MPI.
    fn is_inside(&self) -> bool {
        self.is_inside.load(Ordering::SeqCst)
    }

    pub(crate) fn cause(&self) -> Option<Arc<str>> {
        match self.aborted.load(Ordering::SeqCst) {
            true => self.cause.get().cloned(),
            false => self.parent.as_ref().and_then(|parent| parent.cause()),
        }
    }
}

impl Abort for AbortFlag {
    fn abort(&self, cause: &Arc<str>) {
        self.cause.get_or_init(|| cause.clone());
        // Whether this rank has anything under way or not, others have.
        mark_unfinished();
        self.aborted.store(true, Ordering::SeqCst);
    }
}

/// A collective was left, by this rank or another: MPI may wait for those who were in it.
pub(crate) fn mark_unfinished() {
    UNFINISHED.store(true, Ordering::Release);
}

/// Another communicator.
pub(crate) fn register(flag: &Arc<AbortFlag>) {
    let mut flags = sync::lock(&FLAGS);
    flags.retain(|flag| flag.strong_count() > 0);
    flags.push(Arc::downgrade(flag));
}

/// Ends what communicators of this process do, so that MPI can be finalised: none calls it any more. Says whether that is so.
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

/// Whether no collective was left.
pub(crate) fn is_finished() -> bool {
    !UNFINISHED.load(Ordering::Acquire)
}
