//! Checkpoints of real sessions: every layout and number of workers, damage, failures of workers and of the system.
//!
//! Tests execute this program again as workers and nodes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod crashes;
mod damage;
mod failures;
mod folders;
mod functions;
mod layouts;
mod memory;
mod snapshots;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use disco::checkpoint::{Error, Folder, Layout};
use disco::{Builder, DRef, LaneSession, SessionKind, Tensor, WorkerId, block_on};
use disco_testing::trials;
pub(crate) use disco_testing::trials::tests_of_kinds as tests;
use libtest_mimic::Trial;

fn main() -> ExitCode {
    disco::init();
    for (variable, program) in [
        (failures::SMALL_DISK, failures::on_a_small_disk as fn(&Path)),
        (crashes::FOLDER, crashes::save_until_killed),
        (memory::FOLDER, memory::measure),
    ] {
        if let Some(folder) = std::env::var_os(variable) {
            program(Path::new(&folder));
            return ExitCode::SUCCESS;
        }
    }
    let kinds = [Kind::Threads, Kind::Processes, Kind::Apart, Kind::Nodes];
    let in_all_kinds = snapshots::tests().into_iter().chain(damage::tests());
    let mut trials: Vec<_> = in_all_kinds.flat_map(|test| kinds.map(|kind| trial(test, kind))).collect();
    let in_processes = failures::tests().into_iter().chain(crashes::tests()).chain(memory::tests());
    trials.extend(in_processes.map(|test| trial(test, Kind::Processes)));
    trials.push(trial(failures::OF_WORKER_0, Kind::Apart));
    let in_threads = layouts::tests().into_iter().chain(folders::tests()).chain(damage::tests_of_files());
    trials.extend(in_threads.map(|test| trial(test, Kind::Threads)));
    trials::run(trials, None)
}

/// Where the workers of a session run.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Threads,
    Processes,
    /// Processes, worker 0 too.
    Apart,
    /// Two nodes, with threads.
    Nodes,
}

/// Tests by name.
type Tests = Vec<(&'static str, fn(Kind))>;

fn trial((name, test): (&'static str, fn(Kind)), kind: Kind) -> Trial {
    trials::trial(format!("{name}::{kind:?}"), move || test(kind))
}

/// A session of four workers.
fn session(kind: Kind) -> LaneSession {
    let builder = match kind {
        Kind::Threads => Builder::threads(4),
        Kind::Processes => Builder::processes(4),
        Kind::Apart => Builder::processes(4).apart(true),
        Kind::Nodes => Builder::nodes(2, 2).node_options(|nodes| nodes.workers = SessionKind::Threads),
    };
    builder.start().unwrap()
}

/// A handle with a tensor of its own for each worker, or none.
async fn scattered(session: &LaneSession, make: impl Fn(usize) -> Option<Tensor> + Sync) -> DRef {
    let handle = session.call("tests.none", ()).await.unwrap();
    session.set_each(&handle, |worker| make(worker.index())).await.unwrap();
    handle
}

/// A handle with the same tensor on all workers.
async fn replicated(session: &LaneSession, tensor: &Tensor) -> DRef {
    scattered(session, |_| Some(tensor.clone())).await
}

/// `count` numbers from `first` on.
fn numbers(first: i32, count: usize) -> Tensor {
    Tensor::from_vec((first..).take(count).collect::<Vec<i32>>(), count).unwrap()
}

/// Saves and completes a checkpoint of one replicated tensor, whose first number is 100 times the step, and one that is
/// split.
async fn save_numbers(session: &LaneSession, folder: impl Into<Folder>, step: u64) -> Result<PathBuf, Error> {
    let (same, split) = handles(session, step).await;
    let entries = [("same", &same, Layout::Replicated), ("split", &split, Layout::split(0))];
    let saving = disco::checkpoint::save(session, folder, step, entries).await?;
    Ok(saving.await?.path)
}

async fn handles(session: &LaneSession, step: u64) -> (DRef, DRef) {
    let first = 100 * step as i32;
    let same = replicated(session, &numbers(first, 5)).await;
    let split = scattered(session, |worker| Some(numbers(first + 3 * worker as i32, 3))).await;
    (same, split)
}

/// The elements of a tensor on all workers.
async fn values(session: &LaneSession, handle: &DRef) -> Vec<Vec<i32>> {
    let tensors: Vec<Tensor> = session.get_all(handle).await.unwrap();
    tensors.iter().map(|tensor| tensor.to_vec().unwrap()).collect()
}

/// Asserts that the newest checkpoint that can be loaded is the one of `step` by [`save_numbers`]. Returns the reasons
/// of the refused checkpoints.
fn assert_loads(session: &LaneSession, folder: &Path, step: u64) -> Vec<String> {
    block_on(async {
        let loaded = disco::checkpoint::load(session, folder).await.unwrap().unwrap();
        assert_eq!((loaded.step, &loaded.path), (step, &Folder::new(folder).checkpoint(step)));
        let first = 100 * step as i32;
        let same = values(session, loaded.tensor("same").unwrap()).await;
        let split = values(session, loaded.tensor("split").unwrap()).await;
        assert!(same.iter().all(|same| *same == numbers(first, 5).to_vec::<i32>().unwrap()), "{same:?}");
        assert_eq!(split.concat(), numbers(first, 12).to_vec::<i32>().unwrap());
        loaded.refused.iter().map(|refused| refused.reason.to_string()).collect()
    })
}

/// Names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Calls a function on all workers and waits for it.
async fn call(session: &LaneSession, name: &str, args: impl disco::IntoArgs) {
    session.call(name, args).await.unwrap();
    session.sync_all().await.unwrap();
}

/// Ends a session.
fn end(session: &LaneSession) {
    block_on(session.shutdown()).unwrap();
}

fn worker(index: u32) -> WorkerId {
    WorkerId::new(index)
}
