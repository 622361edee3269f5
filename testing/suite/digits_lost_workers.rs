//! The example `digits` goes on after the loss of workers: it ends with the same bits, wherever they are lost.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use disco::{Builder, LaneSession, SessionKind, WorkerContext, block_on};
use rustix::process::{Pid, Signal, kill_process};

use super::random::Random;
use super::{bits, data, train, train_into};

const EPOCHS: usize = 4;
/// Largest mean number of losses for each run.
const MOST_LOSSES: usize = 4;

/// Worker function: the process of a worker.
fn process(_: &mut WorkerContext) -> disco::Result<u32> {
    Ok(std::process::id())
}

disco::register_function!("losses.process", process);

/// Sets a flag on drop, also after a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_training_whose_workers_are_killed_ends_with_the_same_bits() {
    disco::init_test!();
    let start = || Builder::processes(4).start().unwrap();
    train_with_losses("local", 5, start, |victim, _| signal(victim, Signal::KILL));
}

/// A node is killed, or cut off: it is stopped, so that it falls silent, and goes on at a later time.
#[test]
fn a_training_whose_nodes_are_killed_or_cut_off_ends_with_the_same_bits() {
    disco::init_test!();
    let start = || {
        let nodes = Builder::nodes(4, 1)
            .node_options(|nodes| nodes.workers = SessionKind::Threads)
            .silence(Duration::from_millis(500))
            .heartbeat(Duration::from_millis(50));
        nodes.start().unwrap()
    };
    let (mut stopped, mut kills, mut stops) = (None, 0, 0);
    train_with_losses("tcp", 3, start, |victim, random| {
        if let Some(node) = stopped.take() {
            // It was replaced, or its session has ended.
            signal(node, Signal::CONT);
        }
        let is_cut = random.uniform(0.0, 1.0) < 0.5;
        stopped = is_cut.then_some(victim);
        let was_there = signal(victim, if is_cut { Signal::STOP } else { Signal::KILL });
        *if is_cut { &mut stops } else { &mut kills } += usize::from(was_there);
        was_there
    });
    println!("{kills} nodes were killed and {stops} stopped during trainings");
}

/// Whether the process still was there.
fn signal(process: u32, signal: Signal) -> bool {
    Pid::from_raw(process as i32).is_some_and(|process| kill_process(process, signal).is_ok())
}

/// Trains in sessions of four workers. At random times, `lose` takes away the process of a worker, and returns whether the
/// process still was there. Each run has another seed; there are 40 times as many runs with `DISCO_LONG_TESTS`.
fn train_with_losses(
    backend: &str,
    runs: usize,
    start: impl Fn() -> LaneSession,
    mut lose: impl FnMut(u32, &mut Random) -> bool + Send,
) {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let begun = Instant::now();
    train_into(Some(&whole), 4, backend, EPOCHS);
    // Losses come before a training of this length is complete.
    let undisturbed = begun.elapsed();
    let expected = bits(&whole);
    let runs = if std::env::var_os("DISCO_LONG_TESTS").is_some() { 40 * runs } else { runs };
    let (data, held_out) = data::Dataset::load().unwrap().split(0);
    let losses = AtomicUsize::new(0);
    for run in 0..runs {
        let parts = folder.path().join(run.to_string());
        let session = start();
        let (is_over, mut random) = (AtomicBool::new(false), Random::new(run as u64));
        // Of all workers.
        let processes = Mutex::<Vec<u32>>::default();
        let (lose, losses, before) = (Mutex::new(&mut lose), &losses, losses.load(Ordering::Relaxed));
        let take_away = |random: &mut Random| {
            let victim = processes.lock().unwrap().get(random.uniform(1.0, 3.99) as usize).copied();
            if let Some(victim) = victim.filter(|_| losses.load(Ordering::Relaxed) < MOST_LOSSES * (run + 1)) {
                losses.fetch_add(usize::from(lose.lock().unwrap()(victim, random)), Ordering::Relaxed);
            }
        };
        // However fast the machine is, each run loses a worker.
        let mut of_epochs = Random::new(run as u64 + 1);
        let latest = of_epochs.uniform(0.0, EPOCHS as f32 - 1.01) as usize;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    thread::sleep(undisturbed.mul_f32(random.uniform(0.1, 0.8)));
                    take_away(&mut random);
                }
            });
            let _over = Over(&is_over);
            let report = |epoch| {
                if epoch >= latest && losses.load(Ordering::Relaxed) == before {
                    take_away(&mut of_epochs);
                }
            };
            block_on(train_in_spite_of_losses(&session, backend, (&data, &held_out), &parts, &processes, report));
        });
        assert_eq!(bits(&parts), expected, "run {run}");
    }
    let losses = losses.into_inner();
    assert!(losses >= runs, "only {losses} workers were lost in {runs} runs");
}

/// Trains until all epochs are complete; `report` gets the number of each one.
async fn train_in_spite_of_losses(
    session: &LaneSession,
    backend: &str,
    data: (&data::Dataset, &data::Dataset),
    folder: &Path,
    processes: &Mutex<Vec<u32>>,
    mut report: impl FnMut(usize),
) {
    let mut trained = Err("the training has not begun".into());
    let mut connected = session.init_ccl(backend, &[]).await.map_err(train::Failure::from);
    while trained.is_err() {
        let train = async {
            connected?;
            let there = session.call("losses.process", ()).await?;
            *processes.lock().unwrap() = session.get_all(&there).await?;
            train::train(session, data, EPOCHS, Some(folder), |epoch, _| report(epoch)).await
        };
        trained = train.await;
        if let Err(failure) = &trained {
            assert!(train::is_loss(failure), "{failure}");
        }
        connected = train::replace(session, backend, &[]).await;
    }
    _ = session.shutdown().await;
}
