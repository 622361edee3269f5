//! A test backend that reaches several machines: its communicators have only barriers, which use the session's store.

use std::sync::Arc;
use std::time::Duration;

use disco::{
    Abort, Backend, Capabilities, Communicator, Error, Op, OpKind, Probe, Rank, Result, Store, Unavailable, World,
};
use disco_core::{ConnectParams, Rendezvous};

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
    fn abort(&self, _: &Arc<str>) {}
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
        Capabilities::NONE.with_op(OpKind::Barrier, disco::DType::all())
    }

    fn enqueue(&mut self, group: &[Op]) -> Result<()> {
        for _ in group {
            self.done += 1;
            let name = |what: &str| format!("barrier {} {what}", self.done);
            if self.store.add(&name("count"), 1)? == self.size as i64 {
                self.store.set(&name("all"), b"here")?;
            }
            self.store.wait(&name("all"), self.deadline)?;
        }
        Ok(())
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
