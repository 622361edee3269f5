//! A library's communicator, shared by the rank that uses it and by the threads that abort it.
//!
//! Each call of the library holds the lock `comm`. The thread that ends the communicator takes it out under the lock,
//! and then is its only owner. An abort that finds the lock taken leaves the teardown to the rank that holds the lock:
//! the rank checks for aborts after it has unlocked. The aborter stores the abort, fences, and tries the lock; the rank
//! unlocks, fences, and reads the abort. So at least one of them sees the other. The abort also
//! [interrupts](Blocking::interrupt) the rank's call, if the communicator is blocking.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use disco_core::abort::AbortRegistry;
use disco_core::sync;
use disco_core::tensor::Storage;
use disco_core::{Abort, AbortCause, Error, Result};

use crate::abi::{Code, Comm};
use crate::blocking::{Blocking, Watchdog};
use crate::library::Library;
use crate::owned::OwnedComm;
use crate::registration::Registration;
use crate::runtime::{Graphs, Runtime, Teardown};
use crate::siblings::Sibling;
use crate::table::Table;
use crate::teardown::AbortedComm;

/// The cause that graphs report after their communicator was dropped.
pub(crate) const DROPPED: &str = "the communicator was dropped";

/// One rank's communicator, until it is taken out for its teardown.
#[derive(Debug)]
pub(crate) struct SharedComm {
    library: &'static Library,
    runtime: Arc<Runtime>,
    comm: Mutex<OwnedComm>,
    /// The output of the creation. The library writes it during the call, or later from a thread of its own, so it is
    /// freed only if `is_creation_over`.
    comm_ptr: ManuallyDrop<Arc<AtomicPtr<c_void>>>,
    is_creation_over: AtomicBool,
    is_taken: AtomicBool,
    is_aborted: AtomicBool,
    cause: OnceLock<AbortCause>,
    /// Set for a blocking communicator: interrupts its calls.
    blocking: OnceLock<Arc<Blocking>>,
    /// The graphs of captured operations. They are destroyed before the communicator.
    graphs: Arc<Graphs>,
    /// Forwards aborts to the communicators that were split off. Each of those owns this one as its parent.
    children: AbortRegistry,
    _parent: Option<Arc<SharedComm>>,
    /// A running abort of the library's communicator.
    teardown: Mutex<Option<Teardown>>,
}

impl SharedComm {
    /// An empty value, for a communicator without a parent.
    pub(crate) fn new(library: &'static Library, runtime: Arc<Runtime>) -> Arc<Self> {
        Self::of(library, runtime, None)
    }

    /// An empty value, for a communicator that is split off this one. It gets this one's aborts.
    pub(crate) fn child(self: &Arc<Self>) -> Arc<Self> {
        let child = Self::of(self.library, self.runtime.clone(), Some(self.clone()));
        self.children.listen(&(child.clone() as Arc<dyn Abort>));
        child
    }

    fn of(library: &'static Library, runtime: Arc<Runtime>, parent: Option<Arc<Self>>) -> Arc<Self> {
        let (comm, comm_ptr) = (Mutex::new(OwnedComm::new(ptr::null_mut())), ManuallyDrop::new(Arc::default()));
        let (is_creation_over, is_taken) = (AtomicBool::new(true), AtomicBool::new(false));
        let is_aborted = AtomicBool::new(false);
        let (cause, blocking, children) = (OnceLock::new(), OnceLock::new(), AbortRegistry::default());
        let (teardown, graphs) = (Mutex::default(), Arc::default());
        Arc::new(Self {
            library,
            runtime,
            comm,
            comm_ptr,
            is_creation_over,
            is_taken,
            is_aborted,
            cause,
            blocking,
            graphs,
            children,
            _parent: parent,
            teardown,
        })
    }

    /// Starts the creation of the communicator by `make`. Call [`SharedComm::finish_creation`] once the library has
    /// settled it.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub(crate) fn create(&self, make: impl FnOnce(&Table, *mut Comm) -> Code) -> Result<Code> {
        let mut comm = self.lock();
        self.check()?;
        self.is_creation_over.store(false, Ordering::Relaxed);
        let code = self.call_unless_aborted(|| make(&self.library.table, self.comm_ptr.as_ptr()));
        comm.0 = self.comm_ptr.load(Ordering::Acquire);
        drop(comm);
        self.after_call(code)
    }

    /// Takes over the communicator after the library has finished its creation. Returns whether there is one.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub(crate) fn finish_creation(&self) -> Result<bool> {
        let mut comm = self.lock();
        let found = self.comm_ptr.load(Ordering::Acquire);
        self.is_creation_over.store(true, Ordering::Relaxed);
        if comm.0.is_null() && !self.is_taken.load(Ordering::Relaxed) {
            comm.0 = found;
        }
        let is_there = !comm.0.is_null();
        drop(comm);
        self.finish_pending_abort().map(|()| is_there)
    }

    /// Registers this rank among the ranks of the communicator `name` in this process, unless the communicator was
    /// taken out.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub(crate) fn register_sibling(&self, name: &str) -> Result<()> {
        let mut comm = self.lock();
        if !comm.0.is_null() {
            comm.join(Sibling::new(name, &self.runtime));
        }
        drop(comm);
        self.finish_pending_abort()
    }

    /// Sets a communicator that another thread has created.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub(crate) fn set(&self, comm: OwnedComm) -> Result<()> {
        *self.lock() = comm;
        self.finish_pending_abort()
    }

    /// Marks the communicator as blocking, before or after its creation. `watchdog` interrupts calls that exceed
    /// `deadline`.
    pub(crate) fn set_blocking(&self, watchdog: Arc<Watchdog>, deadline: Duration) {
        let comm_ptr = Arc::clone(&self.comm_ptr);
        self.blocking.get_or_init(|| Blocking::new(self.library, &self.runtime, watchdog, comm_ptr, deadline));
    }

    /// Marks a communicator that was split off as blocking, if its parent is blocking.
    pub(crate) fn inherit_blocking(&self, parent: &Self) {
        if let Some(blocking) = parent.blocking() {
            self.blocking.get_or_init(|| blocking.child(Arc::clone(&self.comm_ptr)));
        }
    }

    /// Interrupts the calls of a blocking communicator; None for a non-blocking one.
    pub(crate) fn blocking(&self) -> Option<&Arc<Blocking>> {
        self.blocking.get()
    }

    /// Calls the library with the communicator.
    ///
    /// # Errors
    /// [`Error::Aborted`]; [`Error::Deadline`]: the call on a blocking communicator has exceeded the deadline.
    #[inline]
    pub(crate) fn call<T>(&self, call: impl FnOnce(&Table, Comm) -> T) -> Result<T> {
        let comm = self.lock();
        if comm.0.is_null() {
            return Err(self.aborted());
        }
        let result = self.call_unless_aborted(|| call(&self.library.table, comm.0));
        drop(comm);
        self.after_call(result)
    }

    /// Makes a call of the library. None after an abort of a blocking communicator, and after a call that exceeded the
    /// deadline.
    #[inline]
    fn call_unless_aborted<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        match self.blocking.get() {
            None => Some(call()),
            Some(blocking) => blocking.call(|| self.is_aborted.load(Ordering::SeqCst), call),
        }
    }

    /// Checks for aborts and deadlines after a call, once `comm` is unlocked.
    #[inline]
    fn after_call<T>(&self, result: Option<T>) -> Result<T> {
        self.finish_pending_abort()?;
        let Some(blocking) = self.blocking.get() else { return result.ok_or_else(|| self.aborted()) };
        blocking.check().inspect_err(|_| drop(self.start_abort(self.lock(), &mut Vec::new())))?;
        result.ok_or_else(|| self.aborted())
    }

    /// Whether the library has completed its calls (`ncclCommGetAsyncError`).
    ///
    /// # Errors
    /// [`Error::Aborted`]; errors of the library.
    pub(crate) fn is_settled(&self) -> Result<bool> {
        let mut state = Code::SUCCESS;
        // SAFETY: `call` keeps the communicator alive, and `state` is a valid output.
        let code = self.call(|table, comm| unsafe { (table.comm_get_async_error)(comm, &mut state) })?;
        self.library.check("ncclCommGetAsyncError", code)?;
        match state {
            Code::IN_PROGRESS => Ok(false),
            state => self.library.check("ncclCommGetAsyncError", state).map(|()| true),
        }
    }

    /// This rank in the communicator, and the number of its ranks.
    ///
    /// # Errors
    /// [`Error::Aborted`]; errors of the library.
    pub(crate) fn rank_and_size(&self) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: `call` keeps the communicator alive, and `rank` is a valid output.
        let code = self.call(|table, comm| unsafe { (table.comm_user_rank)(comm, &mut rank) })?;
        self.library.check("ncclCommUserRank", code)?;
        // SAFETY: `call` keeps the communicator alive, and `size` is a valid output.
        let code = self.call(|table, comm| unsafe { (table.comm_count)(comm, &mut size) })?;
        self.library.check("ncclCommCount", code)?;
        Ok((rank as usize, size as usize))
    }

    /// Registers a whole storage. None if the library has no registrations.
    ///
    /// # Errors
    /// [`Error::Aborted`]; errors of the library.
    pub(crate) fn register(&self, storage: &Arc<Storage>) -> Result<Option<Registration>> {
        let Some(register) = self.library.table.comm_register else { return Ok(None) };
        let (mut token, bytes) = (ptr::null_mut(), storage.byte_len());
        // SAFETY: `call` keeps the communicator alive. The storage has `bytes` bytes, and `token` is a valid output.
        let code = self.call(|_, comm| unsafe { register(comm, storage.pointer().cast(), bytes, &mut token) })?;
        self.library.check("ncclCommRegister", code)?;
        Ok(Some(Registration::new(storage.clone(), token)))
    }

    /// Takes the communicator out: later calls fail. None if it was taken out before.
    pub(crate) fn take(&self) -> Option<OwnedComm> {
        self.take_from(&mut self.lock())
    }

    fn take_from(&self, comm: &mut OwnedComm) -> Option<OwnedComm> {
        let comm = std::mem::replace(comm, OwnedComm::new(ptr::null_mut()));
        let is_there = !comm.0.is_null();
        if is_there {
            let cause = self.cause.get().cloned().unwrap_or_else(|| DROPPED.into());
            drop(self.runtime.destroy_graphs(&self.graphs, &cause));
        }
        self.is_taken.fetch_or(is_there, Ordering::Relaxed);
        is_there.then_some(comm)
    }

    /// Aborts the communicator, and waits up to 5 s for `ncclCommAbort` to return, also if another thread has started
    /// the abort. Returns whether it has returned. Kernels of other ranks may still write to tensors after that: `kept`
    /// is released when these kernels have ended, and the memory of dropped tensors is not reused before.
    pub(crate) fn abort_and_wait(&self, mut kept: Vec<Registration>) -> bool {
        let teardown = self.start_abort(self.lock(), &mut kept).take();
        teardown.is_none_or(Teardown::wait)
    }

    /// The graphs of this communicator's captured operations.
    pub(crate) fn graphs(&self) -> &Arc<Graphs> {
        &self.graphs
    }

    /// Forwards aborts to `aborter`, also one that has already happened.
    pub(crate) fn forward_aborts_to(&self, aborter: &Arc<dyn Abort>) {
        self.children.listen(aborter);
    }

    /// Checks for an abort.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_aborted.load(Ordering::Relaxed) { Err(self.aborted()) } else { Ok(()) }
    }

    /// Checks for an abort after `comm` was unlocked. An aborter that found the lock taken has left the teardown to
    /// this rank.
    fn finish_pending_abort(&self) -> Result<()> {
        fence(Ordering::SeqCst);
        self.check().inspect_err(|_| {
            drop(self.start_abort(self.lock(), &mut Vec::new()));
        })
    }

    /// The cause of the abort, if there was one.
    pub(crate) fn cause(&self) -> Option<AbortCause> {
        self.check().err().and_then(|_| self.cause.get().cloned())
    }

    fn aborted(&self) -> Error {
        Error::Aborted { cause: self.cause.get().cloned().unwrap_or_else(|| "the communicator was given up".into()) }
    }

    /// Starts the abort of the communicator, unless it was taken out before. Does not wait. The teardown releases
    /// `kept`.
    ///
    /// The teardown is stored before `comm` is unlocked (lock order: `comm`, `teardown`); no thread waits while it
    /// holds that lock.
    fn start_abort(
        &self,
        mut guard: MutexGuard<'_, OwnedComm>,
        kept: &mut Vec<Registration>,
    ) -> MutexGuard<'_, Option<Teardown>> {
        let mut teardown = sync::lock(&self.teardown);
        // Taken before `take_from` destroys graphs, which give memory back.
        let hold = self.runtime.hold();
        let comm = self.take_from(&mut guard);
        drop(guard);
        let aborted = comm.map(|comm| AbortedComm::new(comm, std::mem::take(kept), hold));
        let begun = match self.blocking.get() {
            Some(blocking) => blocking.hand_over(aborted),
            None => Err(aborted),
        };
        match begun {
            Ok(Some(begun)) => *teardown = Some(begun),
            Err(Some(aborted)) => *teardown = Some(Teardown::abort(self.library, &self.runtime, aborted)),
            Ok(None) | Err(None) => {}
        }
        teardown
    }

    fn lock(&self) -> MutexGuard<'_, OwnedComm> {
        sync::lock(&self.comm)
    }
}

impl Drop for SharedComm {
    fn drop(&mut self) {
        drop(self.start_abort(self.lock(), &mut Vec::new()));
        if *self.is_creation_over.get_mut() {
            // SAFETY: the library no longer writes the output, and `self`, its last user, is being dropped.
            unsafe { ManuallyDrop::drop(&mut self.comm_ptr) };
        }
    }
}

impl Abort for SharedComm {
    fn abort(&self, cause: &AbortCause) {
        self.cause.get_or_init(|| cause.clone());
        self.graphs.forbid(cause);
        self.is_aborted.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        match self.comm.try_lock() {
            Ok(comm) => drop(self.start_abort(comm, &mut Vec::new())),
            Err(TryLockError::Poisoned(poisoned)) => drop(self.start_abort(poisoned.into_inner(), &mut Vec::new())),
            Err(TryLockError::WouldBlock) => {
                if let Some(blocking) = self.blocking.get() {
                    blocking.interrupt();
                }
            }
        }
        self.children.abort(0, cause);
    }
}
