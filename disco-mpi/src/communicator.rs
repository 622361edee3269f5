//! One rank of an MPI communicator: waits and failures.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::activity::{DataPath, take_path};
use disco_core::env::Variable;
use disco_core::op::{self, Claims, Steps};
use disco_core::tensor::Access;
use disco_core::{AbortCause, Attendance, Error, Op, Rank, Result};

use crate::abi::Abi;
use crate::flag::{self, AbortFlag};
use crate::launcher;
use crate::library::Installed;
use crate::numbers::FaultyReductions;

/// `1`: operations are blocking calls of MPI, without deadline and abort.
const BLOCKING: &str = "DISCO_MPI_BLOCKING";
/// A rank checks the abort flag and the clock, and yields, whenever the number of its polls has none of these bits:
/// after every 512 polls.
const CHECK_MASK: u32 = 511;

/// Tag of the messages of `Op::Send`.
pub(crate) const USER_TAG: c_int = 0;
/// Tag of the messages of which collectives consist.
pub(crate) const COLLECTIVE_TAG: c_int = 1;

/// One rank.
pub(crate) struct Communicator<A: Abi> {
    pub(crate) mpi: &'static Installed<A>,
    pub(crate) comm: A::Handle,
    rank: Rank,
    size: usize,
    pub(crate) deadline: Duration,
    pub(crate) flag: Arc<AbortFlag>,
    /// None for a communicator without a session.
    pub(crate) attendance: Option<Attendance>,
    /// Groups of operations so far.
    calls: u64,
    /// The start of the wait for the current operation; set when the clock is first read.
    wait_start: Cell<Option<Instant>>,
    /// The cause of the failure that broke the communicator.
    broken: Option<AbortCause>,
    /// Memory that the current operation uses in addition to its tensors.
    pub(crate) scratch: Vec<Box<[u64]>>,
    check_mask: u32,
    /// Whether the current operations run beside the worker, which needs the processor more.
    is_beside: bool,
    pub(crate) is_blocking: bool,
    pub(crate) faulty: FaultyReductions,
}

/// Calls a function of MPI in its blocking or its non-blocking form. Both take the same arguments and then the
/// communicator.
macro_rules! call {
    ($self:ident, $op:expr, $names:expr, $blocking:ident, $polled:ident, ($($arg:expr),*)) => {
        $self.run($names, $op, $self.mpi.status_ignore(), |mpi, comm, request| match request {
            // SAFETY: the memory is in claimed tensors or in this rank's scratch memory. So it is valid, and written
            // memory has no other reader or writer, until the operation ends.
            None => unsafe { (mpi.table.$blocking)($($arg,)* comm) },
            // SAFETY: as for the blocking call; the operation ends when the request is done.
            Some(request) => unsafe { (mpi.table.$polled)($($arg,)* comm, request) },
        })
    };
}
pub(crate) use call;

impl<A: Abi> Communicator<A> {
    /// A communicator that owns `comm`.
    pub(crate) fn new(
        mpi: &'static Installed<A>,
        comm: A::Handle,
        deadline: Duration,
        flag: Arc<AbortFlag>,
        attendance: Option<Attendance>,
    ) -> Result<Self> {
        mpi.return_errors(comm)?;
        let (rank, size) = mpi.rank_and_size(comm)?;
        flag::register(&flag);
        // A launcher may have started ranks on other machines too.
        let here = if launcher::is_launched() { size.min(launcher::ranks_here()) } else { size };
        let check_mask = if here <= launcher::processors() { CHECK_MASK } else { 0 };
        let rank = Rank::new(rank as u32);
        let is_blocking = Variable::read(BLOCKING).flag()?.unwrap_or(false);
        let (faulty, calls, wait_start, broken, scratch) =
            (FaultyReductions::default(), 0, Cell::default(), None, Vec::new());
        Ok(Self {
            mpi,
            comm,
            rank,
            size,
            deadline,
            flag,
            attendance,
            calls,
            wait_start,
            broken,
            scratch,
            check_mask,
            is_beside: false,
            is_blocking,
            faulty,
        })
    }

    /// Exchanges the faulty reductions of all ranks, which may differ between processors, so that all ranks avoid the
    /// same.
    pub(crate) fn exchange_faulty_reductions(mut self) -> Result<Self> {
        let mine = self.mpi.faulty_reductions()?.to_bytes();
        match self.gathered(&mine) {
            Ok(all) => self.faulty = FaultyReductions::any(&all),
            Err(error) => {
                self.break_off(&error);
                return Err(error);
            }
        }
        Ok(self)
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn me(&self) -> usize {
        self.rank.index()
    }

    pub(crate) fn flag(&self) -> &Arc<AbortFlag> {
        &self.flag
    }

    pub(crate) fn ranks(&self) -> usize {
        self.size
    }

    /// Scratch memory of at least `bytes` bytes. It lasts until the operation ends, and is leaked if the end is
    /// unknown.
    pub(crate) fn allocate(&mut self, bytes: usize) -> *mut u8 {
        let mut words = vec![0; bytes.div_ceil(size_of::<u64>())].into_boxed_slice();
        let start = words.as_mut_ptr().cast();
        self.scratch.push(words);
        start
    }

    /// Runs one call of MPI, which writes its status to `status`. The call gets a request, for which this function
    /// waits; or none if calls are [blocking](BLOCKING).
    pub(crate) fn run(
        &self,
        [blocking, polled]: [&'static str; 2],
        op: &Op,
        status: *mut c_void,
        call: impl FnOnce(&Installed<A>, A::Handle, Option<&mut A::Handle>) -> c_int,
    ) -> Result<()> {
        if self.is_blocking {
            return self.mpi.about.check(blocking, call(self.mpi, self.comm, None));
        }
        let mut request = self.mpi.constants.request_null;
        self.mpi.about.check(polled, call(self.mpi, self.comm, Some(&mut request)))?;
        let test = self.mpi.table.test;
        self.wait(Some(op), "MPI_Test", |done| {
            // SAFETY: the request was started, and its memory is valid until it is done.
            unsafe { test(&mut request, done, status) }
        })
    }

    /// Waits for all `requests`. `status` points to a status for each.
    pub(crate) fn complete(&self, op: &Op, requests: &mut [A::Handle], status: *mut c_void) -> Result<()> {
        let count = c_int::try_from(requests.len()).map_err(|_| Error::invalid("mpi: too many requests"))?;
        let requests = requests.as_mut_ptr();
        if self.is_blocking {
            // SAFETY: the requests were started, and their memory is valid until they are done.
            return self.mpi.about.check("MPI_Waitall", unsafe { (self.mpi.table.waitall)(count, requests, status) });
        }
        let test = self.mpi.table.testall;
        self.wait(Some(op), "MPI_Testall", |done| {
            // SAFETY: the requests were started, and their memory is valid until they are done.
            unsafe { test(count, requests, done, status) }
        })
    }

    /// Polls until `test` sets its argument. `test` calls a function of MPI, which makes progress meanwhile. The wait is that
    /// of `op`, or of a split.
    #[inline]
    pub(crate) fn wait(
        &self,
        op: Option<&Op>,
        function: &'static str,
        mut test: impl FnMut(&mut c_int) -> c_int,
    ) -> Result<()> {
        let (mut polls, mut done) = (0u32, 0);
        let check_mask = if self.is_beside { 0 } else { self.check_mask };
        loop {
            self.mpi.about.check(function, test(&mut done))?;
            if done != 0 {
                return Ok(());
            }
            polls = polls.wrapping_add(1);
            if polls & check_mask == 0 {
                thread::yield_now();
                self.check_wait(op)?;
            }
        }
    }

    /// Returns an error if the wait must end: after an abort, or past the deadline.
    #[cold]
    fn check_wait(&self, op: Option<&Op>) -> Result<()> {
        if let Some(cause) = self.flag.cause() {
            return Err(Error::Aborted { cause });
        }
        let wait_start = self.wait_start.get().unwrap_or_else(Instant::now);
        self.wait_start.set(Some(wait_start));
        let operation = || op.map_or_else(|| "split".to_owned(), |op| op.signature(self.size));
        let waited = wait_start.elapsed();
        match &self.attendance {
            Some(attendance) => attendance.check_wait(self.calls, waited, self.deadline, operation),
            None if waited <= self.deadline => Ok(()),
            None => {
                let state = "other ranks have not arrived, or call another operation".to_owned();
                Err(Error::Deadline { operation: operation(), after: self.deadline, state })
            }
        }
    }

    /// Refuses an operation of a communicator that is broken.
    pub(crate) fn check_unbroken(&self, op: &Op) -> Result<()> {
        self.cause().map_or(Ok(()), |cause| Err(Error::Broken { operation: op.signature(self.size), cause }))
    }

    /// [`Communicator::check_unbroken`] for a method that is no operation.
    pub(crate) fn check(&self, method: &str) -> Result<()> {
        self.cause().map_or(Ok(()), |cause| Err(Error::Broken { operation: method.to_owned(), cause }))
    }

    fn cause(&self) -> Option<AbortCause> {
        self.broken.clone().or_else(|| self.flag.cause())
    }

    /// Breaks the communicator, unless it is broken already. Leaks the scratch memory, because MPI may still access it.
    fn break_off(&mut self, error: &Error) {
        self.broken.get_or_insert_with(|| AbortCause::of(error));
        flag::mark_unfinished();
        std::mem::forget(std::mem::take(&mut self.scratch));
    }

    /// Runs a group of operations, which are checked.
    pub(crate) fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        if !op::has_custom(ops) {
            return self.run_claimed(ops);
        }
        ops.first().map_or(Ok(()), |first| self.check_unbroken(first))?;
        Claims::check(ops)?;
        let (rank, size) = (self.rank, self.size);
        op::run_in_steps(self, rank, size, ops).inspect_err(|error| self.break_off(error))
    }

    fn run_claimed(&mut self, ops: &[Op]) -> Result<()> {
        ops.first().map_or(Ok(()), |first| self.check_unbroken(first))?;
        let mut claims = Claims::default();
        claims.claim(ops)?;
        self.run_ops(ops, || claims.keep())
    }

    /// Runs a group of operations, which are checked and whose tensors are claimed. After a failure, the claims that
    /// `keep` returns last for ever, because MPI can't cancel operations.
    pub(crate) fn run_ops(&mut self, ops: &[Op], keep: impl FnOnce() -> Vec<Access>) -> Result<()> {
        let Some(first) = ops.first() else { return Ok(()) };
        self.inside(|this| {
            this.check_unbroken(first)?;
            this.run_calls(ops, first).inspect_err(|_| std::mem::forget(keep()))
        })
    }

    /// [`Communicator::run_ops`] while the worker computes, on another thread.
    pub(crate) fn run_in_background(&mut self, ops: &[Op], keep: impl FnOnce() -> Vec<Access>) -> Result<()> {
        self.is_beside = true;
        let result = self.run_ops(ops, keep);
        self.is_beside = false;
        result
    }

    fn run_calls(&mut self, ops: &[Op], first: &Op) -> Result<()> {
        take_path(DataPath::Mpi);
        self.begin_call();
        let result = if first.kind().is_point_to_point() {
            self.transfer(ops)
        } else {
            ops.iter().try_for_each(|op| self.collective(op))
        };
        match &result {
            Ok(()) => self.scratch.clear(),
            Err(error) => self.break_off(error),
        }
        result
    }

    /// Counts a group of operations, or a split, whose wait has not begun.
    pub(crate) fn begin_call(&mut self) {
        self.calls += 1;
        self.wait_start.set(None);
    }

    /// Runs `calls`, which call MPI.
    fn inside<T>(&mut self, calls: impl FnOnce(&mut Self) -> T) -> T {
        self.flag.enter();
        let result = calls(self);
        self.flag.leave();
        result
    }

    /// The child communicator of the ranks with this color, which is at most the largest `c_int`.
    pub(crate) fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        self.inside(|this| {
            this.check("split")?;
            this.split_off(color, key).inspect_err(|error| this.break_off(error))
        })
    }
}

impl<A: Abi> Steps for Communicator<A> {
    fn run_step(&mut self, op: Op) -> Result<()> {
        self.run_claimed(std::slice::from_ref(&op))
    }
}

impl<A: Abi> Drop for Communicator<A> {
    fn drop(&mut self) {
        self.flag.enter();
        // A communicator with pending requests can't be freed.
        let is_whole = self.broken.is_none() && self.flag.cause().is_none();
        if is_whole && self.mpi.about.is_initialized().unwrap_or_default() {
            // SAFETY: this communicator owns the handle, and has no pending requests.
            let code = unsafe { (self.mpi.table.comm_free)(&mut self.comm) };
            if let Err(error) = self.mpi.about.check("MPI_Comm_free", code) {
                tracing::warn!(%error, "an MPI communicator could not be freed");
            }
        }
        self.flag.leave();
    }
}
