//! A test backend that reaches several machines: its ranks exchange tensors through the session's store. Operations beyond
//! its capabilities are barriers.

use std::sync::Arc;
use std::time::Duration;

use disco::{
    Abort, Backend, Capabilities, Communicator, DType, Error, Op, OpKind, Probe, Rank, Reduction, Result, Store,
    Tensor, Unavailable, World,
};
use disco_core::{AbortCause, ConnectParams, Rendezvous};

/// The backend `by-store`.
#[derive(Debug)]
struct ByStore;

static BY_STORE: ByStore = ByStore;

disco_core::register_backend!(BY_STORE);

/// The communicator of one rank.
#[derive(Debug)]
struct StoreCommunicator {
    rank: Rank,
    size: usize,
    store: Arc<dyn Store>,
    deadline: Duration,
    done: u64,
}

/// An abort that does nothing: waits in the store are aborted by the session.
struct NoAbort;

impl Abort for NoAbort {
    fn abort(&self, _: &AbortCause) {}
}

impl Backend for ByStore {
    fn name(&self) -> &'static str {
        "by-store"
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        Ok(Probe::new("a test's", "0"))
    }

    fn rendezvous(&self, _: &World) -> Result<Rendezvous> {
        Rendezvous::new([])
    }

    fn connect(&self, params: ConnectParams<'_>, _: &Rendezvous) -> Result<Box<dyn Communicator>> {
        let (store, size) = (params.link.store(), params.world.size());
        Ok(Box::new(StoreCommunicator { rank: params.rank, size, store, deadline: params.deadline, done: 0 }))
    }
}

impl Communicator for StoreCommunicator {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn capabilities(&self) -> Capabilities {
        let moves = [OpKind::Barrier, OpKind::Broadcast, OpKind::Gather, OpKind::Scatter];
        let moves = moves.into_iter().fold(Capabilities::NONE, |all, op| all.with_op(op, DType::all()));
        moves.with_op(OpKind::AllReduce, [DType::F32]).with_reduction(Reduction::Avg, [DType::F32])
    }

    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        ops.iter().try_for_each(|op| self.execute(op))
    }

    fn split(&mut self, _: Option<u32>, _: i32) -> Result<Option<Box<dyn Communicator>>> {
        Err(Error::Invalid("a test's".into()))
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        Arc::new(NoAbort)
    }
}

impl StoreCommunicator {
    fn execute(&mut self, op: &Op) -> Result<()> {
        self.done += 1;
        match op {
            Op::AllReduce { src, dst, reduction: Reduction::Avg } if dst.dtype() == DType::F32 => {
                let all = self.exchange(&src.as_ref().unwrap_or(dst).bytes()?)?;
                // In the order of ranks, so that all ranks have the same bits.
                let mut sums = vec![0.0_f32; dst.elements()];
                for bytes in &all {
                    let elements = bytes.as_chunks().0.iter().map(|element| f32::from_le_bytes(*element));
                    sums.iter_mut().zip(elements).for_each(|(sum, element)| *sum += element);
                }
                sums.iter_mut().for_each(|sum| *sum /= self.size as f32);
                dst.write(&sums)
            }
            Op::Broadcast { src, dst, root } => {
                let own = (*root == self.rank).then(|| src.as_ref().unwrap_or(dst));
                write(dst, &self.exchange(&bytes(own)?)?[root.index()])
            }
            Op::Gather { src: Some(src), dst, root } => {
                let all = self.exchange(&src.bytes()?)?;
                let dst = dst.as_ref().filter(|_| *root == self.rank);
                dst.map_or(Ok(()), |dst| write(dst, &all.concat()))
            }
            Op::Scatter { src, dst: Some(dst), root } => {
                let all = self.exchange(&bytes(src.as_ref().filter(|_| *root == self.rank))?)?;
                let part = dst.byte_len();
                write(dst, &all[root.index()][part * self.rank.index()..][..part])
            }
            // The ranks meet, and move nothing.
            _ => self.exchange(&[]).map(drop),
        }
    }

    /// The bytes of all ranks, in their order.
    fn exchange(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let key = |number: u64, rank: usize| format!("operation {number} rank {rank}");
        self.store.set(&key(self.done, self.rank.index()), own)?;
        let all = (0..self.size).map(|rank| self.store.wait(&key(self.done, rank), self.deadline));
        let all = all.collect::<Result<Vec<_>>>()?;
        // All ranks have begun this operation, so all have read those of the operation before.
        self.store.delete(&key(self.done - 1, self.rank.index()))?;
        Ok(all)
    }
}

fn bytes(tensor: Option<&Tensor>) -> Result<Vec<u8>> {
    tensor.map_or(Ok(Vec::new()), |tensor| Ok(tensor.bytes()?.to_vec()))
}

fn write(tensor: &Tensor, bytes: &[u8]) -> Result<()> {
    tensor.bytes_mut()?.copy_from_slice(bytes);
    Ok(())
}
