//! Communicators: the data plane of one worker.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::abort::Abort;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::op::{Op, OpKind, Reduction};
use crate::tensor::Tensor;
use crate::work::Work;

/// Collectives and point-to-point operations between the ranks of one group.
///
/// # Threads
/// The trait does not require [`Send`]: a communicator stays on the worker's thread that made it. MPI may be
/// initialised for calls of one thread at a time (`MPI_THREAD_SERIALIZED`), and then two communicators of a process
/// must not be on two threads. Other threads use [`Communicator::aborter`]. The types of some backends are `Send`,
/// which an assertion checks: `disco_local::Communicator`, and `disco_ccl::Communicator`, which makes its device
/// current on the calling thread.
///
/// ```compile_fail
/// fn moves<T: Send>() {}
/// moves::<Box<dyn disco_core::Communicator>>();
/// ```
pub trait Communicator: Debug {
    /// The rank of this worker.
    fn rank(&self) -> Rank;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// The operations, dtypes and reductions that the communicator supports.
    fn capabilities(&self) -> Capabilities;

    /// Runs a group of operations. Blocks until operations on host tensors are complete; operations on device tensors
    /// are enqueued on the worker's stream. A group has either point-to-point operations, which progress together, or
    /// collectives, which run in order.
    ///
    /// If two all-reduces, all-gathers or reduce-scatters of a group share memory on one rank, they must share memory on
    /// all ranks: NCCL may run others at the same time.
    ///
    /// # Errors
    /// Errors of [`Op::check`] and [`Error::Unsupported`]; no operation was started. [`Error::Mismatch`],
    /// [`Error::Deadline`] and [`Error::Aborted`]; the communicator is then broken and outputs are unspecified.
    fn enqueue(&mut self, ops: &[Op]) -> Result<()>;

    /// Starts a group as [`Communicator::enqueue`] does, and returns without waiting for other ranks. The operations run
    /// while the caller computes, in the order of the calls, and before later ones of [`Communicator::enqueue`] and
    /// [`Communicator::split`], which wait for them. Until they end, their tensors are claimed: views that would
    /// disturb them fail with [`Error::Busy`].
    ///
    /// On device tensors this is `enqueue`, since the worker's stream runs beside the host. So it is on host tensors
    /// unless the backend says otherwise.
    ///
    /// ```
    /// use disco_core::{Communicator, Op, Reduction, Result, Tensor};
    ///
    /// /// Sums a layer's gradients over the ranks while `compute_next` makes those of the next layer.
    /// fn overlap(comm: &mut dyn Communicator, done: &Tensor, compute_next: impl FnOnce() -> Tensor) -> Result<Tensor> {
    ///     let sum = comm.start(&[Op::AllReduce { src: None, dst: done.clone(), reduction: Reduction::Sum }])?;
    ///     let next = compute_next();
    ///     sum.wait()?;
    ///     Ok(next)
    /// }
    /// ```
    ///
    /// # Errors
    /// Errors of [`Op::check`], [`Error::Unsupported`] and [`Error::Busy`]; no operation was started. [`Work::wait`]
    /// returns the errors of the operations.
    fn start(&mut self, ops: &[Op]) -> Result<Work> {
        self.enqueue(ops).map(|()| Work::done())
    }

    /// A child communicator of the ranks that pass the same color, ordered by `key`, then by rank; none for a rank
    /// without a color. Collective over all ranks. The child inherits deadline and aborter, and may outlive its parent.
    ///
    /// # Errors
    /// If one rank fails, all ranks fail. Except for a color above 2^31 - 1, the limit of vendors' libraries: its rank
    /// takes part as one without a color, gets [`Error::Invalid`], and can go on to use this communicator.
    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>>;

    /// Waits until all enqueued and started operations are complete.
    ///
    /// # Errors
    /// As [`Communicator::enqueue`].
    fn synchronize(&mut self) -> Result<()>;

    /// A handle that aborts waits of this communicator from any thread.
    fn aborter(&self) -> Arc<dyn Abort>;

    /// The backend's functions beyond this trait. The backend's crate documents the type and gives programs a typed
    /// view of it, as `disco_nccl::extension` does. A wrapper returns the extension of the communicator that it wraps.
    fn extension(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// Runs `launch`, which starts `ops` through the [extension](Communicator::extension). Wrappers that count,
    /// compare or refuse operations treat the call as an [`enqueue`](Communicator::enqueue) of `ops`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without an extension; errors of `launch` and of [`Communicator::enqueue`].
    fn enqueue_with(&mut self, ops: &[Op], launch: &mut dyn FnMut(&mut dyn Any) -> Result<()>) -> Result<()> {
        let dtype = ops.first().and_then(Op::dtype);
        let missing = || Error::Unsupported { backend: "this backend", operation: "enqueue_with".into(), dtype };
        launch(self.extension().ok_or_else(missing)?)
    }
}

/// The operations of a communicator, with the dtypes and reductions that each supports.
///
/// A reduction is supported on the dtypes that both its operation and the reduction have:
///
/// ```
/// use disco_core::{Capabilities, DType, OpKind, Reduction};
///
/// let can = Capabilities::NONE
///     .with_op(OpKind::AllReduce, [DType::F32, DType::I32])
///     .with_op(OpKind::Broadcast, DType::all())
///     .with_reduction(Reduction::Sum, [DType::F32, DType::F64]);
/// assert!(can.supports(OpKind::AllReduce, DType::F32, Some(Reduction::Sum)));
/// assert!(!can.supports(OpKind::AllReduce, DType::I32, Some(Reduction::Sum)));
/// assert!(can.supports(OpKind::Broadcast, DType::U8, None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The dtypes that each operation supports.
    ops: [DTypeSet; OpKind::ALL.len()],
    /// The dtypes that each built-in reduction supports.
    reductions: [DTypeSet; Reduction::ALL.len()],
    /// Whether [`Reduction::Custom`] is supported.
    custom: bool,
}

impl Capabilities {
    /// No operations.
    pub const NONE: Self = Self {
        ops: [DTypeSet::EMPTY; OpKind::ALL.len()],
        reductions: [DTypeSet::EMPTY; Reduction::ALL.len()],
        custom: false,
    };

    /// Every operation and reduction of every dtype, except averages of bools; also reductions of programs.
    pub fn all() -> Self {
        let ops = OpKind::ALL.into_iter().fold(Self::NONE, |caps, op| caps.with_op(op, DType::all()));
        Reduction::ALL.into_iter().fold(ops.with_custom_reductions(), |caps, reduction| {
            let reduces = |dtype: &DType| (reduction, *dtype) != (Reduction::Avg, DType::Bool);
            caps.with_reduction(reduction, DType::all().filter(reduces))
        })
    }

    /// Adds `op` on these dtypes.
    #[must_use]
    pub fn with_op(mut self, op: OpKind, dtypes: impl IntoIterator<Item = DType>) -> Self {
        self.ops[op as usize].extend(dtypes);
        self
    }

    /// Adds the built-in `reduction` on these dtypes.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction, dtypes: impl IntoIterator<Item = DType>) -> Self {
        if let Some(set) = self.reductions.get_mut(usize::from(reduction.code())) {
            set.extend(dtypes);
        }
        self
    }

    /// Adds [`Reduction::Custom`], on all dtypes of the operations that reduce.
    /// [`run_in_steps`](crate::op::run_in_steps) runs it on any communicator that moves elements.
    #[must_use]
    pub const fn with_custom_reductions(mut self) -> Self {
        self.custom = true;
        self
    }

    /// Whether `op` supports `dtype`, and `reduction` if one is given. A barrier ignores the dtype.
    pub fn supports(&self, op: OpKind, dtype: DType, reduction: Option<Reduction>) -> bool {
        let reduces = |reduction: Reduction| match self.reductions.get(usize::from(reduction.code())) {
            Some(dtypes) => dtypes.contains(dtype),
            None => self.custom,
        };
        self.ops[op as usize].contains(dtype) && reduction.is_none_or(reduces)
    }
}

/// A set of dtypes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DTypeSet(u32);

impl DTypeSet {
    const EMPTY: Self = Self(0);

    const fn contains(self, dtype: DType) -> bool {
        self.0 & (1 << dtype as u32) != 0
    }

    fn extend(&mut self, dtypes: impl IntoIterator<Item = DType>) {
        self.0 = dtypes.into_iter().fold(self.0, |set, dtype| set | 1 << dtype as u32);
    }
}

/// Makes [`CommunicatorExt`] from one row for each operation: its documentation, the names of the methods that enqueue and
/// start it, their arguments, and the [`Op`].
macro_rules! methods {
    ($($(#[$doc:meta])* $enqueue:ident, $start:ident($($argument:ident: $ty:ty),*) => $op:expr;)*) => {
        /// The operations of a [`Communicator`] as methods. Each method enqueues one [`Op`], so it blocks until an operation
        /// on host tensors is complete; a method whose name begins with `start_` starts it. The [`Op`] documents shapes and
        /// offsets; errors are those of [`Communicator::enqueue`] and [`Communicator::start`].
        ///
        /// ```
        /// use disco_core::{Communicator, CommunicatorExt, DType, Op, Rank, Reduction, Result, Tensor};
        ///
        /// /// Passes a tensor on around the ring of ranks, and returns the largest element that any rank has.
        /// fn pass_on(comm: &mut dyn Communicator, x: &Tensor) -> Result<f32> {
        ///     let (rank, size) = (comm.rank().index(), comm.size());
        ///     let received = Tensor::zeros(DType::F32, x.dims())?;
        ///     let next = Rank::new(((rank + 1) % size) as u32);
        ///     let previous = Rank::new(((rank + size - 1) % size) as u32);
        ///     // The operations of a group progress together.
        ///     comm.enqueue(&[Op::Send { src: x.clone(), to: next }, Op::Recv { dst: received.clone(), from: previous }])?;
        ///     let largest = received.view::<f32>()?.iter().copied().fold(f32::MIN, f32::max);
        ///     let largest = Tensor::from_slice(&[largest], ())?;
        ///     comm.all_reduce_in_place(&largest, Reduction::Max)?;
        ///     Ok(largest.view::<f32>()?[0])
        /// }
        /// ```
        ///
        /// `examples/tensor_parallel.rs` of the package `disco` is a whole program, and `examples/started_collective.rs`
        /// starts operations.
        pub trait CommunicatorExt: Communicator {
            $(
                $(#[$doc])*
                fn $enqueue(&mut self, $($argument: $ty),*) -> Result<()> {
                    self.enqueue(&[$op])
                }

                #[doc = concat!("[Starts](Communicator::start) [`Self::", stringify!($enqueue), "`].")]
                fn $start(&mut self, $($argument: $ty),*) -> Result<Work> {
                    self.start(&[$op])
                }
            )*

            /// Ends the operations of `work`, which this communicator has started, unless they have ended: aborts the
            /// communicator with `cause`. So the operation that runs fails with [`Error::Aborted`], and all that have not
            /// begun, and later ones, with [`Error::Broken`], until `init_ccl` makes new communicators.
            ///
            /// With `local`, this ends the operations of all ranks. With `mpi`, those of this rank only: the other ranks
            /// wait until this worker's function fails, the session cancels its call, or their deadlines pass. On devices,
            /// `work` has ended for the host, and nothing happens; [`Communicator::aborter`] ends operations there.
            ///
            /// ```
            /// use std::time::Duration;
            ///
            /// use disco_core::{Communicator, CommunicatorExt, Reduction, Result, Tensor};
            ///
            /// /// Sums `x` over the ranks, within a second.
            /// fn sum(comm: &mut dyn Communicator, x: &Tensor) -> Result<()> {
            ///     let sum = comm.start_all_reduce_in_place(x, Reduction::Sum)?;
            ///     if !sum.wait_timeout(Duration::from_secs(1))? {
            ///         comm.cancel(&sum, "the sum took more than a second");
            ///     }
            ///     sum.wait()
            /// }
            /// ```
            fn cancel(&self, work: &Work, cause: &str) {
                if !work.has_ended() {
                    self.aborter().abort(&cause.into());
                }
            }
        }
    };
}

methods! {
    /// [`Op::AllReduce`] from `src` to `dst`.
    all_reduce, start_all_reduce(src: &Tensor, dst: &Tensor, reduction: Reduction) =>
        Op::AllReduce { src: Some(src.clone()), dst: dst.clone(), reduction };

    /// [`Op::AllReduce`] in place.
    all_reduce_in_place, start_all_reduce_in_place(buffer: &Tensor, reduction: Reduction) =>
        Op::AllReduce { src: None, dst: buffer.clone(), reduction };

    /// [`Op::Reduce`]; `dst` is used on the root only.
    reduce, start_reduce(src: &Tensor, dst: Option<&Tensor>, reduction: Reduction, root: Rank) =>
        Op::Reduce { src: Some(src.clone()), dst: dst.cloned(), reduction, root };

    /// [`Op::ReduceScatter`].
    reduce_scatter, start_reduce_scatter(src: &Tensor, dst: &Tensor, reduction: Reduction) =>
        Op::ReduceScatter { src: Some(src.clone()), dst: dst.clone(), reduction };

    /// [`Op::AllGather`].
    all_gather, start_all_gather(src: &Tensor, dst: &Tensor) =>
        Op::AllGather { src: Some(src.clone()), dst: dst.clone() };

    /// [`Op::Broadcast`] in place.
    broadcast, start_broadcast(buffer: &Tensor, root: Rank) =>
        Op::Broadcast { src: None, dst: buffer.clone(), root };

    /// [`Op::Gather`]; `dst` is used on the root only.
    gather, start_gather(src: &Tensor, dst: Option<&Tensor>, root: Rank) =>
        Op::Gather { src: Some(src.clone()), dst: dst.cloned(), root };

    /// [`Op::Scatter`]; `src` is used on the root only.
    scatter, start_scatter(src: Option<&Tensor>, dst: &Tensor, root: Rank) =>
        Op::Scatter { src: src.cloned(), dst: Some(dst.clone()), root };

    /// [`Op::AllToAll`].
    all_to_all, start_all_to_all(src: &Tensor, dst: &Tensor) =>
        Op::AllToAll { src: Some(src.clone()), dst: dst.clone() };

    /// [`Op::AllGatherV`].
    all_gather_v, start_all_gather_v(src: &Tensor, dst: &Tensor, counts: &[usize]) =>
        Op::AllGatherV { src: Some(src.clone()), dst: dst.clone(), counts: counts.into() };

    /// [`Op::AllToAllV`]: `send` and `recv` are each a tensor and its counts by peer.
    all_to_all_v, start_all_to_all_v(send: (&Tensor, &[usize]), recv: (&Tensor, &[usize])) =>
        Op::AllToAllV {
            src: Some(send.0.clone()),
            send_counts: send.1.into(),
            dst: recv.0.clone(),
            recv_counts: recv.1.into(),
        };

    /// [`Op::Send`].
    send, start_send(src: &Tensor, to: Rank) => Op::Send { src: src.clone(), to };

    /// [`Op::Recv`].
    recv, start_recv(dst: &Tensor, from: Rank) => Op::Recv { dst: dst.clone(), from };

    /// [`Op::Barrier`].
    barrier, start_barrier() => Op::Barrier;
}

impl<C: Communicator + ?Sized> CommunicatorExt for C {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supports_checks_operation_dtype_and_reduction() {
        let caps = Capabilities::NONE
            .with_op(OpKind::AllReduce, [DType::F32, DType::BF16])
            .with_reduction(Reduction::Sum, [DType::F32]);
        assert!(caps.supports(OpKind::AllReduce, DType::F32, Some(Reduction::Sum)));
        assert!(!caps.supports(OpKind::AllReduce, DType::BF16, Some(Reduction::Sum)));
        assert!(!caps.supports(OpKind::AllReduce, DType::F32, Some(Reduction::Avg)));
        assert!(!caps.supports(OpKind::Send, DType::F32, None));
        let own = Some(Reduction::Custom("x.y"));
        assert!(!caps.supports(OpKind::AllReduce, DType::F32, own));
        assert!(caps.with_custom_reductions().supports(OpKind::AllReduce, DType::BF16, own));
        assert!(!caps.with_custom_reductions().supports(OpKind::Reduce, DType::BF16, own));
    }

    #[derive(Debug, Default)]
    struct Recorder {
        enqueued: Vec<OpKind>,
        started: Vec<OpKind>,
    }

    impl Communicator for Recorder {
        fn rank(&self) -> Rank {
            Rank::new(0)
        }

        fn size(&self) -> usize {
            1
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::NONE
        }

        fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
            self.enqueued.extend(ops.iter().map(Op::kind));
            Ok(())
        }

        fn start(&mut self, ops: &[Op]) -> Result<Work> {
            self.started.extend(ops.iter().map(Op::kind));
            Ok(Work::done())
        }

        fn split(&mut self, _: Option<u32>, _: i32) -> Result<Option<Box<dyn Communicator>>> {
            Ok(None)
        }

        fn synchronize(&mut self) -> Result<()> {
            Ok(())
        }

        fn aborter(&self) -> Arc<dyn Abort> {
            unreachable!("nothing is aborted")
        }
    }

    #[test]
    fn methods_enqueue_or_start_their_operation() {
        let (x, sum, root) = (&Tensor::zeros(DType::F32, [1]).unwrap(), Reduction::Sum, Rank::new(0));
        let mut comm = Recorder::default();
        comm.all_reduce(x, x, sum).unwrap();
        comm.reduce(x, None, sum, root).unwrap();
        comm.reduce_scatter(x, x, sum).unwrap();
        comm.all_gather(x, x).unwrap();
        comm.broadcast(x, root).unwrap();
        comm.gather(x, None, root).unwrap();
        comm.scatter(None, x, root).unwrap();
        comm.all_to_all(x, x).unwrap();
        comm.all_gather_v(x, x, &[1]).unwrap();
        comm.all_to_all_v((x, &[1]), (x, &[1])).unwrap();
        comm.send(x, root).unwrap();
        comm.recv(x, root).unwrap();
        comm.barrier().unwrap();
        assert_eq!((&comm.enqueued[..], &comm.started[..]), (&OpKind::ALL[..], &[][..]));
        let works = [
            comm.start_all_reduce(x, x, sum),
            comm.start_reduce(x, None, sum, root),
            comm.start_reduce_scatter(x, x, sum),
            comm.start_all_gather(x, x),
            comm.start_broadcast(x, root),
            comm.start_gather(x, None, root),
            comm.start_scatter(None, x, root),
            comm.start_all_to_all(x, x),
            comm.start_all_gather_v(x, x, &[1]),
            comm.start_all_to_all_v((x, &[1]), (x, &[1])),
            comm.start_send(x, root),
            comm.start_recv(x, root),
            comm.start_barrier(),
        ];
        assert!(works.iter().all(|work| work.as_ref().is_ok_and(Work::has_ended)));
        assert_eq!((&comm.enqueued[..], &comm.started[..]), (&OpKind::ALL[..], &OpKind::ALL[..]));
    }
}
