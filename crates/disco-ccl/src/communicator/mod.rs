//! One rank of a communicator: launches, waits, and failure.

#![allow(unsafe_code)]

mod custom;
mod splits;

use std::any::Any;
use std::fmt;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use disco_core::activity::{DataPath, take_path};
use disco_core::tensor::Storage;
use disco_core::{Abort, AbortCause, Attendance, Capabilities, DType, Error, Op, OpKind, Rank, Result, Tensor, op};

use crate::capture_check::CaptureCheck;
use crate::collective::{self, Calls, Outcome};
use crate::library::Library;
use crate::meeting::Meeting;
use crate::p2p::{P2pFastPath, Rendezvous, Vendor};
use crate::polling;
use crate::premul::{self, Factor};
use crate::queue::{CAPTURE_DOES_NOT_RUN, Queue};
use crate::registration::Registration;
use crate::runtime::{Runtime, Teardown};
use crate::shared_comm::{DROPPED, SharedComm};

/// One rank of a communicator of the library. It launches all operations on the stream of its [`Runtime`].
pub struct Communicator {
    library: &'static Library,
    runtime: Arc<Runtime>,
    shared_comm: Arc<SharedComm>,
    rank: Rank,
    size: usize,
    capabilities: Capabilities,
    deadline: Duration,
    meeting: Meeting,
    attendance: Attendance,
    /// Number of groups launched so far.
    launches: u64,
    /// The last operation launched.
    last: Option<Launched>,
    /// The cause of the failure, once an operation has failed. Later operations are refused.
    broken: Option<AbortCause>,
    /// Device memory for copies of inputs: see [`Calls::scratch`]. It grows with the largest request.
    scratch: Arc<Storage>,
    registrations: Vec<Registration>,
    /// The copies between host and device of a program's reductions, since the first of these.
    host_copies: Option<Queue>,
    /// Operations over peer-to-peer memory, if the backend has them.
    fast_path: Option<P2pFastPath>,
}

/// An operation, as reports name it.
#[derive(Clone, Copy)]
struct Launched {
    kind: OpKind,
    dtype: Option<DType>,
    count: usize,
}

impl Communicator {
    /// For a communicator that the library has created.
    pub(crate) fn new(
        (library, runtime, shared_comm): (&'static Library, Arc<Runtime>, Arc<SharedComm>),
        (rank, size): (usize, usize),
        deadline: Duration,
        meeting: Meeting,
        attendance: Attendance,
    ) -> Result<Self> {
        let scratch = runtime.alloc(1)?;
        shared_comm.register_sibling(meeting.name())?;
        library.ignore_last_text();
        if let Some(blocking) = shared_comm.blocking() {
            blocking.set_announcer(attendance.announcer());
        }
        let (capabilities, rank) = (library.capabilities(runtime.driver().reduces_f8()), Rank::new(rank as u32));
        let (launches, last, broken, registrations, host_copies, fast_path) = (0, None, None, Vec::new(), None, None);
        Ok(Self {
            library,
            runtime,
            shared_comm,
            rank,
            size,
            capabilities,
            deadline,
            meeting,
            attendance,
            launches,
            last,
            broken,
            scratch,
            registrations,
            host_copies,
            fast_path,
        })
    }

    /// Agrees with all other ranks on peer-to-peer memory, and on the operations that use it instead of the library.
    pub(crate) fn find_fast_path(&mut self, vendor: Vendor, deadline: Duration) -> Result<()> {
        let (store, name) = self.meeting.store_and_key("p2p");
        let rendezvous = Rendezvous::new(store, name, (self.rank.index(), self.size), deadline);
        let fast_path = P2pFastPath::meet(vendor, &self.runtime, rendezvous, self.deadline)?;
        if let Some(aborter) = fast_path.aborter() {
            self.shared_comm.forward_aborts_to(&aborter);
        }
        self.fast_path = Some(fast_path);
        Ok(())
    }

    /// The device and the stream.
    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Operations over peer-to-peer memory, if the backend has them.
    pub(crate) fn fast_path(&self) -> Option<&P2pFastPath> {
        self.fast_path.as_ref()
    }

    /// [`Extension::premul_sum`](crate::Extension::premul_sum)
    pub(crate) fn premul_sum(&mut self, op: &Op, factor: f64) -> Result<()> {
        let factor = Factor::new(self.library, op, factor)?;
        self.enqueue_scaled(slice::from_ref(op), Some(factor))
    }

    /// [`Extension::register`](crate::Extension::register)
    pub(crate) fn register(&mut self, tensor: &Tensor) -> Result<()> {
        self.check_unbroken(|| "register".into())?;
        self.runtime.refuse_in_capture("register", "register memory before the capture")?;
        let device = self.runtime.device();
        if tensor.device() != device {
            return Err(Error::invalid(format!("register: {tensor} is not on {device}")));
        }
        let storage = tensor.storage();
        if !self.registrations.iter().any(|registration| registration.is_of(storage)) {
            let registered = self.shared_comm.register(storage);
            let registered = registered.map_err(|error| self.with_absent_ranks(error, || "register".into()));
            let registered = registered.inspect_err(|error| self.mark_broken_if_late(error))?;
            self.registrations.extend(registered);
        }
        Ok(())
    }

    /// Refuses tensors of other devices, and operations that the library lacks, before anything is launched.
    fn check_supported(&self, ops: &[Op]) -> Result<()> {
        let (backend, device) = (self.library.backend(), self.runtime.device());
        for op in ops {
            if let Some(tensor) = [op.src(), op.dst()].into_iter().flatten().find(|tensor| tensor.device() != device) {
                return Err(Error::invalid(format!(
                    "{}: {tensor} is not on {device}, where {backend} works",
                    op.kind()
                )));
            }
            let Some(dtype) = op.dtype() else { continue };
            if !self.capabilities.supports(op.kind(), dtype, op.reduction()) {
                let reduction = op.reduction().map(|reduction| format!(" {reduction}")).unwrap_or_default();
                let operation = format!("{}{reduction}", op.kind());
                return Err(Error::Unsupported { backend, operation, dtype: Some(dtype) });
            }
        }
        Ok(())
    }

    fn check_unbroken(&self, operation: impl FnOnce() -> String) -> Result<()> {
        match self.broken.clone().or_else(|| self.shared_comm.cause()) {
            Some(cause) => Err(Error::Broken { operation: operation(), cause }),
            None => Ok(()),
        }
    }

    /// Checks a group and launches it. A launch that fails aborts the communicator.
    #[inline]
    fn enqueue_scaled(&mut self, ops: &[Op], factor: Option<Factor>) -> Result<()> {
        op::check_ops(ops, self.rank, self.size)?;
        self.check_supported(ops)?;
        if op::has_custom(ops) {
            return self.enqueue_custom(ops);
        }
        let Some(last) = ops.last() else { return Ok(()) };
        self.check_unbroken(|| last.signature(self.size))?;
        self.capture_check().check(ops, factor.is_some())?;
        let checked = self.fast_path.as_ref().map_or(Ok(()), P2pFastPath::check);
        checked.inspect_err(|error| _ = self.mark_broken(error))?;
        self.count_operation();
        self.last = Some(Launched { kind: last.kind(), dtype: last.dtype(), count: last.count(self.size) });
        let measured = self.runtime.begin_launch();
        let launched = self.launch(ops, factor);
        if let Some(measured) = measured {
            self.runtime.end_launch(measured, launched.is_ok());
        }
        launched.inspect_err(|error| _ = self.mark_broken(error))
    }

    fn capture_check(&self) -> CaptureCheck<'_> {
        let (runtime, graphs) = (&*self.runtime, self.shared_comm.graphs());
        CaptureCheck { runtime, graphs, scratch: &self.scratch, fast_path: self.fast_path.as_ref() }
    }

    /// Launches a group in as few groups of the library as possible. Operations in one group of the library have no
    /// order, so only independent operations share one.
    fn launch(&mut self, ops: &[Op], factor: Option<Factor>) -> Result<()> {
        let mut rest = ops;
        while let Some(first) = rest.first() {
            let independent =
                |end: &usize| rest[..*end].iter().all(|earlier| collective::is_independent(earlier, &rest[*end]));
            let end = (1..rest.len()).find(|end| !independent(end)).unwrap_or(rest.len());
            let (unit, later) = rest.split_at(end);
            // All ranks must make this choice alike, so the choice does not depend on `unit`: units depend on the
            // addresses of this rank's tensors.
            if ops.len() > 1 || factor.is_some() || !self.launch_on_fast_path(first)? {
                self.launch_unit(unit, first, factor)?;
            }
            rest = later;
        }
        Ok(())
    }

    /// Launches an operation on the fast path, and returns whether the fast path has it. The result is equal on all
    /// ranks.
    fn launch_on_fast_path(&self, op: &Op) -> Result<bool> {
        let Some(fast_path) = &self.fast_path else { return Ok(false) };
        // User code may have made another device current.
        self.runtime.make_current()?;
        if fast_path.launch(op)? {
            take_path(DataPath::PeerToPeer);
            self.wait_for_barrier(op).map(|()| true)
        } else {
            Ok(false)
        }
    }

    /// Counts an operation. The count is equal on all ranks.
    fn count_operation(&mut self) {
        self.launches += 1;
        if let Some(blocking) = self.shared_comm.blocking() {
            blocking.set_operation(self.operation_number());
        }
    }

    /// The number of this rank's current operation, equal on all ranks. Launches of graphs count, too.
    fn operation_number(&self) -> u64 {
        self.launches + self.shared_comm.graphs().launches()
    }

    fn launch_unit(&mut self, unit: &[Op], first: &Op, factor: Option<Factor>) -> Result<()> {
        take_path(self.library.path());
        self.copy_inputs_to_scratch(unit)?;
        let (me, ranks, stream) = (self.rank.index(), self.size, self.runtime.stream());
        let scratch = self.scratch.pointer();
        let called = self.shared_comm.call(|table, comm| {
            let mut calls = Calls { table, comm, stream, me, ranks, scratch, redop: None, outcome: Outcome::NONE };
            let is_group = unit.len() > 1 || collective::is_composed(table, first);
            if is_group {
                // SAFETY: a group belongs to the calling thread, and this thread ends it below.
                calls.outcome.add("ncclGroupStart", unsafe { (table.group_start)() });
            }
            unit.iter().for_each(|op| match factor {
                None => calls.run(op),
                Some(factor) => calls.run_scaled(op, factor),
            });
            if is_group {
                // SAFETY: this thread has started a group above.
                calls.outcome.add("ncclGroupEnd", unsafe { (table.group_end)() });
            }
            (calls.outcome, calls.redop)
        });
        let (outcome, redop) = called.map_err(|error| self.with_absent_ranks(error, || first.signature(ranks)))?;
        self.library.check_launched(outcome.function, outcome.code)?;
        if outcome.code != crate::abi::Code::SUCCESS {
            self.wait_settled(|| first.signature(ranks))?;
        }
        redop.map_or(Ok(()), |redop| premul::destroy(self.library, &self.shared_comm, redop))?;
        for op in unit {
            if let Some((to, from, bytes)) = collective::copy_after(op, me, ranks) {
                self.runtime.make_current()?;
                // SAFETY: both ranges are in the operation's tensor, whose memory is freed in stream order, after this
                // copy.
                unsafe { self.runtime.copy(to, from, bytes) }?;
            }
        }
        self.wait_for_barrier(first)
    }

    /// Waits for a barrier: this operation makes the host wait for the stream.
    fn wait_for_barrier(&self, op: &Op) -> Result<()> {
        match op {
            // Only the main stream: the side stream may wait for signals that peers send after the barrier.
            Op::Barrier => self.wait_idle(|| op.signature(self.size), Runtime::is_idle),
            _ => Ok(()),
        }
    }

    /// Copies in-place inputs to scratch memory, if the library does not accept them in place.
    fn copy_inputs_to_scratch(&mut self, unit: &[Op]) -> Result<()> {
        for op in unit {
            let bytes = collective::scratch(op);
            if bytes > 0 {
                // User code may have made another device current.
                self.runtime.make_current()?;
            }
            if bytes > self.scratch.byte_len() {
                self.scratch = self.runtime.alloc(bytes)?;
            }
            if let (Some(dst), true) = (op.dst(), bytes > 0) {
                // SAFETY: the tensor and the scratch memory have at least `bytes` bytes. Earlier uses of the scratch
                // memory are earlier on the same stream.
                unsafe { self.runtime.copy(self.scratch.pointer(), dst.data(), bytes) }?;
            }
        }
        Ok(())
    }

    /// Waits until the library has completed its last call, or has failed.
    fn wait_settled(&self, operation: impl Fn() -> String) -> Result<()> {
        self.wait(operation, || self.shared_comm.is_settled())
    }

    /// Waits until `is_idle` returns that the streams are done.
    fn wait_idle(&self, operation: impl Fn() -> String, is_idle: fn(&Runtime) -> Result<bool>) -> Result<()> {
        self.wait(operation, || {
            let is_idle = is_idle(&self.runtime)?;
            // The stream may be idle because its work failed.
            self.runtime.check()?;
            self.shared_comm.is_settled().map(|_| is_idle)
        })
    }

    /// Adds the operation and the absent ranks to the error of a call that exceeded its deadline.
    fn with_absent_ranks(&self, error: Error, operation: impl FnOnce() -> String) -> Error {
        match error {
            Error::Deadline { after, .. } => Error::Deadline {
                operation: operation(),
                after,
                state: self.attendance.describe_missing(self.operation_number()),
            },
            error => error,
        }
    }

    /// Polls until `holds` returns true, or until the deadline or an abort.
    fn wait(&self, operation: impl Fn() -> String, holds: impl FnMut() -> Result<bool>) -> Result<()> {
        let waited = |waited| self.attendance.check_wait(self.operation_number(), waited, self.deadline, &operation);
        polling::wait(|| self.shared_comm.check(), holds, waited).map_err(|error| {
            match (error, self.runtime.stalled_on()) {
                (Error::Deadline { operation, after, .. }, Some(state)) => Error::Deadline { operation, after, state },
                (error, _) => error,
            }
        })
    }

    /// Marks the communicator as broken, and aborts the fast path and the library's communicator. Returns whether the
    /// abort is over: until then the library may still use the memory of operations.
    fn mark_broken(&mut self, error: &Error) -> bool {
        let cause = AbortCause::of(error);
        if let Some(aborter) = self.fast_path.as_ref().and_then(P2pFastPath::aborter) {
            aborter.abort(&cause);
        }
        self.shared_comm.graphs().forbid(&cause);
        self.broken = Some(cause);
        self.shared_comm.abort_and_wait(std::mem::take(&mut self.registrations))
    }

    /// Marks the communicator as broken after a call that exceeded its deadline.
    fn mark_broken_if_late(&mut self, error: &Error) {
        if matches!(error, Error::Deadline { .. }) {
            self.mark_broken(error);
        }
    }
}

impl disco_core::Communicator for Communicator {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        self.enqueue_scaled(ops, None)
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn disco_core::Communicator>>> {
        Ok(self.split_by_color(color, key)?.map(|child| Box::new(child) as _))
    }

    fn synchronize(&mut self) -> Result<()> {
        self.check_unbroken(|| "synchronize".into())?;
        self.runtime.refuse_in_capture("synchronize", CAPTURE_DOES_NOT_RUN)?;
        let last = self.last;
        let operation = || last.map_or("synchronize".to_owned(), |last| last.to_string());
        self.wait_idle(operation, Runtime::is_all_idle).inspect_err(|error| _ = self.mark_broken(error))?;
        self.runtime.read_device_times(true);
        Ok(())
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.shared_comm.clone()
    }

    /// Returns this type, which [`extension`](crate::extension()) downcasts to.
    fn extension(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // `ncclCommDestroy` waits until the communicator's graphs are destroyed.
        let graphs = self.runtime.destroy_graphs(self.shared_comm.graphs(), &DROPPED.into());
        _ = graphs.is_none_or(Teardown::wait);
        let registrations = std::mem::take(&mut self.registrations);
        _ = match self.shared_comm.take() {
            Some(comm) => {
                Teardown::finalize_and_destroy(self.library, &self.runtime, comm, registrations, self.deadline).wait()
            }
            None => self.shared_comm.abort_and_wait(registrations),
        };
        self.runtime.read_device_times(false);
        // After a failure, peers may not leave the shared memory, so this rank does not wait for them.
        let has_not_failed = self.broken.is_none() && self.shared_comm.cause().is_none();
        if let Some(fast_path) = self.fast_path.take().filter(|_| has_not_failed) {
            fast_path.leave();
        }
    }
}

impl fmt::Display for Launched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        self.dtype.map_or(Ok(()), |dtype| write!(f, " {dtype} x {}", self.count))
    }
}

disco_core::format_as!(Debug for Communicator, |it| "<{} {} of {}>", it.library.backend(), it.rank, it.size);
