//! `Lossy`: the built-in communicator with one fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use disco_core::link::Link;
use disco_core::{
    Abort, AbortCause, Backend, Capabilities, Communicator, ConnectParams, DType, Error, Op, OpKind, Probe, Rank,
    Reduction, Rendezvous, Result, Tensor, Unavailable, World,
};

/// The fault of the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One byte of one element of rank 0's result is wrong.
    CorruptsOneElement,
    /// Max is computed as min.
    SwapsReduction,
    /// In place, the block of each rank is read from the start of the tensor.
    IgnoresInPlaceOffset,
    /// The destination keeps its old content.
    LeavesStaleData,
    /// Writes one byte in front of the destination.
    WritesOutside,
    /// Writes to the source.
    ChangesInput,
    /// Rank 1 never returns from an all-reduce.
    Hangs,
    /// Ignores aborts.
    IsDeaf,
    /// Registers a listener for aborts that does nothing.
    IgnoresAborts,
    /// Peers do not notice that a rank has dropped its communicator.
    DropsSilently,
    /// Runs operations that its capabilities lack.
    RunsWhatItLacks,
    /// Does not support reductions of bf16, and refuses them.
    LacksBf16,
    /// Supports sum and prod only.
    LacksMinAndMax,
    /// Barriers don't wait.
    PassesBarriers,
    /// `enqueue` returns `Ok` after a failure, which `synchronize` returns instead.
    DelaysErrors,
    /// Messages overtake each other.
    MixesMessages,
    /// Ranks of a split are always ordered by rank.
    IgnoresKeys,
    /// Rank 1 rounds in another way.
    RoundsDifferently,
    /// The communicator fails once one of its children was dropped.
    EndsWithItsSplit,
    /// Is not available.
    IsAbsent,
}

/// A backend of [`Lossy`] communicators.
pub(crate) struct Double {
    name: &'static str,
    fault: Fault,
}

macro_rules! doubles {
    ($($fault:ident $constant:ident)*) => {
        $(
            static $constant: Double = Double { name: stringify!($fault), fault: Fault::$fault };
            disco_core::register_backend!($constant);
        )*
    };
}

doubles! {
    CorruptsOneElement CORRUPTS
    SwapsReduction SWAPS
    IgnoresInPlaceOffset OFFSET
    LeavesStaleData STALE
    WritesOutside OUTSIDE
    ChangesInput INPUT
    Hangs HANGS
    IsDeaf DEAF
    IgnoresAborts IGNORES
    DropsSilently SILENTLY
    RunsWhatItLacks RUNS
    LacksBf16 LACKS
    LacksMinAndMax LACKS_MIN
    PassesBarriers BARRIERS
    DelaysErrors DELAYS
    MixesMessages MIXES
    IgnoresKeys KEYS
    RoundsDifferently ROUNDS
    EndsWithItsSplit ENDS
    IsAbsent ABSENT
}

impl Backend for Double {
    fn name(&self) -> &'static str {
        self.name
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        match self.fault {
            Fault::IsAbsent => Err(Unavailable::new("libdouble.so")),
            _ => disco_local::BACKEND.probe(),
        }
    }

    fn rendezvous(&self, world: &World) -> Result<Rendezvous> {
        disco_local::BACKEND.rendezvous(world)
    }

    fn connect(&self, mut params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
        let listener = (self.fault == Fault::IgnoresAborts).then(|| Arc::new(NoAbort));
        listener.iter().for_each(|listener| params.link.on_abort(&(listener.clone() as Arc<dyn Abort>)));
        if let Fault::IsDeaf | Fault::IgnoresAborts = self.fault {
            params.link = Arc::new(Link::bare(Arc::default()));
        }
        let inner = disco_local::BACKEND.connect(params, at)?;
        let (inner, has_ended) = (Some(inner), Arc::default());
        Ok(Box::new(Lossy { inner, fault: self.fault, has_ended, is_split: false, delayed: None, _listener: listener }))
    }
}

#[derive(Debug)]
struct Lossy {
    /// The communicator without the fault; `None` while it is dropped.
    inner: Option<Box<dyn Communicator>>,
    fault: Fault,
    /// Whether a child was dropped.
    has_ended: Arc<AtomicBool>,
    is_split: bool,
    /// The error that `enqueue` has not returned.
    delayed: Option<Error>,
    /// The listener that does nothing, if the fault is [`Fault::IgnoresAborts`].
    _listener: Option<Arc<NoAbort>>,
}

/// A listener for aborts that does nothing.
#[derive(Debug)]
struct NoAbort;

impl Abort for NoAbort {
    fn abort(&self, _: &AbortCause) {}
}

impl Drop for Lossy {
    fn drop(&mut self) {
        self.has_ended.fetch_or(self.is_split, Ordering::Relaxed);
        if self.is_split && self.fault == Fault::DropsSilently {
            std::mem::forget(self.inner.take());
        }
    }
}

impl Lossy {
    fn inner(&mut self) -> &mut dyn Communicator {
        &mut **self.inner.as_mut().unwrap()
    }

    /// The operation that runs instead of `op`.
    fn replace(&self, op: &Op) -> Op {
        let mut op = op.clone();
        match (&mut op, self.fault) {
            (Op::AllReduce { reduction, .. }, Fault::SwapsReduction) if *reduction == Reduction::Max => {
                *reduction = Reduction::Min;
            }
            (Op::AllGather { src, dst }, Fault::IgnoresInPlaceOffset) if src.is_none() => {
                let count = dst.elements() / self.size();
                let copy = Tensor::zeros(dst.dtype(), [count as i64]).unwrap();
                copy.copy_from(&dst.window(0, [count as i64]).unwrap()).unwrap();
                *src = Some(copy);
            }
            _ => {}
        }
        op
    }

    /// Changes tensors after the operation.
    fn spoil(&self, op: &Op, before: &[u8]) {
        let (rank, dst) = (self.rank().index(), op.dst().filter(|dst| dst.elements() > 0));
        let Some(dst) = dst else { return };
        match self.fault {
            Fault::CorruptsOneElement if rank == 0 => *dst.bytes_mut().unwrap().last_mut().unwrap() ^= 1,
            Fault::LeavesStaleData => dst.bytes_mut().unwrap().copy_from_slice(before),
            Fault::WritesOutside if dst.byte_range().start > 0 => {
                let bytes = dst.storage().byte_len() as i64;
                let all = Tensor::from_storage(dst.storage().clone(), DType::U8, [bytes]).unwrap();
                all.bytes_mut().unwrap()[dst.byte_range().start - 1] ^= 0xff;
            }
            Fault::ChangesInput => {
                if let Some(src) = op.src().filter(|src| src.data() != dst.data()) {
                    src.bytes_mut().unwrap()[0] ^= 1;
                }
            }
            Fault::RoundsDifferently if rank == 1 && dst.dtype() == DType::F32 => {
                let mut numbers = dst.view_mut::<f32>().unwrap();
                numbers.iter_mut().filter(|x| x.fract() != 0.0).for_each(|x| *x = x.next_up());
            }
            _ => {}
        }
    }
}

impl Communicator for Lossy {
    fn rank(&self) -> Rank {
        self.inner.as_ref().unwrap().rank()
    }

    fn size(&self) -> usize {
        self.inner.as_ref().unwrap().size()
    }

    fn capabilities(&self) -> Capabilities {
        match self.fault {
            Fault::RunsWhatItLacks | Fault::LacksBf16 => {
                let reducible: Vec<DType> = DType::all().filter(|dtype| *dtype != DType::BF16).collect();
                let ops = OpKind::ALL.into_iter().fold(Capabilities::NONE, |caps, op| caps.with_op(op, DType::all()));
                Reduction::ALL
                    .into_iter()
                    .fold(ops, |caps, reduction| caps.with_reduction(reduction, reducible.clone()))
            }
            Fault::LacksMinAndMax => {
                let ops = OpKind::ALL.into_iter().fold(Capabilities::NONE, |caps, op| caps.with_op(op, DType::all()));
                [Reduction::Sum, Reduction::Prod]
                    .into_iter()
                    .fold(ops, |caps, reduction| caps.with_reduction(reduction, DType::all()))
            }
            _ => self.inner.as_ref().unwrap().capabilities(),
        }
    }

    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        let reduces_bf16 = |op: &Op| op.reduction().is_some() && op.dtype() == Some(DType::BF16);
        let mut ops: Vec<Op> = ops.iter().map(|op| self.replace(op)).collect();
        match self.fault {
            Fault::PassesBarriers if matches!(ops[..], [Op::Barrier]) => return Ok(()),
            Fault::LacksBf16 if ops.iter().any(reduces_bf16) => {
                let (operation, dtype) = ("reductions".to_owned(), Some(DType::BF16));
                return Err(disco_core::Error::Unsupported { backend: "LacksBf16", operation, dtype });
            }
            Fault::Hangs if self.rank().index() == 1 && matches!(ops[..], [Op::AllReduce { .. }]) => loop {
                thread::park_timeout(Duration::from_secs(60));
            },
            Fault::EndsWithItsSplit if self.has_ended.load(Ordering::Relaxed) => {
                return Err(disco_core::Error::state("double: this communicator has ended"));
            }
            Fault::MixesMessages => {
                let sends: Vec<usize> = (0..ops.len()).filter(|at| matches!(ops[*at], Op::Send { .. })).collect();
                if let [first, second, ..] = sends[..] {
                    ops.swap(first, second);
                }
            }
            _ => {}
        }
        let before: Vec<Vec<u8>> =
            ops.iter().map(|op| op.dst().map_or_else(Vec::new, |dst| dst.bytes().unwrap().to_vec())).collect();
        match self.inner().enqueue(&ops) {
            Err(error) if self.fault == Fault::DelaysErrors => self.delayed = Some(error),
            result => result?,
        }
        ops.iter().zip(before).for_each(|(op, before)| self.spoil(op, &before));
        Ok(())
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        let key = if self.fault == Fault::IgnoresKeys { 0 } else { key };
        let (child, fault, has_ended) = (self.inner().split(color, key)?, self.fault, self.has_ended.clone());
        Ok(child.map(|child| {
            let inner = Some(child);
            Box::new(Lossy { inner, fault, has_ended, is_split: true, delayed: None, _listener: None }) as _
        }))
    }

    fn synchronize(&mut self) -> Result<()> {
        self.delayed.take().map_or_else(|| self.inner().synchronize(), Err)
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.inner.as_ref().unwrap().aborter()
    }
}
