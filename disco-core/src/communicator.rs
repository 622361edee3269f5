//! The data plane of one worker.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::abort::Abort;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::op::{Op, OpKind, Reduction};
use crate::tensor::Tensor;

/// Tensor traffic between the ranks of one group.
///
/// # Threads
/// The contract does not ask for [`Send`]: a communicator stays on the thread that made it, a worker's own. MPI may be initialised for
/// calls of one thread at a time (`MPI_THREAD_SERIALIZED`), and then two communicators of a process must not be on two threads.
/// [`Communicator::aborter`] is for other threads. Types of backends whose library allows more are `Send` and say so by an assertion:
/// `disco_local::Communicator` and `disco_ccl::Communicator`, which make their memory or device current on whatever thread calls.
///
/// ```compile_fail
/// fn moves<T: Send>() {}
/// moves::<Box<dyn disco_core::Communicator>>();
/// ```
pub trait Communicator: Debug {
    /// This worker's position.
    fn rank(&self) -> Rank;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Runs a group: either point-to-point operations, which progress together, or collectives, run in order.
    ///
    /// When it returns, host tensors are complete; device tensors are ordered on the worker's one stream.
    ///
    /// # Errors
    /// What [`Op::check`] refuses and [`Error::Unsupported`], before anything is launched;
    /// [`Error::Mismatch`], [`Error::Deadline`] and
    /// [`Error::Aborted`], after which the communicator is broken and outputs are unspecified.
    fn enqueue(&mut self, group: &[Op]) -> Result<()>;

    /// A communicator of the ranks that pass the same color, ordered by `key`, then by rank. Collective over all ranks;
    /// no color gives none. It inherits deadline and aborter and outlives its parent.
    ///
    /// # Errors
    /// A failure on one rank fails all.
    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>>;

    /// Waits until everything enqueued is complete.
    ///
    /// # Errors
    /// As [`Communicator::enqueue`].
    fn synchronize(&mut self) -> Result<()>;

    /// Ends, from any thread, what this communicator waits for.
    fn aborter(&self) -> Arc<dyn Abort>;

    /// What its backend has beside this trait. The backend's crate says of which type it is, and gives programs a typed view of it,
    /// as `disco_nccl::extension` does. A wrapper passes on what it wraps.
    fn extension(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// Runs `launch`, which starts `group` by means of the [extension](Communicator::extension). Wrappers that count, compare or
    /// refuse operations treat it as an [`enqueue`](Communicator::enqueue) of `group`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without an extension; those of `launch`; as [`Communicator::enqueue`].
    fn enqueue_with(&mut self, group: &[Op], launch: &mut dyn FnMut(&mut dyn Any) -> Result<()>) -> Result<()> {
        let dtype = group.first().and_then(Op::dtype);
        let missing = || Error::Unsupported { backend: "this backend", operation: "enqueue_with".into(), dtype };
        launch(self.extension().ok_or_else(missing)?)
    }
}

/// Which operations a communicator has for which dtypes and reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// By operation, what it can move.
    ops: [DTypeSet; OpKind::ALL.len()],
    /// By reduction, what it can reduce.
    reductions: [DTypeSet; Reduction::ALL.len()],
}

impl Capabilities {
    /// Nothing at all.
    pub const NONE: Self =
        Self { ops: [DTypeSet::EMPTY; OpKind::ALL.len()], reductions: [DTypeSet::EMPTY; Reduction::ALL.len()] };

    /// Every operation and reduction of every dtype, but averages of bools, which are none.
    pub fn all() -> Self {
        let ops = OpKind::ALL.into_iter().fold(Self::NONE, |caps, op| caps.with_op(op, DType::all()));
        Reduction::ALL.into_iter().fold(ops, |caps, reduction| {
            let reduces = |dtype: &DType| (reduction, *dtype) != (Reduction::Avg, DType::Bool);
            caps.with_reduction(reduction, DType::all().filter(reduces))
        })
    }

    /// The same, and `op` on these dtypes.
    #[must_use]
    pub fn with_op(mut self, op: OpKind, dtypes: impl IntoIterator<Item = DType>) -> Self {
        self.ops[op as usize].extend(dtypes);
        self
    }

    /// The same, and `reduction` of these dtypes.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction, dtypes: impl IntoIterator<Item = DType>) -> Self {
        self.reductions[reduction as usize].extend(dtypes);
        self
    }

    /// Whether `op` works on `dtype`, with `reduction` if it reduces. A barrier works on any dtype or none.
    pub fn supports(&self, op: OpKind, dtype: DType, reduction: Option<Reduction>) -> bool {
        self.ops[op as usize].contains(dtype) && reduction.is_none_or(|r| self.reductions[r as usize].contains(dtype))
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

/// The operations of a [`Communicator`] as methods. Each is one [`Op`], which documents shapes and offsets; errors are
/// those of [`Communicator::enqueue`].
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
///     let largest = Tensor::from_vec(vec![largest], 1)?;
///     comm.all_reduce(&largest, &largest, Reduction::Max)?;
///     Ok(largest.view::<f32>()?[0])
/// }
/// ```
///
/// `examples/tensor_parallel.rs` of the package `disco` is a whole program.
pub trait CommunicatorExt: Communicator {
    /// [`Op::AllReduce`] from `src` to `dst`.
    fn all_reduce(&mut self, src: &Tensor, dst: &Tensor, reduction: Reduction) -> Result<()> {
        self.enqueue(&[Op::AllReduce { src: Some(src.clone()), dst: dst.clone(), reduction }])
    }

    /// [`Op::AllReduce`] in place.
    fn all_reduce_in_place(&mut self, buffer: &Tensor, reduction: Reduction) -> Result<()> {
        self.enqueue(&[Op::AllReduce { src: None, dst: buffer.clone(), reduction }])
    }

    /// [`Op::Reduce`]; `dst` matters at the root.
    fn reduce(&mut self, src: &Tensor, dst: Option<&Tensor>, reduction: Reduction, root: Rank) -> Result<()> {
        self.enqueue(&[Op::Reduce { src: Some(src.clone()), dst: dst.cloned(), reduction, root }])
    }

    /// [`Op::ReduceScatter`].
    fn reduce_scatter(&mut self, src: &Tensor, dst: &Tensor, reduction: Reduction) -> Result<()> {
        self.enqueue(&[Op::ReduceScatter { src: Some(src.clone()), dst: dst.clone(), reduction }])
    }

    /// [`Op::AllGather`].
    fn all_gather(&mut self, src: &Tensor, dst: &Tensor) -> Result<()> {
        self.enqueue(&[Op::AllGather { src: Some(src.clone()), dst: dst.clone() }])
    }

    /// [`Op::Broadcast`] in place.
    fn broadcast(&mut self, buffer: &Tensor, root: Rank) -> Result<()> {
        self.enqueue(&[Op::Broadcast { src: None, dst: buffer.clone(), root }])
    }

    /// [`Op::Gather`]; `dst` matters at the root.
    fn gather(&mut self, src: &Tensor, dst: Option<&Tensor>, root: Rank) -> Result<()> {
        self.enqueue(&[Op::Gather { src: Some(src.clone()), dst: dst.cloned(), root }])
    }

    /// [`Op::Scatter`]; `src` matters at the root.
    fn scatter(&mut self, src: Option<&Tensor>, dst: &Tensor, root: Rank) -> Result<()> {
        self.enqueue(&[Op::Scatter { src: src.cloned(), dst: Some(dst.clone()), root }])
    }

    /// [`Op::AllToAll`].
    fn all_to_all(&mut self, src: &Tensor, dst: &Tensor) -> Result<()> {
        self.enqueue(&[Op::AllToAll { src: Some(src.clone()), dst: dst.clone() }])
    }

    /// [`Op::AllGatherV`].
    fn all_gather_v(&mut self, src: &Tensor, dst: &Tensor, counts: &[usize]) -> Result<()> {
        self.enqueue(&[Op::AllGatherV { src: Some(src.clone()), dst: dst.clone(), counts: counts.into() }])
    }

    /// [`Op::AllToAllV`]: `send` and `recv` are a tensor and its counts by peer.
    fn all_to_all_v(&mut self, send: (&Tensor, &[usize]), recv: (&Tensor, &[usize])) -> Result<()> {
        let (src, send_counts) = (Some(send.0.clone()), send.1.into());
        let (dst, recv_counts) = (recv.0.clone(), recv.1.into());
        self.enqueue(&[Op::AllToAllV { src, send_counts, dst, recv_counts }])
    }

    /// [`Op::Send`].
    fn send(&mut self, src: &Tensor, to: Rank) -> Result<()> {
        self.enqueue(&[Op::Send { src: src.clone(), to }])
    }

    /// [`Op::Recv`].
    fn recv(&mut self, dst: &Tensor, from: Rank) -> Result<()> {
        self.enqueue(&[Op::Recv { dst: dst.clone(), from }])
    }

    /// [`Op::Barrier`].
    fn barrier(&mut self) -> Result<()> {
        self.enqueue(&[Op::Barrier])
    }
}

impl<C: Communicator + ?Sized> CommunicatorExt for C {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_looked_up_by_op_dtype_and_reduction() {
        let caps = Capabilities::NONE
            .with_op(OpKind::AllReduce, [DType::F32, DType::BF16])
            .with_reduction(Reduction::Sum, [DType::F32]);
        assert!(caps.supports(OpKind::AllReduce, DType::F32, Some(Reduction::Sum)));
        assert!(!caps.supports(OpKind::AllReduce, DType::BF16, Some(Reduction::Sum)));
        assert!(!caps.supports(OpKind::AllReduce, DType::F32, Some(Reduction::Avg)));
        assert!(!caps.supports(OpKind::Send, DType::F32, None));
    }

    #[derive(Debug, Default)]
    struct Recorder(Vec<OpKind>);

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

        fn enqueue(&mut self, group: &[Op]) -> Result<()> {
            self.0.extend(group.iter().map(Op::kind));
            Ok(())
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
    fn every_operation_has_a_method() {
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
        assert_eq!(comm.0, OpKind::ALL);
    }
}
