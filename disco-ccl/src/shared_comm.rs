//! A library's communicator as several threads have it: the rank that uses it, and whoever aborts it.
//!
//! Whoever calls the library holds the lock, for this one call. Whoever ends the communicator takes it
//! out under the lock and calls the library afterwards: from then on nobody else has it. An abort that finds the lock taken leaves
//! the teardown to the rank inside, which looks for aborts when it has let go: each side stores, fences and looks, so that one of
//! them sees the other. The abort also [interrupts](Blocking::interrupt) the call, if the
//! communicator is a blocking one.

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
use disco_core::{Abort, Error, Result};

use crate::abi::{Code, Comm};
use crate::blocking::{Blocking, Watchdog};
use crate::library::Library;
use crate::owned::OwnedComm;
use crate::registration::Registration;
use crate::runtime::{Graphs, Runtime, Teardown};
use crate::siblings::Sibling;
use crate::table::Table;
use crate::teardown::Aborted;

/// The cause that graphs of a dropped communicator report.
pub(crate) const DROPPED: &str = "the communicator was dropped";

/// One rank's communicator.
#[derive(Debug)]
pub(crate) struct SharedComm {
    library: &'static Library,
    runtime: Arc<Runtime>,
    comm: Mutex<OwnedComm>,
    /// Where the library writes a communicator that it makes: at once, or later, from a thread of its own. Given back when it
    /// is known to be done with that.
    comm_ptr: ManuallyDrop<Arc<AtomicPtr<c_void>>>,
    is_creation_over: AtomicBool,
    is_taken: AtomicBool,
    is_aborted: AtomicBool,
    cause: OnceLock<Arc<str>>,
    /// How its calls are ended where they wait; none where they don't.
    blocking: OnceLock<Arc<Blocking>>,
    /// The graphs of its captured operations, which end first.
    graphs: Arc<Graphs>,
    /// Those split off, which hear its abort, and keep it for that.
    children: AbortRegistry,
    _parent: Option<Arc<SharedComm>>,
    /// An abort of the library's that somebody has started.
    teardown: Mutex<Option<Teardown>>,
}

impl SharedComm {
    /// What will hold a communicator of its own.
    pub(crate) fn new(library: &'static Library, runtime: Arc<Runtime>) -> Arc<Self> {
        Self::of(library, runtime, None)
    }

    /// What will hold one that is split off this one, and hears of its aborts.
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

    /// Has the library make the communicator, where there is none; [`SharedComm::finish_creation`] follows when that is settled.
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

    /// The library is done with making. Whether there is a communicator.
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

    /// It is one of a communicator's ranks in this process from now on, if it was not taken out.
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

    /// The communicator, where it was made elsewhere.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub(crate) fn set(&self, comm: OwnedComm) -> Result<()> {
        *self.lock() = comm;
        self.finish_pending_abort()
    }

    /// The communicator, which is there or will be, is a blocking one, as that of `parent`, or as the watchdog and the deadline say.
    pub(crate) fn set_blocking(&self, watchdog: Arc<Watchdog>, deadline: Duration) {
        let comm_ptr = Arc::clone(&self.comm_ptr);
        self.blocking.get_or_init(|| Blocking::new(self.library, &self.runtime, watchdog, comm_ptr, deadline));
    }

    /// The communicator that was split off is a blocking one, if that of the parent is.
    pub(crate) fn inherit_blocking(&self, parent: &Self) {
        if let Some(blocking) = parent.blocking() {
            self.blocking.get_or_init(|| blocking.child(Arc::clone(&self.comm_ptr)));
        }
    }

    /// How its calls are ended, where they wait.
    pub(crate) fn blocking(&self) -> Option<&Arc<Blocking>> {
        self.blocking.get()
    }

    /// Calls the library with the communicator.
    ///
    /// # Errors
    /// [`Error::Aborted`]; [`Error::Deadline`] where a call of a blocking communicator has taken too long.
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

    /// Makes a call of the library, unless calls are off.
    #[inline]
    fn call_unless_aborted<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        match self.blocking.get() {
            None => Some(call()),
            Some(blocking) => blocking.call(|| self.is_aborted.load(Ordering::SeqCst), call),
        }
    }

    /// What came of a call, when the lock was let go.
    #[inline]
    fn after_call<T>(&self, result: Option<T>) -> Result<T> {
        self.finish_pending_abort()?;
        let Some(blocking) = self.blocking.get() else { return result.ok_or_else(|| self.aborted()) };
        blocking.check().inspect_err(|_| drop(self.end(self.lock(), &mut Vec::new())))?;
        result.ok_or_else(|| self.aborted())
    }

    /// How far the library is with what does not wait: done, not yet, or why not.
    ///
    /// # Errors
    /// [`Error::Aborted`], the library's.
    pub(crate) fn is_settled(&self) -> Result<bool> {
        let mut state = Code::SUCCESS;
        // SAFETY: the communicator is there, and so is the place.
        let code = self.call(|table, comm| unsafe { (table.comm_get_async_error)(comm, &mut state) })?;
        self.library.check("ncclCommGetAsyncError", code)?;
        match state {
            Code::IN_PROGRESS => Ok(false),
            state => self.library.check("ncclCommGetAsyncError", state).map(|()| true),
        }
    }

    /// Where this rank is in the communicator, and how many ranks it has.
    ///
    /// # Errors
    /// [`Error::Aborted`], the library's.
    pub(crate) fn rank_and_size(&self) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is there, and so is the place.
        let code = self.call(|table, comm| unsafe { (table.comm_user_rank)(comm, &mut rank) })?;
        self.library.check("ncclCommUserRank", code)?;
        // SAFETY: as above.
        let code = self.call(|table, comm| unsafe { (table.comm_count)(comm, &mut size) })?;
        self.library.check("ncclCommCount", code)?;
        Ok((rank as usize, size as usize))
    }

    /// Registers all of a storage. None where the library has no use for it.
    ///
    /// # Errors
    /// [`Error::Aborted`], the library's.
    pub(crate) fn register(&self, storage: &Arc<Storage>) -> Result<Option<Registration>> {
        let Some(register) = self.library.table.comm_register else { return Ok(None) };
        let (mut token, bytes) = (ptr::null_mut(), storage.byte_len());
        // SAFETY: the communicator is there, and so are the bytes and the place.
        let code = self.call(|_, comm| unsafe { register(comm, storage.pointer().cast(), bytes, &mut token) })?;
        self.library.check("ncclCommRegister", code)?;
        Ok(Some(Registration::new(storage.clone(), token)))
    }

    /// Takes it out; nobody calls the library with it any more. None if somebody has.
    pub(crate) fn take(&self) -> Option<OwnedComm> {
        self.take_from(&mut self.lock())
    }

    fn take_from(&self, comm: &mut OwnedComm) -> Option<OwnedComm> {
        let comm = std::mem::replace(comm, OwnedComm::new(ptr::null_mut()));
        let is_there = !comm.0.is_null();
        if is_there {
            let cause = self.cause.get().cloned().unwrap_or_else(|| DROPPED.into());
            drop(self.graphs.end(&self.runtime, &cause));
        }
        self.is_taken.fetch_or(is_there, Ordering::Relaxed);
        is_there.then_some(comm)
    }

    /// Ends what is under way and the communicator, and waits up to 5 s for `ncclCommAbort` to return, also where somebody else has
    /// started that. Whether it has. Kernels of other ranks may still write to tensors then: `kept` is released when they have ended,
    /// and memory that tensors give back is not given out again before.
    pub(crate) fn end_and_wait(&self, mut kept: Vec<Registration>) -> bool {
        let teardown = self.end(self.lock(), &mut kept).take();
        teardown.is_none_or(Teardown::wait)
    }

    /// The graphs of its captured operations.
    pub(crate) fn graphs(&self) -> &Arc<Graphs> {
        &self.graphs
    }

    /// Tells of aborts, to come or made.
    pub(crate) fn forward_aborts_to(&self, aborter: &Arc<dyn Abort>) {
        self.children.listen(aborter);
    }

    /// # Errors
    /// [`Error::Aborted`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_aborted.load(Ordering::Relaxed) { Err(self.aborted()) } else { Ok(()) }
    }

    /// An abort that found this rank inside has left the teardown to it.
    fn finish_pending_abort(&self) -> Result<()> {
        fence(Ordering::SeqCst);
        self.check().inspect_err(|_| {
            drop(self.end(self.lock(), &mut Vec::new()));
        })
    }

    /// Why it is aborted, if it is.
    pub(crate) fn cause(&self) -> Option<Arc<str>> {
        self.check().err().and_then(|_| self.cause.get().cloned())
    }

    fn aborted(&self) -> Error {
        Error::Aborted { cause: self.cause.get().cloned().unwrap_or_else(|| "the communicator was given up".into()) }
    }

    /// Ends what the communicator has under way, and itself, without waiting for that, if it is there. `kept` goes along.
    ///
    /// The teardown is stored before `comm` is unlocked (lock order: `comm`, `teardown`); no thread waits while it holds that lock.
    fn end(
        &self,
        mut guard: MutexGuard<'_, OwnedComm>,
        kept: &mut Vec<Registration>,
    ) -> MutexGuard<'_, Option<Teardown>> {
        let mut teardown = sync::lock(&self.teardown);
        // Before graphs give memory back.
        let hold = self.runtime.hold();
        let comm = self.take_from(&mut guard);
        drop(guard);
        let aborted = comm.map(|comm| Aborted::new(comm, std::mem::take(kept), hold));
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
        drop(self.end(self.lock(), &mut Vec::new()));
        if *self.is_creation_over.get_mut() {
            // SAFETY: the library writes there no more, and nobody looks.
            unsafe { ManuallyDrop::drop(&mut self.comm_ptr) };
        }
    }
}

impl Abort for SharedComm {
    fn abort(&self, cause: &Arc<str>) {
        self.cause.get_or_init(|| cause.clone());
        self.graphs.forbid(cause);
        self.is_aborted.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        match self.comm.try_lock() {
            Ok(comm) => drop(self.end(comm, &mut Vec::new())),
            Err(TryLockError::Poisoned(poisoned)) => drop(self.end(poisoned.into_inner(), &mut Vec::new())),
            Err(TryLockError::WouldBlock) => {
                if let Some(blocking) = self.blocking.get() {
                    blocking.interrupt();
                }
            }
        }
        self.children.abort(0, cause);
    }
}
