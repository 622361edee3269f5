//! The context and the communicator of a check on one worker.

use disco_core::{Communicator, DType, Error, Op, Rank, Result, Shape, Tensor, WorkerContext};

/// The communicator that a check uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The communicator of all workers.
    World,
    /// The communicator of the worker's group.
    Group,
    /// A child of a split with two colors, with the ranks in reverse order.
    Split,
}

impl Scope {
    /// All scopes, in the order of their numbers in calls.
    pub(crate) const ALL: [Scope; 3] = [Self::World, Self::Group, Self::Split];

    /// The name in texts: `the world`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::World => "the world",
            Self::Group => "a group",
            Self::Split => "a split",
        }
    }
}

/// Where the host tensors of a check are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostMemory {
    /// In memory of the worker's allocator.
    Shared,
    /// In private memory of this process, which other processes can't access.
    Private,
    /// In pinned memory, where the worker's device has such memory.
    Pinned,
}

/// One worker with the communicator of a check.
#[derive(Debug)]
pub(crate) struct Fixture<'a> {
    pub(crate) ctx: &'a mut WorkerContext,
    scope: Scope,
    child: Option<Box<dyn Communicator>>,
    /// Identifies the communicator: equal on all its ranks, different on other ranks.
    pub(crate) color: i64,
    /// Identifies the run of the check: equal on all workers.
    run: i64,
    /// Whether results must be [exact](crate::Harness::is_exact).
    pub(crate) exact: bool,
    /// Whether the backend must [detect dropped peers](crate::Harness::detects_dropped_peers).
    pub(crate) detects_dropped_peers: bool,
    /// Where host tensors are.
    pub(crate) memory: HostMemory,
}

impl<'a> Fixture<'a> {
    /// Makes the communicator of `scope`, on all workers at the same time.
    pub(crate) fn new(
        ctx: &'a mut WorkerContext,
        scope: Scope,
        run: i64,
        (exact, detects_dropped_peers): (bool, bool),
    ) -> Result<Self> {
        let worker = ctx.worker().index();
        let mut child = None;
        let color = match scope {
            Scope::World => 0,
            Scope::Group => ctx.group().index() as u32,
            Scope::Split => {
                let color = [5, 3][worker % 2];
                child = ctx.comm()?.split(Some(color), -(worker as i32))?;
                let missing = || Error::invalid("split: a color was passed, but there is no communicator");
                child.as_ref().ok_or_else(missing)?;
                color
            }
        };
        Ok(Self {
            ctx,
            scope,
            child,
            color: color.into(),
            run,
            exact,
            detects_dropped_peers,
            memory: HostMemory::Shared,
        })
    }

    /// The communicator.
    pub(crate) fn comm(&mut self) -> Result<&mut dyn Communicator> {
        match &mut self.child {
            Some(child) => Ok(&mut **child),
            None => self.ctx.comm_in(&(self.scope == Scope::Group).into()),
        }
    }

    /// This worker's rank and the number of ranks.
    pub(crate) fn rank_and_size(&mut self) -> Result<(usize, usize)> {
        let comm = self.comm()?;
        Ok((comm.rank().index(), comm.size()))
    }

    /// Runs a group to its end.
    pub(crate) fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        let comm = self.comm()?;
        comm.enqueue(ops)?;
        comm.synchronize()
    }

    /// A tensor on the worker's device.
    pub(crate) fn tensor(&mut self, dtype: DType, content: &[u8]) -> Result<Tensor> {
        let tensor = self.ctx.empty(dtype, [(content.len() / dtype.size()) as i64])?;
        upload(self.ctx, &tensor, content, self.memory)?;
        Ok(tensor)
    }

    /// The bytes of a tensor.
    pub(crate) fn bytes(&mut self, tensor: &Tensor) -> Result<Vec<u8>> {
        download(self.ctx, tensor, self.memory)
    }

    /// A key of the store that is unique to this communicator and this run.
    pub(crate) fn key(&self, what: &str) -> String {
        format!("conformance {}: {:?} {}: {what}", self.run, self.scope, self.color)
    }
}

/// A rank, from an index.
pub(crate) fn rank(index: usize) -> Rank {
    Rank::new(index as u32)
}

impl HostMemory {
    /// A zeroed tensor that is on the worker's device if this is a host.
    pub(crate) fn empty(self, ctx: &mut WorkerContext, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        match self {
            Self::Shared => ctx.empty(dtype, shape),
            _ if !ctx.device().is_host() => ctx.empty(dtype, shape),
            _ => self.empty_host(ctx, dtype, shape),
        }
    }

    /// A zeroed host tensor for a copy.
    fn empty_host(self, ctx: &mut WorkerContext, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        match self {
            Self::Pinned => ctx.empty_pinned(dtype, shape),
            Self::Shared | Self::Private => Tensor::zeros(dtype, shape),
        }
    }
}

/// Overwrites a tensor of the worker, by a copy from a host tensor in this memory.
pub(crate) fn upload(ctx: &mut WorkerContext, tensor: &Tensor, bytes: &[u8], memory: HostMemory) -> Result<()> {
    let host = memory.empty_host(ctx, tensor.dtype(), tensor.shape().clone())?;
    host.bytes_mut()?.copy_from_slice(bytes);
    ctx.queue().copy_in(tensor, &host)
}

/// The bytes of a tensor of the worker, by a copy to a host tensor in this memory.
pub(crate) fn download(ctx: &mut WorkerContext, tensor: &Tensor, memory: HostMemory) -> Result<Vec<u8>> {
    let host = memory.empty_host(ctx, tensor.dtype(), tensor.shape().clone())?;
    let deadline = ctx.deadline();
    ctx.queue().copy_out(&host, tensor)?;
    ctx.queue().synchronize(deadline)?;
    Ok(host.bytes()?.to_vec())
}
