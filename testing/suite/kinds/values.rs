//! Values and tensors of any size in `get`, `set` and arguments.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco::error::ErrorKind;
use disco::{Builder, DRef, Error, LaneSession, Result, SessionKind, Tensor, WorkerId, WorkerRange, World, block_on};
use disco_channel::processes::{self, ProcessLane};
use disco_channel::threads::ThreadLane;
use disco_core::link::Shared;
use disco_core::session::Deadlines;
use disco_core::worker::{self, WorkerConfig};

use super::{Kind, SOON, within};
use crate::with_session::with_session;

super::tests!(
    other_workers_get_the_original_of_an_argument_that_worker_0_modifies,
    a_value_above_the_limit_is_an_error_that_names_the_alternatives,
    a_worker_that_dies_during_the_transfer_of_a_tensor_is_named,
    lists_and_pairs_are_arguments_and_results,
);

/// Sessions of two or four workers that cover all transports of tensors to workers.
fn sessions(kind: Kind) -> Vec<(&'static str, LaneSession)> {
    let start = |builder: Builder| builder.start().unwrap();
    match kind {
        Kind::Threads => vec![("threads", start(Builder::threads(2)))],
        Kind::Processes => {
            vec![("shared memory", start(Builder::processes(2))), ("sockets", without_shared_memory(2))]
        }
        Kind::ProcessesApart => vec![("shared memory", start(kind.builder(2)))],
        Kind::NodesApart => vec![("processes of nodes", start(kind.builder(4)))],
        Kind::Nodes => vec![
            (
                "threads of nodes",
                start(Builder::nodes(2, 1).node_options(|nodes| nodes.workers = SessionKind::Threads)),
            ),
            ("processes of nodes", start(Builder::nodes(2, 2))),
        ],
    }
}

/// Runs a test with each of the [`sessions`], and shuts it down.
fn with_sessions(kind: Kind, test: impl AsyncFn(&'static str, &LaneSession)) {
    for (name, session) in sessions(kind) {
        block_on(async {
            test(name, &session).await;
            session.shutdown().await.unwrap();
        });
    }
}

/// A session whose worker 0 is a thread and whose other workers are processes that get commands over sockets.
fn without_shared_memory(workers: u32) -> LaneSession {
    let world = World::new(workers as usize, 1).unwrap();
    let config = WorkerConfig::new(world);
    let shared = Arc::<Shared>::default();
    let run = move |worker, endpoint| worker::run(worker, config, endpoint);
    let mut options = processes::Options::new(config);
    options.ring = false;
    let (first, others) = (WorkerRange::new(0..1), WorkerRange::new(1..workers));
    let lanes = vec![
        Arc::new(ThreadLane::new(first, shared.clone(), run)) as Arc<dyn disco_core::Channel>,
        Arc::new(ProcessLane::new(others, shared, options)),
    ];
    LaneSession::start(world, lanes, Deadlines::default()).unwrap()
}

/// A tensor of pseudo-random bytes that depend on `seed`. They repeat after a prime number of bytes, so that no part can
/// take the place of another one.
fn pattern(bytes: usize, seed: usize) -> Tensor {
    const PERIOD: usize = 100_003;
    let mut word = seed as u64;
    let mut words = || {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        word.to_le_bytes()
    };
    let mut elements: Vec<u8> = (0..PERIOD.min(bytes).div_ceil(8)).flat_map(|_| words()).collect();
    elements.truncate(PERIOD.min(bytes));
    while elements.len() < bytes {
        elements.extend_from_within(..elements.len().min(bytes - elements.len()));
    }
    Tensor::from_vec(elements, [bytes]).unwrap()
}

fn same(a: &Tensor, b: &Tensor) -> bool {
    (a.dtype(), a.shape()) == (b.dtype(), b.shape()) && *a.bytes().unwrap() == *b.bytes().unwrap()
}

fn last(session: &LaneSession) -> WorkerId {
    WorkerId::new(session.world().size() as u32 - 1)
}

/// A handle whose registers hold an integer.
async fn integer(session: &LaneSession) -> Result<DRef> {
    session.call("tests.count", (1,)).await
}

fn other_workers_get_the_original_of_an_argument_that_worker_0_modifies(kind: Kind) {
    // Workers that are threads share the tensor itself.
    for (name, session) in sessions(kind).into_iter().filter(|_| kind != Kind::Threads) {
        block_on(async {
            let mut right = 0;
            for round in 0..20 {
                let x = Tensor::from_vec(vec![1u64; 1 << 17], [1 << 17]).unwrap();
                let sums = session.call("tests.increment", (&x,)).await.unwrap();
                match session.get_all::<u64>(&sums).await {
                    Ok(sums) => {
                        right += 1;
                        assert!(sums.iter().all(|sum| *sum == 2 << 17), "{name}, round {round}: {sums:?}");
                    }
                    // The tensor was still being sent to the other workers.
                    Err(Error::Worker(failure)) if failure.worker == WorkerId::new(0) => {
                        assert_eq!(failure.kind, ErrorKind::Busy, "{name}, round {round}: {failure}");
                        session.recover().await.unwrap();
                    }
                    Err(error) => panic!("{name}, round {round}: {error}"),
                }
            }
            println!("{name}: {right} of 20 rounds did not find the tensor busy");
            session.shutdown().await.unwrap();
        });
    }
}

fn a_value_above_the_limit_is_an_error_that_names_the_alternatives(kind: Kind) {
    if kind == Kind::Threads {
        return;
    }
    let limit = 100 << 10;
    with_session(kind.builder(2).value_limit(limit), async |session| {
        let (largest, above) = (pattern(limit, 1), pattern(limit + 1, 1));
        let (handle, worker) = (integer(session).await.unwrap(), last(session));
        session.set(&handle, worker, (&largest).into()).await.unwrap();
        let refused = session.set(&handle, worker, (&above).into()).await.unwrap_err();
        let instead = |text: &'static str| if kind.is_apart() { "" } else { text };
        assert_eq!(
            refused.to_string(),
            "set: a value of 102401 bytes for worker 1 can't go to another process, the limit is 102400 bytes for the values of one \
             command; raise the limit (`value_limit`)"
                .to_owned()
                + instead(
                    ", or copy the tensor to worker 0 (`copy_to_worker_0`), and send it from there (`send_to_worker`)"
                )
        );
        assert!(matches!(refused, Error::Invalid(_)));
        let refused = session.call("kinds.sum", (&above,)).await.unwrap_err().to_string();
        assert_eq!(
            refused,
            "call: arguments of 102401 bytes can't go to another process, the limit is 102400 bytes for the values of one command; \
             raise the limit (`value_limit`)"
                .to_owned()
                + instead(
                    ", or copy the tensor to worker 0 (`copy_to_worker_0`), pass it on (`broadcast_from`), and call with \
                     its handle"
                )
        );
        let back: Tensor = session.get(&handle, worker).await.unwrap();
        assert!(same(&largest, &back));
        session.set(&handle, WorkerId::new(0), (&largest).into()).await.unwrap();
        let larger = session.call("tests.double", (&handle, "and", &pattern(1, 1))).await.unwrap();
        let refused = session.value(&larger, worker).await.unwrap_err().to_string();
        assert!(
            refused.starts_with("worker 1: reply ")
                && refused.ends_with(
                    "a value of 102401 bytes can't go to the controller, the limit is 102400 bytes for the value of one reply; raise \
                     the limit (`value_limit`), or send the tensor to worker 0 (`send_to_worker`) if that is a thread of \
                     the controller, whose values have no limit"
                ),
            "{refused}"
        );
        worker_0_takes_a_value_above_the_limit_if_it_is_a_thread(session, &above, kind).await;
        session.sync_all().await.unwrap();
    });
}

async fn worker_0_takes_a_value_above_the_limit_if_it_is_a_thread(session: &LaneSession, above: &Tensor, kind: Kind) {
    let handle = integer(session).await.unwrap();
    match session.set(&handle, WorkerId::new(0), above.into()).await {
        Ok(()) => {
            let back: Tensor = session.get(&handle, WorkerId::new(0)).await.unwrap();
            assert!(same(above, &back) && !kind.is_apart());
        }
        Err(error) => assert!(kind.is_apart(), "worker 0 is a thread of this process: {error}"),
    }
}

fn a_worker_that_dies_during_the_transfer_of_a_tensor_is_named(kind: Kind) {
    if kind == Kind::Threads {
        return;
    }
    for (name, session) in sessions(kind) {
        let start = Instant::now();
        let told = within(2 * SOON, name, move || {
            block_on(async {
                let (handle, worker) = (integer(&session).await.unwrap(), last(&session));
                // The worker takes no command after these calls.
                _ = session.call("tests.nap_of", (worker.index(), 0.3)).await.unwrap();
                _ = session.call("kinds.exit", (worker.index(),)).await.unwrap();
                let refused = session.set(&handle, worker, (&pattern(64 << 20, 1)).into()).await.unwrap_err();
                // Fails if the loss is not known yet.
                _ = session.shutdown().await;
                refused.to_string()
            })
        });
        assert!(told.contains("worker") && told.contains("lost"), "{name}: {told}");
        assert!(start.elapsed() < Duration::from_secs(20), "{name}");
    }
}

fn lists_and_pairs_are_arguments_and_results(kind: Kind) {
    with_sessions(kind, async |name, session| {
        let rates = vec![0.5f32, 1e-7, -3.0];
        let names = vec!["a".to_owned(), "b".to_owned()];
        let args = (rates.clone(), names.clone(), vec![7usize, 0], (3, "three"));
        let all = session.call("tests.lists", args).await.unwrap();
        for (of_rates, of_names) in session.get_all::<(Vec<f32>, Vec<String>)>(&all).await.unwrap() {
            assert_eq!(of_rates, rates, "{name}");
            assert_eq!(of_names, ["a", "b", "7", "0", "3", "three"], "{name}");
        }
        let error = session.get::<Vec<f64>>(&all, WorkerId::new(1)).await.unwrap_err().to_string();
        assert_eq!(error, "get: expected an array of floats, worker 1 has an array");
    });
}
