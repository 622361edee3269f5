//! Splits of a communicator.
//!
//! `MPI_Comm_split` can't be polled. So no rank calls it before all ranks have arrived at a barrier, which can. A rank that
//! gives this barrier up, after an abort or past the deadline, owes the call: the others may complete the barrier, and wait
//! for it in `MPI_Comm_split`. A thread polls the barrier on, and makes the call if it completes. Once all ranks meet for a
//! new data plane, no rank waits in a split of the old one, and nothing is owed any more.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::{Abort as _, Attendance, Op, Result, sync};

use crate::abi::{Abi, UNDEFINED};
use crate::communicator::Communicator;
use crate::flag::{self, AbortFlag};
use crate::library::{Installed, Threads};

/// How often the thread polls a barrier that its rank has given up.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long a rank whose MPI takes calls of one thread at a time polls such a barrier itself.
const ONE_THREAD_LIMIT: Duration = Duration::from_secs(1);

/// The flags of the calls that this rank owes.
static OWED: Mutex<Vec<Weak<AbortFlag>>> = Mutex::new(Vec::new());

/// The call of a rank that has given up the barrier before it.
struct Owed<A: Abi> {
    mpi: &'static Installed<A>,
    comm: A::Handle,
    barrier: A::Handle,
    /// Set when nothing is owed any more, or MPI is finalised.
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
            let owed = Owed { mpi, comm: self.comm, barrier, flag: Arc::default() };
            flag::register(&owed.flag);
            sync::lock(&OWED).push(Arc::downgrade(&owed.flag));
            owed.pay_beside();
        })
    }
}

/// Ends the calls that this rank owes: all ranks have met for a new data plane.
pub(crate) fn forgive() {
    let owed = std::mem::take(&mut *sync::lock(&OWED));
    owed.iter().filter_map(Weak::upgrade).for_each(|flag| flag.abort(&"all ranks have left the split".into()));
}

impl<A: Abi> Owed<A> {
    /// [`Self::pay`] on a thread, if MPI takes calls of several.
    fn pay_beside(mut self) {
        let constants = &self.mpi.constants;
        let threads = self.mpi.about.threads(constants.thread_serialized, constants.thread_multiple);
        if !matches!(threads, Ok(Threads::Multiple)) {
            return self.pay(ONE_THREAD_LIMIT);
        }
        let thread = thread::Builder::new().name("disco-mpi-split".into()).spawn(move || self.pay(Duration::MAX));
        if let Err(error) = thread {
            tracing::warn!(%error, "no thread could be started for a split that this rank has given up; other ranks may wait for it");
        }
    }

    /// Polls the barrier for at most `limit`, or until the flag is set, and makes the call once the barrier is complete: as
    /// a rank without a color, which gets no communicator.
    fn pay(&mut self, limit: Duration) {
        let start = Instant::now();
        while start.elapsed() <= limit {
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
            tracing::warn!(%error, "the barrier before a split that this rank has given up");
            return true;
        }
        if done != 0
            && let Err(error) = self.mpi.split(self.comm, UNDEFINED, 0)
        {
            tracing::warn!(%error, "a split that this rank has given up");
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
