//! The communicator that a worker holds. Its operations run on the worker's thread, or beside it.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use disco_core::op::{self, Claims};
use disco_core::work::Background;
use disco_core::{Abort, Capabilities, Error, Op, Rank, Result, Work};

use crate::NAME;
use crate::abi::Abi;
use crate::communicator::Communicator;
use crate::flag::AbortFlag;
use crate::library::Threads;

/// One rank, with the thread that runs its started operations.
pub(crate) struct Member<A: Abi> {
    rank: Rank,
    size: usize,
    flag: Arc<AbortFlag>,
    /// Whether operations may run beside the worker: MPI accepts calls of several threads at the same time.
    has_threads: bool,
    comm: Background<Movable<A>>,
}

/// A communicator that one thread uses at a time.
struct Movable<A: Abi>(Communicator<A>);

// SAFETY: the handles are valid on all threads of the process, and `Background` gives the communicator to one thread at
// a time. It moves to another thread only if `Member::has_threads`.
unsafe impl<A: Abi> Send for Movable<A> {}

impl<A: Abi> Member<A> {
    pub(crate) fn new(comm: Communicator<A>) -> Result<Self> {
        let constants = &comm.mpi.constants;
        let threads = comm.mpi.about.threads(constants.thread_serialized, constants.thread_multiple)?;
        let (rank, size, flag) = (comm.rank(), comm.ranks(), comm.flag().clone());
        let has_threads = matches!(threads, Threads::Multiple);
        Ok(Self { rank, size, flag, has_threads, comm: Background::new(Movable(comm)) })
    }

    fn check(&self, ops: &[Op]) -> Result<()> {
        op::check_ops(ops, self.rank, self.size)?;
        op::check_host(ops, NAME)
    }
}

impl<A: Abi> disco_core::Communicator for Member<A> {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        self.check(ops)?;
        self.comm.state()?.0.enqueue(ops)
    }

    /// Runs the operations on a thread of their own, which polls MPI: few libraries make progress by themselves. Without
    /// `MPI_THREAD_MULTIPLE`, and with a reduction of the program, the operations are complete when this returns.
    fn start(&mut self, ops: &[Op]) -> Result<Work> {
        if !self.has_threads || ops.is_empty() || op::has_custom(ops) {
            return self.enqueue(ops).map(|()| Work::done());
        }
        self.check(ops)?;
        let mut claims = Claims::default();
        claims.claim(ops)?;
        let (ops, claimed) = (ops.to_vec(), Cell::new(claims.keep()));
        self.comm.start(move |Movable(comm)| comm.run_in_background(&ops, || claimed.take()))
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn disco_core::Communicator>>> {
        let child = self.comm.state()?.0.split(color, key);
        match color {
            Some(color) if c_int::try_from(color).is_err() => {
                child.and(Err(Error::invalid("split: the color exceeds 2^31 - 1, the largest color of MPI")))
            }
            _ => child?.map(|child| Ok(Box::new(Self::new(child)?) as _)).transpose(),
        }
    }

    fn synchronize(&mut self) -> Result<()> {
        self.comm.state()?.0.check("synchronize")
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.flag.clone()
    }
}

impl<A: Abi> fmt::Debug for Member<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<mpi {} of {}>", self.rank, self.size)
    }
}
