//! A backend that wraps another one: `counting` wraps `local` and counts operations. `cargo run --example own_backend`
//!
//! To wrap another backend, replace `disco_local::BACKEND`. All methods are forwarded, also those with a default.
//!
//! `disco-cli/tests/own_backend.rs` makes a command `disco` with this backend, and runs the conformance suite over it.
//! `examples/backend/` is a backend that does not wrap another one.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use disco::{
    Abort, Backend, Builder, Capabilities, Communicator, DType, DeviceKind, Op, Placement, Probe, Rank, Reduction,
    Result, Scope, Tensor, Unavailable, WorkerId, World,
};
use disco_core::{ConnectParams, Rendezvous};

struct Counting;
static COUNTING: Counting = Counting;
disco_core::register_backend!(COUNTING);

/// Number of operations of all ranks in this process.
static OPERATIONS: AtomicUsize = AtomicUsize::new(0);

impl Backend for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn device_kind(&self) -> DeviceKind {
        disco_local::BACKEND.device_kind()
    }
    fn spans_machines(&self) -> bool {
        disco_local::BACKEND.spans_machines()
    }
    fn probe(&self) -> Result<Probe, Unavailable> {
        Ok(Probe::new("this program", env!("CARGO_PKG_VERSION")))
    }
    fn rendezvous(&self, world: &World) -> Result<Rendezvous> {
        disco_local::BACKEND.rendezvous(world)
    }
    fn connect(&self, params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
        Ok(Box::new(Counted(disco_local::BACKEND.connect(params, at)?)))
    }
}

#[derive(Debug)]
struct Counted(Box<dyn Communicator>);

impl Communicator for Counted {
    fn rank(&self) -> Rank {
        self.0.rank()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        OPERATIONS.fetch_add(ops.len(), Ordering::Relaxed);
        self.0.enqueue(ops)
    }
    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        Ok(self.0.split(color, key)?.map(|part| Box::new(Counted(part)) as _))
    }
    fn synchronize(&mut self) -> Result<()> {
        self.0.synchronize()
    }
    fn aborter(&self) -> Arc<dyn Abort> {
        self.0.aborter()
    }
    fn extension(&mut self) -> Option<&mut dyn Any> {
        self.0.extension()
    }
    fn enqueue_with(&mut self, ops: &[Op], launch: &mut dyn FnMut(&mut dyn Any) -> Result<()>) -> Result<()> {
        OPERATIONS.fetch_add(ops.len(), Ordering::Relaxed);
        self.0.enqueue_with(ops, launch)
    }
}

pub(crate) fn main() -> Result<()> {
    let session = Builder::threads(3).start()?;
    disco::block_on(async {
        session.init_ccl("counting", &[]).await?;
        let x = session.empty(DType::F32, [2], Placement::All).await?;
        session.broadcast(&Tensor::from_slice(&[1f32, 2.0], [2])?, &x).await?;
        session.all_reduce(&x, &x, Reduction::Sum, Scope::World).await?;
        let sum: Tensor = session.get(&x, WorkerId::new(2)).await?;
        assert_eq!(sum.to_vec::<f32>()?, [3.0, 6.0]);
        println!("3 workers: sum {:?}, {} operations", sum.to_vec::<f32>()?, OPERATIONS.load(Ordering::Relaxed));
        session.shutdown().await
    })
}
