//! Splits of a communicator.
//!
//! `MPI_Comm_split` can't be polled. So no rank calls it before all ranks have arrived at a barrier, which can. A rank that
//! gives this barrier up, after an abort or past the deadline, owes the call: the others may complete the barrier, and wait
//! for it in `MPI_Comm_split`. A thread polls the barrier on, and makes the call if it completes. Once all ranks have met for a
//! new data plane, all have left the split: then the barrier completes soon for the threads of all of them, or never.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::{Attendance, Op, Result, sync};

use crate::abi::{Abi, UNDEFINED};
use crate::communicator::Communicator;
use crate::flag::{self, AbortFlag};
use crate::library::{Installed, Threads};

/// How often the thread polls a barrier that its rank has given up.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long such a barrier is polled once it completes soon or never, or if MPI takes calls of one thread at a time.
const LAST_POLLS: Duration = Duration::from_secs(1);

/// For each call that this rank owes, whether all ranks have left the split.
static OWED: Mutex<Vec<Weak<AtomicBool>>> = Mutex::new(Vec::new());

/// The call of a rank that has given up the barrier before it.
struct Owed<A: Abi> {
    mpi: &'static Installed<A>,
    comm: A::Handle,
    barrier: A::Handle,
    /// Whether all ranks have left the split.
    all_have_left: Arc<AtomicBool>,
    /// Set when MPI is finalised.
    flag: Arc<AbortFlag>,
}

// SAFETY: the handles are valid on all threads of the process, and no other thread uses the request of the barrier.
unsafe impl<A: Abi> Send for Owed<A> {}

impl<A: Abi> Communicator<A> {
    /// The child communicator of the ranks with this color. A color above the largest `c_int` counts as none.
    pub(crate) fn split_off(&mut self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        self.begin_call();
        self.attendance.as_mut().map(Attendance::split);
        self.meet_before_split()?;
        let color = color.and_then(|color| c_int::try_from(color).ok()).unwrap_or(UNDEFINED);
        let child = self.mpi.split(self.comm, color, key)?;
        if child == self.mpi.constants.comm_null {
            return Ok(None);
        }
        let (rank, size) = self.mpi.rank_and_size(child)?;
        let flag = AbortFlag::child(&self.flag);
        let attendance = self.attendance.as_ref().map(|attendance| attendance.child(color.cast_unsigned(), rank, size));
        let mut child = Self::new(self.mpi, child, self.deadline, Arc::new(flag), attendance)?;
        child.faulty = self.faulty;
        Ok(Some(child))
    }

    /// Waits until all ranks have arrived at the split.
    fn meet_before_split(&self) -> Result<()> {
        if self.is_blocking {
            return self.barrier(&Op::Barrier);
        }
        let (mpi, mut barrier) = (self.mpi, self.mpi.constants.request_null);
        // SAFETY: the communicator is valid.
        mpi.about.check("MPI_Ibarrier", unsafe { (mpi.table.ibarrier)(self.comm, &mut barrier) })?;
        let met = self.wait(None, "MPI_Test", |done| mpi.test(&mut barrier, done));
        met.inspect_err(|_| {
            let owed = Owed { mpi, comm: self.comm, barrier, all_have_left: Arc::default(), flag: Arc::default() };
            flag::register(&owed.flag);
            sync::lock(&OWED).push(Arc::downgrade(&owed.all_have_left));
            owed.pay_in_background();
        })
    }
}

/// Notes that all ranks have left the splits of earlier data planes.
pub(crate) fn all_have_left() {
    let owed = std::mem::take(&mut *sync::lock(&OWED));
    owed.iter().filter_map(Weak::upgrade).for_each(|left| left.store(true, Ordering::Relaxed));
}

impl<A: Abi> Owed<A> {
    /// [`Self::pay`] on a thread, if MPI takes calls of several.
    fn pay_in_background(mut self) {
        let constants = &self.mpi.constants;
        let threads = self.mpi.about.threads(constants.thread_serialized, constants.thread_multiple);
        if !matches!(threads, Ok(Threads::Multiple)) {
            self.all_have_left.store(true, Ordering::Relaxed);
            return self.pay();
        }
        let thread = thread::Builder::new().name("disco-mpi-split".into()).spawn(move || self.pay());
        if let Err(error) = thread {
            tracing::warn!(%error, "no thread could be started for a split that this rank has given up; other ranks may wait for it");
        }
    }

    /// Polls the barrier, until the flag is set or for a while after all ranks have left, and makes the call once the barrier
    /// is complete: as a rank without a color, which gets no communicator.
    fn pay(&mut self) {
        let mut last_polls = None;
        while last_polls.is_none_or(|since: Instant| since.elapsed() <= LAST_POLLS) {
            if self.all_have_left.load(Ordering::Relaxed) {
                last_polls.get_or_insert_with(Instant::now);
            }
            self.flag.enter();
            let is_paid = self.flag.cause().is_some() || self.poll();
            self.flag.leave();
            if is_paid {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns whether nothing is owed any more.
    fn poll(&mut self) -> bool {
        let mut done = 0;
        let tested = self.mpi.test(&mut self.barrier, &mut done);
        if let Err(error) = self.mpi.about.check("MPI_Test", tested) {
            tracing::warn!(%error, "MPI_Test failed for the barrier of a split that this rank has given up");
            return true;
        }
        if done != 0
            && let Err(error) = self.mpi.split(self.comm, UNDEFINED, 0)
        {
            tracing::warn!(%error, "MPI_Comm_split failed for a split that this rank has given up");
        }
        done != 0
    }
}

impl<A: Abi> Installed<A> {
    /// Calls `MPI_Comm_split`. All ranks of `comm` make this call.
    fn split(&self, comm: A::Handle, color: c_int, key: c_int) -> Result<A::Handle> {
        let mut child = self.constants.comm_null;
        // SAFETY: the communicator is valid; it is not freed after a rank has given an operation up.
        let code = unsafe { (self.table.comm_split)(comm, color, key, &mut child) };
        self.about.check("MPI_Comm_split", code).map(|()| child)
    }

    /// Calls `MPI_Test` for a request without a status and without memory.
    fn test(&self, request: &mut A::Handle, done: &mut c_int) -> c_int {
        // SAFETY: the request was started, or is null after its end.
        unsafe { (self.table.test)(request, done, self.status_ignore()) }
    }
}
