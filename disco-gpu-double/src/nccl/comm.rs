//! One rank's communicator.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use super::abi::{Code, CommHandle};
use super::clique::Clique;
use super::connection::Connection;
use super::reduce::Scalar;
use super::text;
use crate::cuda::device::Device;
use crate::handles::Handles;
use crate::settings;
use crate::sync::lock;

static COMMS: Handles<Comm> = Handles::new(0x7_0000_0000);

/// Until peers hear of an abort, where they do.
const NEWS: Duration = Duration::from_millis(10);

/// One communicator.
pub(crate) struct Comm {
    /// Where its buffers and streams are.
    pub(crate) device: &'static Device,
    /// Whether calls wait.
    pub(crate) is_blocking: bool,
    seat: OnceLock<Seat>,
    /// Success, in progress, or the first error.
    status: AtomicI32,
    /// What there is to say about the error.
    error_text: Mutex<Option<String>>,
    is_aborted: AtomicBool,
    is_finalized: AtomicBool,
    /// The peers that it has connected with.
    pub(crate) connected: Mutex<BTreeSet<Connection>>,
    /// Units launched.
    pub(crate) launched: AtomicU64,
    /// Collectives launched.
    pub(crate) steps: AtomicU64,
    /// Units in graphs that are not destroyed.
    pub(crate) captured: AtomicU64,
    /// Splits begun.
    pub(crate) splits: AtomicU64,
    /// Held by the thread that is in a call.
    calling: Mutex<()>,
    /// Operators of its own.
    pub(crate) scalars: Mutex<BTreeMap<c_int, Scalar>>,
    /// Handles of registered buffers.
    pub(crate) registered: Mutex<BTreeSet<usize>>,
}

/// A rank's place.
pub(crate) struct Seat {
    /// With whom.
    pub(crate) clique: Arc<Clique>,
    /// As which rank.
    pub(crate) rank: usize,
}

/// How many communicators there are.
pub(crate) fn live() -> usize {
    COMMS.len()
}

/// The communicator of a handle.
pub(crate) fn find(handle: CommHandle) -> Result<Arc<Comm>, Code> {
    COMMS.find(handle).ok_or_else(|| text::refuse(Code::INVALID_ARGUMENT, "there is no such communicator"))
}

/// All that have a handle.
pub(crate) fn all() -> Vec<Arc<Comm>> {
    COMMS.all()
}

/// A handle for it.
pub(crate) fn insert(comm: &Arc<Comm>) -> CommHandle {
    COMMS.insert(Arc::clone(comm))
}

/// Ends a handle.
pub(crate) fn remove(handle: CommHandle) -> Result<Arc<Comm>, Code> {
    COMMS.remove(handle).ok_or_else(|| text::refuse(Code::INVALID_ARGUMENT, "there is no such communicator"))
}

impl Comm {
    /// One that is in progress.
    pub(crate) fn new(device: &'static Device, is_blocking: bool) -> Arc<Self> {
        Arc::new(Self {
            device,
            is_blocking,
            seat: OnceLock::new(),
            status: AtomicI32::new(Code::IN_PROGRESS.0),
            error_text: Mutex::default(),
            is_aborted: AtomicBool::new(false),
            is_finalized: AtomicBool::new(false),
            connected: Mutex::default(),
            launched: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            captured: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            calling: Mutex::default(),
            scalars: Mutex::default(),
            registered: Mutex::default(),
        })
    }

    /// Takes its seat, which it does once.
    pub(crate) fn sit(&self, clique: Arc<Clique>, rank: usize) {
        let _ = self.seat.set(Seat { clique, rank });
    }

    /// Its seat; none while the split that makes it goes on.
    pub(crate) fn seat_if_any(&self) -> Option<&Seat> {
        self.seat.get()
    }

    /// Its seat, which one that is ready has.
    pub(crate) fn seat(&self) -> Result<&Seat, Code> {
        self.seat.get().ok_or_else(|| text::refuse(Code::INVALID_USAGE, "the communicator is still being split off"))
    }

    /// Begins a call, which one thread may be in, of a communicator that has nothing in progress and no error.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, ()>, Code> {
        let turn = match self.calling.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(text::refuse(Code::INVALID_USAGE, "two threads are in calls of one communicator"));
            }
        };
        match self.status() {
            Code::SUCCESS => Ok(turn),
            Code::IN_PROGRESS => {
                let why = "Attempt to use communicator before the previous operation returned ncclSuccess";
                Err(text::refuse(Code::INVALID_ARGUMENT, why))
            }
            code => Err(code),
        }
    }

    /// Success, in progress, or the first error.
    pub(crate) fn status(&self) -> Code {
        Code(self.status.load(SeqCst))
    }

    /// The same as `ncclCommGetAsyncError` says it: with what peers have done, if that is to be heard of.
    pub(crate) fn async_error(&self) -> Code {
        let status = self.status();
        let is_open = status == Code::SUCCESS || status == Code::IN_PROGRESS;
        if is_open && settings::read().remote_errors() && self.has_news() {
            self.fail(Code::REMOTE_ERROR, "a peer has aborted the communicator");
        }
        self.status()
    }

    fn has_news(&self) -> bool {
        let aborted_at = self.seat_if_any().and_then(|seat| seat.clique.lock().aborted_at);
        aborted_at.is_some_and(|at| at.elapsed() >= NEWS)
    }

    /// Something goes on in the background.
    pub(crate) fn begin(&self) {
        let _ = self.status.compare_exchange(Code::SUCCESS.0, Code::IN_PROGRESS.0, SeqCst, SeqCst);
    }

    /// It is done.
    pub(crate) fn end(&self) {
        let _ = self.status.compare_exchange(Code::IN_PROGRESS.0, Code::SUCCESS.0, SeqCst, SeqCst);
    }

    /// Has an error from now on, unless it has one.
    pub(crate) fn fail(&self, code: Code, why: &str) {
        let is_open = |status| status == Code::SUCCESS.0 || status == Code::IN_PROGRESS.0;
        let mut error_text = lock(&self.error_text);
        if self.status.fetch_update(SeqCst, SeqCst, |status| is_open(status).then_some(code.0)).is_ok() {
            *error_text = Some(why.to_owned());
            text::refuse(code, why);
        }
    }

    /// What there is to say about its error.
    pub(crate) fn error_text(&self) -> Option<String> {
        lock(&self.error_text).clone()
    }

    /// Whether it was finalized.
    pub(crate) fn is_finalized(&self) -> bool {
        self.is_finalized.load(SeqCst)
    }

    /// It is finalized. Whether it was before.
    pub(crate) fn set_finalized(&self) -> bool {
        self.is_finalized.swap(true, SeqCst)
    }

    /// Whether its calls and its work are called off: it was aborted.
    pub(crate) fn is_off(&self) -> bool {
        self.is_aborted.load(SeqCst)
    }

    /// It is aborted.
    pub(crate) fn set_aborted(&self) {
        self.is_aborted.store(true, SeqCst);
    }
}
