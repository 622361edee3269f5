//! The example `digits`: its losses do not depend on the number of workers that share the batches.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "as the test needs")]
#[path = "nccl/alone.rs"]
mod alone;
#[path = "../examples/digits/data.rs"]
mod data;
#[path = "../examples/digits/model.rs"]
mod model;
#[path = "../examples/digits/random.rs"]
mod random;
#[path = "../examples/digits/train.rs"]
mod train;

use std::sync::Arc;

use disco::{
    Abort, Backend, Builder, Capabilities, Communicator, DataPlane, Op, OpKind, Probe, Rank, Result, Session,
    Unavailable, World, block_on,
};
use disco_core::{ConnectParams, Rendezvous};

const EPOCHS: usize = 3;

/// The built-in backend with an all-reduce that does nothing, to show that the comparison of losses notices it.
struct NoAllReduce;

#[derive(Debug)]
struct NoAllReduceCommunicator(Box<dyn Communicator>);

impl Backend for NoAllReduce {
    fn name(&self) -> &'static str {
        "test-double-without-all-reduce"
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        disco_local::BACKEND.probe()
    }

    fn rendezvous(&self, world: &World) -> Result<Rendezvous> {
        disco_local::BACKEND.rendezvous(world)
    }

    fn connect(&self, params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
        Ok(Box::new(NoAllReduceCommunicator(disco_local::BACKEND.connect(params, at)?)))
    }
}

impl Communicator for NoAllReduceCommunicator {
    fn rank(&self) -> Rank {
        self.0.rank()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn enqueue(&mut self, group: &[Op]) -> Result<()> {
        let rest: Vec<Op> = group.iter().filter(|op| op.kind() != OpKind::AllReduce).cloned().collect();
        self.0.enqueue(&rest)
    }
    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.0.split(color, key)
    }
    fn synchronize(&mut self) -> Result<()> {
        self.0.synchronize()
    }
    fn aborter(&self) -> Arc<dyn Abort> {
        self.0.aborter()
    }
}

disco_core::register_backend!(NoAllReduce);

fn train(workers: usize, backend: &str, epochs: usize) -> train::Outcome {
    let (data, held_out) = data::Dataset::load(None).unwrap().split(0);
    let session = Builder::threads(workers).start().unwrap();
    block_on(async {
        session.init_ccl(backend, &[]).await.unwrap();
        let outcome = train::train(&session, (&data, &held_out), epochs, |_, _| ()).await.unwrap();
        session.shutdown().await.unwrap();
        outcome
    })
}

fn losses(workers: usize, backend: &str) -> Vec<f32> {
    train(workers, backend, EPOCHS).losses
}

/// The largest difference of two loss curves, relative to the initial loss.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / a[0]
}

#[test]
fn losses_are_equal_with_one_two_and_four_workers() {
    let one = losses(1, "local");
    assert_eq!(one.len(), EPOCHS * 22, "the last partial batch is dropped");
    for workers in [2, 4] {
        let apart = apart(&one, &losses(workers, "local"));
        assert!(apart <= 1e-4, "{workers} workers are {apart} of the initial loss away from one");
    }
}

#[test]
fn held_out_images_are_recognised() {
    let outcome = train(4, "local", 30);
    let accuracy = outcome.epochs.last().unwrap().accuracy;
    assert!(accuracy >= 0.95, "{accuracy}");
    assert!(outcome.images_per_second > 0.0);
    assert_eq!(outcome.bytes_per_step, (64 * 32 + 32 + 32 * 10 + 10 + 1) * 4, "weights, biases and the loss");
    assert!(!outcome.time_in_collectives.is_zero() && outcome.time_in_collectives <= outcome.time);
}

#[test]
fn a_batch_that_workers_can_not_share_equally_is_rejected() {
    let (data, held_out) = data::Dataset::load(None).unwrap().split(0);
    let session = Builder::threads(3).start().unwrap();
    let refused = block_on(train::train(&session, (&data, &held_out), 1, |_, _| ())).unwrap_err();
    assert_eq!(refused.to_string(), "3 workers can't share batches of 64 rows equally");
}

#[test]
fn losses_differ_without_all_reduce() {
    let apart = apart(&losses(1, "local"), &losses(2, "test-double-without-all-reduce"));
    assert!(apart > 1e-2, "only {apart} of the initial loss apart");
}

/// With the test doubles of the GPU libraries; see `tests/nccl`.
#[cfg(target_os = "linux")]
#[test]
fn losses_on_gpus_equal_those_on_cpus() {
    alone::run("on_the_double", &[]);
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by `losses_on_gpus_equal_those_on_cpus` in another process"]
fn on_the_double() {
    let local = losses(1, "local");
    for (workers, backend) in [(1, "nccl"), (2, "nccl"), (4, "nccl"), (2, "rccl")] {
        let apart = apart(&local, &losses(workers, backend));
        assert!(apart <= 1e-4, "{workers} workers of `{backend}` are {apart} of the initial loss away from `local`");
    }
}
