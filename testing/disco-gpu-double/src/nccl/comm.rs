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

/// Time until peers see an abort, with `GPU_DOUBLE_REMOTE_ERRORS`.
const REMOTE_ERROR_DELAY: Duration = Duration::from_millis(10);

/// A communicator.
pub(crate) struct Comm {
    /// The device of its buffers and streams.
    pub(crate) device: &'static Device,
    /// Whether the communicator is blocking.
    pub(crate) is_blocking: bool,
    membership: OnceLock<Membership>,
    /// `ncclSuccess`, `ncclInProgress`, or the first error.
    status: AtomicI32,
    /// Text of the error.
    error_text: Mutex<Option<String>>,
    is_aborted: AtomicBool,
    is_finalized: AtomicBool,
    /// Connections that were made.
    pub(crate) connected: Mutex<BTreeSet<Connection>>,
    /// Number of launched units.
    pub(crate) launched: AtomicU64,
    /// Number of launched collectives.
    pub(crate) collectives: AtomicU64,
    /// Number of units in graphs that are not destroyed.
    pub(crate) captured: AtomicU64,
    /// Number of splits begun.
    pub(crate) splits: AtomicU64,
    /// Held by the thread that is in a call.
    calling: Mutex<()>,
    /// Operators made for this communicator.
    pub(crate) scalars: Mutex<BTreeMap<c_int, Scalar>>,
    /// Handles of registered buffers.
    pub(crate) registered: Mutex<BTreeSet<usize>>,
}

/// A rank in a clique.
pub(crate) struct Membership {
    /// The clique.
    pub(crate) clique: Arc<Clique>,
    /// The rank in the clique.
    pub(crate) rank: usize,
}

/// Number of communicators that have a handle.
pub(crate) fn live() -> usize {
    COMMS.len()
}

/// The communicator of a handle.
pub(crate) fn find(handle: CommHandle) -> Result<Arc<Comm>, Code> {
    COMMS.find(handle).ok_or_else(|| text::refuse(Code::INVALID_ARGUMENT, "there is no such communicator"))
}

/// All communicators that have a handle.
pub(crate) fn all() -> Vec<Arc<Comm>> {
    COMMS.all()
}

/// Creates a handle of a communicator.
pub(crate) fn insert(comm: &Arc<Comm>) -> CommHandle {
    COMMS.insert(Arc::clone(comm))
}

/// Removes a handle.
pub(crate) fn remove(handle: CommHandle) -> Result<Arc<Comm>, Code> {
    COMMS.remove(handle).ok_or_else(|| text::refuse(Code::INVALID_ARGUMENT, "there is no such communicator"))
}

impl Comm {
    /// A communicator in progress.
    pub(crate) fn new(device: &'static Device, is_blocking: bool) -> Arc<Self> {
        Arc::new(Self {
            device,
            is_blocking,
            membership: OnceLock::new(),
            status: AtomicI32::new(Code::IN_PROGRESS.0),
            error_text: Mutex::default(),
            is_aborted: AtomicBool::new(false),
            is_finalized: AtomicBool::new(false),
            connected: Mutex::default(),
            launched: AtomicU64::new(0),
            collectives: AtomicU64::new(0),
            captured: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            calling: Mutex::default(),
            scalars: Mutex::default(),
            registered: Mutex::default(),
        })
    }

    /// Sets the membership, once.
    pub(crate) fn set_membership(&self, clique: Arc<Clique>, rank: usize) {
        let _ = self.membership.set(Membership { clique, rank });
    }

    /// The membership, or `None` while the split that makes this communicator is in progress.
    pub(crate) fn membership_if_any(&self) -> Option<&Membership> {
        self.membership.get()
    }

    /// The membership, or an error if the communicator is not ready.
    pub(crate) fn membership(&self) -> Result<&Membership, Code> {
        self.membership
            .get()
            .ok_or_else(|| text::refuse(Code::INVALID_USAGE, "the split that makes the communicator is not done"))
    }

    /// Begins a call: fails if another thread is in a call, an operation is in progress, or the communicator has an
    /// error.
    pub(crate) fn begin_call(&self) -> Result<MutexGuard<'_, ()>, Code> {
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

    /// `ncclSuccess`, `ncclInProgress`, or the first error.
    pub(crate) fn status(&self) -> Code {
        Code(self.status.load(SeqCst))
    }

    /// The result of `ncclCommGetAsyncError`, including errors of peers if they are reported.
    pub(crate) fn async_error(&self) -> Code {
        let status = self.status();
        let is_open = status == Code::SUCCESS || status == Code::IN_PROGRESS;
        if is_open && settings::read().remote_errors() && self.has_peer_aborted() {
            self.fail(Code::REMOTE_ERROR, "a peer has aborted the communicator");
        }
        self.status()
    }

    fn has_peer_aborted(&self) -> bool {
        let aborted_at = self.membership_if_any().and_then(|membership| membership.clique.lock().aborted_at);
        aborted_at.is_some_and(|at| at.elapsed() >= REMOTE_ERROR_DELAY)
    }

    /// Marks that background work is in progress.
    pub(crate) fn begin(&self) {
        let _ = self.status.compare_exchange(Code::SUCCESS.0, Code::IN_PROGRESS.0, SeqCst, SeqCst);
    }

    /// Marks that the background work is done.
    pub(crate) fn end(&self) {
        let _ = self.status.compare_exchange(Code::IN_PROGRESS.0, Code::SUCCESS.0, SeqCst, SeqCst);
    }

    /// Sets the error, unless there is one.
    pub(crate) fn fail(&self, code: Code, why: &str) {
        let is_open = |status| status == Code::SUCCESS.0 || status == Code::IN_PROGRESS.0;
        let mut error_text = lock(&self.error_text);
        if self.status.fetch_update(SeqCst, SeqCst, |status| is_open(status).then_some(code.0)).is_ok() {
            *error_text = Some(why.to_owned());
            text::refuse(code, why);
        }
    }

    /// The text of the error.
    pub(crate) fn error_text(&self) -> Option<String> {
        lock(&self.error_text).clone()
    }

    /// Whether the communicator was finalized.
    pub(crate) fn is_finalized(&self) -> bool {
        self.is_finalized.load(SeqCst)
    }

    /// Marks the communicator as finalized; returns whether it was already.
    pub(crate) fn set_finalized(&self) -> bool {
        self.is_finalized.swap(true, SeqCst)
    }

    /// Whether the communicator was aborted, which ends its calls and its work.
    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(SeqCst)
    }

    /// Marks the communicator as aborted.
    pub(crate) fn set_aborted(&self) {
        self.is_aborted.store(true, SeqCst);
    }
}
