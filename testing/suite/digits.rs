//! The example `digits`: its losses do not depend on the number of workers that share the batches, and its weights do not
//! depend on interruptions.

#[allow(dead_code, reason = "as the test needs")]
#[path = "nccl/alone.rs"]
mod alone;
#[path = "../../examples/digits/checkpoints.rs"]
mod checkpoints;
#[path = "../../examples/digits/data.rs"]
mod data;
#[path = "digits_lost_workers.rs"]
mod lost_workers;
#[path = "../../examples/digits/model.rs"]
mod model;
#[path = "../../examples/digits/random.rs"]
mod random;
#[path = "../../examples/digits/train.rs"]
mod train;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use disco::{
    Abort, Backend, Builder, Capabilities, Communicator, Op, OpKind, Probe, Rank, Result, Unavailable, World, block_on,
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
    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        let rest: Vec<Op> = ops.iter().filter(|op| op.kind() != OpKind::AllReduce).cloned().collect();
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
    train_into(None, workers, backend, epochs)
}

/// Trains with checkpoints in a folder.
fn train_into(folder: Option<&Path>, workers: usize, backend: &str, epochs: usize) -> train::Outcome {
    let (data, held_out) = data::Dataset::load().unwrap().split(0);
    let session = Builder::threads(workers).start().unwrap();
    block_on(async {
        session.init_ccl(backend, &[]).await.unwrap();
        let outcome = train::train(&session, (&data, &held_out), epochs, folder, |_, _| ()).await.unwrap();
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
    let (data, held_out) = data::Dataset::load().unwrap().split(0);
    let session = Builder::threads(3).start().unwrap();
    let refused = block_on(train::train(&session, (&data, &held_out), 1, None, |_, _| ())).unwrap_err();
    assert_eq!(refused.to_string(), "3 workers can't share batches of 64 rows equally");
}

#[test]
fn losses_differ_without_all_reduce() {
    let apart = apart(&losses(1, "local"), &losses(2, "test-double-without-all-reduce"));
    assert!(apart > 1e-2, "only {apart} of the initial loss apart");
}

/// The bits of parameters, velocity and losses of the newest checkpoint, and its step.
fn bits(folder: &Path) -> (u64, [Vec<u32>; 3]) {
    let session = Builder::threads(1).start().unwrap();
    let bits = |elements: &[f32]| elements.iter().map(|element| element.to_bits()).collect::<Vec<_>>();
    let (step, found) = block_on(async {
        let loaded = disco::checkpoint::load(&session, folder).await.unwrap().unwrap();
        let (mut found, step) = ([const { Vec::new() }; 3], loaded.step);
        for (found, name) in found.iter_mut().zip(["params", "velocity"]) {
            let tensor = loaded.tensor(name).unwrap();
            let tensor: disco::Tensor = session.get(tensor, disco::WorkerId::new(0)).await.unwrap();
            *found = bits(&tensor.view::<f32>().unwrap());
        }
        found[2] = bits(&checkpoints::load(&session, folder).await.unwrap().unwrap().results.losses);
        session.shutdown().await.unwrap();
        (step, found)
    });
    (step, found)
}

#[test]
fn a_training_that_continues_from_a_checkpoint_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    train_into(Some(&whole), 2, "local", 4);
    let expected = bits(&whole);
    assert_eq!(expected.0, 4 * 22, "the step is the number of batches");
    let plain: Vec<u32> = train(2, "local", 4).losses.iter().map(|loss| loss.to_bits()).collect();
    assert_eq!(expected.1[2], plain, "checkpoints do not change the training");

    assert_eq!(train_into(Some(&parts), 2, "local", 1).epochs.len(), 1);
    assert_eq!(train_into(Some(&parts), 2, "local", 3).epochs.len(), 3);
    // The newest checkpoint is damaged: the training repeats the epoch, and replaces it.
    let damaged = parts.join("step-000066/worker-0-of-2.safetensors");
    let mut bytes = fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let outcome = train_into(Some(&parts), 2, "local", 4);
    assert_eq!(outcome.losses.len(), 4 * 22);
    assert_eq!(bits(&parts), expected);
    let time = train_into(Some(&parts), 2, "local", 4).time;
    assert!(time.is_zero(), "a complete training has nothing left to do");
}

/// With the test doubles of the GPU libraries; see `testing/suite/nccl`.
#[test]
fn losses_on_gpus_equal_those_on_cpus() {
    alone::run("digits::on_the_double", &[]);
}

#[test]
#[ignore = "run by `losses_on_gpus_equal_those_on_cpus` in another process"]
fn on_the_double() {
    let local = losses(1, "local");
    for (workers, backend) in [(1, "nccl"), (2, "nccl"), (4, "nccl"), (2, "rccl")] {
        let apart = apart(&local, &losses(workers, backend));
        assert!(apart <= 1e-4, "{workers} workers of `{backend}` are {apart} of the initial loss away from `local`");
    }
    // Checkpoints of tensors on devices, in the middle of the training and at its end.
    let folder = tempfile::tempdir().unwrap();
    let begun = train_into(Some(folder.path()), 2, "nccl", EPOCHS - 1).losses;
    assert!(begun.len() < local.len());
    let continued = train_into(Some(folder.path()), 2, "nccl", EPOCHS).losses;
    assert_eq!(continued[..begun.len()], begun);
    let apart = apart(&local, &continued);
    assert!(apart <= 1e-4, "the continued training is {apart} of the initial loss away from `local`");
}
