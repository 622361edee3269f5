//! Memory of copies that workers keep between saves: random programs, whose checkpoints have the values of the time of each
//! save; and the memory of the process.

use std::path::Path;
use std::process::Command;

use disco::checkpoint::{self, Error, Folder, Layout, Saving};
use disco::{Builder, DRef, LaneSession, block_on};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Kind, call, end, names, session, worker};

crate::tests![
    tests: every_checkpoint_has_the_values_of_the_time_of_its_save,
    memory_is_released_by_a_save_without_the_option_and_at_the_end_of_the_session,
];

/// Elements of the tensors: a part of a block, several blocks, a chunk of the writer and more.
const COUNTS: [usize; 5] = [1, 700, 3_000, 40_000, 1_200_000];

/// Bytes that a worker may write to a file while a save should fail, and otherwise.
const SMALL_FILE: u64 = 100;
const LARGE_FILE: u64 = 1 << 40;

#[derive(Clone, Debug)]
enum Step {
    /// Makes tensors of another size.
    Make(usize),
    /// Overwrites the tensors.
    Train,
    Save {
        reuse: bool,
    },
    /// Completes a save that was started, and loads the checkpoint.
    Finish(prop::sample::Index),
    /// Drops a save that was started.
    Abandon(prop::sample::Index),
    /// A save that fails on worker 1.
    Fail {
        reuse: bool,
    },
    /// Kills worker 1, and replaces it or goes on without it.
    Kill {
        replace: bool,
    },
    Resize(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..COUNTS.len()).prop_map(Step::Make),
        4 => Just(Step::Train),
        8 => prop::bool::weighted(0.8).prop_map(|reuse| Step::Save { reuse }),
        6 => any::<prop::sample::Index>().prop_map(Step::Finish),
        2 => any::<prop::sample::Index>().prop_map(Step::Abandon),
        1 => any::<bool>().prop_map(|reuse| Step::Fail { reuse }),
        1 => any::<bool>().prop_map(|replace| Step::Kill { replace }),
        1 => (2usize..5).prop_map(Step::Resize),
    ]
}

/// A save that was started, and the seed and the number of elements of its tensors.
struct Running<'s> {
    saving: Saving<'s>,
    step: u64,
    seed: i32,
    count: usize,
    /// Whether its files could not grow for a while.
    may_fail: bool,
}

struct Program<'s> {
    session: &'s LaneSession,
    folder: &'s Path,
    step: u64,
    seed: i32,
    count: usize,
    /// A tensor that is split, and a replicated one.
    tensors: (DRef, DRef),
    running: Vec<Running<'s>>,
}

impl<'s> Program<'s> {
    async fn new(session: &'s LaneSession, folder: &'s Path) -> Self {
        let (count, none) = (COUNTS[1], async || session.call("tests.none", ()).await.unwrap());
        let tensors = (none().await, none().await);
        let mut program = Self { session, folder, step: 0, seed: 0, count, tensors, running: Vec::new() };
        program.make().await;
        program
    }

    async fn make(&mut self) {
        self.seed += 1;
        let make = async |own: bool| self.session.call("tests.pattern", (self.count, self.seed, own)).await.unwrap();
        self.tensors = (make(true).await, make(false).await);
        self.session.sync_all().await.unwrap();
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Make(count) => {
                self.count = COUNTS[count];
                self.make().await;
            }
            Step::Train => {
                self.seed += 1;
                self.session.call("tests.refill", (&self.tensors.0, self.seed, true)).await.unwrap();
                self.session.call("tests.refill", (&self.tensors.1, self.seed, false)).await.unwrap();
            }
            Step::Save { reuse } => {
                let running = self.save(reuse).await;
                self.running.push(running);
            }
            Step::Finish(index) if !self.running.is_empty() => {
                let running = self.running.remove(index.index(self.running.len()));
                self.finish(running).await;
            }
            Step::Abandon(index) if !self.running.is_empty() => {
                drop(self.running.remove(index.index(self.running.len())));
            }
            Step::Finish(_) | Step::Abandon(_) => {}
            Step::Fail { reuse } => self.fail(reuse).await,
            Step::Kill { replace } => {
                let processes = self.session.call("tests.process", ()).await.unwrap();
                let process: i64 = self.session.get(&processes, worker(1)).await.unwrap();
                kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
                while self.session.sync_all().await.is_ok() {}
                if replace {
                    drop(self.session.replace_lost().await.unwrap())
                } else {
                    drop(self.session.resize(2.max(self.session.world().size() - 1)).await.unwrap())
                }
                self.give_up().await;
                self.make().await;
            }
            Step::Resize(workers) if workers != self.session.world().size() => {
                self.session.resize(workers).await.unwrap();
                self.give_up().await;
                self.make().await;
            }
            Step::Resize(_) => {}
        }
    }

    async fn save(&mut self, reuse: bool) -> Running<'s> {
        self.step += 1;
        let folder = Folder::new(self.folder).reuse_memory(reuse);
        let entries = [("split", &self.tensors.0, Layout::split(0)), ("same", &self.tensors.1, Layout::Replicated)];
        let saving = checkpoint::save(self.session, folder, self.step, entries).await.unwrap();
        Running { saving, step: self.step, seed: self.seed, count: self.count, may_fail: false }
    }

    async fn finish(&self, running: Running<'_>) {
        let path = match running.saving.await {
            Ok(saved) => saved.path,
            Err(Error::Io { worker: Some(by), source, .. }) if running.may_fail => {
                assert_eq!((by, source.raw_os_error()), (worker(1), Some(27)));
                return;
            }
            Err(other) => panic!("{other}"),
        };
        let folder = Folder::new(self.folder);
        folder.verify(running.step).unwrap();
        // The newest checkpoint is loaded.
        for later in folder.steps().unwrap().into_iter().filter(|step| *step > running.step) {
            std::fs::remove_dir_all(folder.checkpoint(later)).unwrap();
        }
        let loaded = checkpoint::load(self.session, folder).await.unwrap().unwrap();
        assert_eq!((loaded.step, &loaded.path, loaded.refused.len()), (running.step, &path, 0));
        for (name, own) in [("split", true), ("same", false)] {
            let args = (loaded.tensor(name).unwrap(), running.count, running.seed, own);
            let found = self.session.call("tests.is_pattern", args).await.unwrap();
            let found: Vec<bool> = self.session.get_all(&found).await.unwrap();
            assert!(found.iter().all(|is_right| *is_right), "step {}, `{name}`: {found:?}", running.step);
        }
    }

    /// Ends all saves after a change of workers: each has lost a worker, or fails to write. The session is usable afterwards.
    async fn give_up(&mut self) {
        for Running { saving, .. } in std::mem::take(&mut self.running) {
            let text = saving.await.unwrap_err().to_string();
            let ends = ["; save again", "writing the shard failed: File too large (os error 27)"];
            assert!(ends.iter().any(|end| text.ends_with(end)), "{text}");
        }
    }

    /// A save whose file on worker 1 can't grow. Saves that are being written may fail, too.
    async fn fail(&mut self, reuse: bool) {
        call(self.session, "tests.limit_files", (SMALL_FILE,)).await;
        let Running { saving, .. } = self.save(reuse).await;
        self.running.iter_mut().for_each(|running| running.may_fail = true);
        // A replicated tensor of one element may be all that worker 0 writes, but worker 1 has its part of the other.
        let error = saving.await.unwrap_err();
        assert!(matches!(error, Error::Io { worker: Some(by), .. } if by == worker(1)), "{error}");
        call(self.session, "tests.limit_files", (LARGE_FILE,)).await;
    }
}

fn every_checkpoint_has_the_values_of_the_time_of_its_save(_: Kind) {
    let config = Config { cases: 24, max_shrink_iters: 20, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&proptest::collection::vec(step(), 10..40), |steps| {
            let folder = tempfile::tempdir().unwrap();
            let session = Builder::processes(3).start().unwrap();
            block_on(async {
                let mut program = Program::new(&session, folder.path()).await;
                for step in steps {
                    program.take(step).await;
                }
                for running in std::mem::take(&mut program.running) {
                    program.finish(running).await;
                }
            });
            end(&session);
            assert!(names(folder.path()).iter().all(|name| name.starts_with("step-")));
            Ok(())
        })
        .unwrap();
}

/// The variable with the folder of the program that measures its memory.
pub(crate) const FOLDER: &str = "CHECKPOINT_MEMORY_FOLDER";

fn memory_is_released_by_a_save_without_the_option_and_at_the_end_of_the_session(_: Kind) {
    let folder = tempfile::tempdir().unwrap();
    // A program of its own: other tests need memory, too.
    let ran = Command::new(std::env::current_exe().unwrap()).env(FOLDER, folder.path()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// MiB of this process that are in memory.
fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<i64>().unwrap() / 1024
}

/// Saves tensors of 128 MiB by four threads, and measures the memory that stays.
pub(crate) fn measure(folder: &Path) {
    let session = session(Kind::Threads);
    let large = block_on(async {
        let large = session.call("tests.large", (8 << 20,)).await.unwrap();
        session.sync_all().await.unwrap();
        large
    });
    let before = resident();
    let after = |step: u64, reuse: bool| {
        let folder = Folder::new(folder).keep(1).reuse_memory(reuse);
        let entries = [("x", &large, Layout::PerWorker)];
        block_on(async { checkpoint::save(&session, folder, step, entries).await?.await }).unwrap();
        resident() - before
    };
    let grown = [after(1, false), after(2, true), after(3, true), after(4, false), after(5, true)];
    for (grown, keeps) in grown.into_iter().zip([false, true, true, false, true]) {
        let expected = if keeps { 100..160 } else { -60..40 };
        assert!(expected.contains(&grown), "MiB more after each save: {grown:?}");
    }
    drop(large);
    end(&session);
    drop(session);
    let freed = before - resident();
    assert!(freed > 90, "only {freed} MiB of the tensors' 128 MiB are free");
}
