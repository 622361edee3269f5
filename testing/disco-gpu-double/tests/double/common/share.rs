//! Runs a test in several processes, each with a share of the ranks.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;
use std::{env, fs};

use disco_gpu_double::nccl::abi::UniqueId;

use super::child::{again, to_bytes, to_text};
use super::poll;

const PROCESS_VARIABLE: &str = "GPU_DOUBLE_TEST_PROCESS";
const PROCESSES_VARIABLE: &str = "GPU_DOUBLE_TEST_PROCESSES";
const FOLDER_VARIABLE: &str = "GPU_DOUBLE_TEST_FOLDER";
/// Time limit of a process, which only a hang reaches.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(120);

/// The share of the ranks that this process runs.
pub(crate) struct Share {
    process: usize,
    processes: usize,
    folder: PathBuf,
}

impl Share {
    /// The share of this process, if it was started with one.
    pub(crate) fn own() -> Option<Self> {
        let number = |name| env::var(name).ok().and_then(|number| number.parse().ok());
        let folder = env::var_os(FOLDER_VARIABLE)?.into();
        Some(Self { process: number(PROCESS_VARIABLE)?, processes: number(PROCESSES_VARIABLE)?, folder })
    }

    /// Whether this process runs a rank.
    pub(crate) fn has(&self, rank: usize) -> bool {
        rank % self.processes == self.process
    }

    /// The unique id of the test's n-th communicator. The processes make the ids in turn and pass them on in files.
    pub(crate) fn unique_id(&self, n: usize, make: impl FnOnce() -> UniqueId) -> UniqueId {
        let file = self.folder.join(n.to_string());
        if n % self.processes == self.process {
            let id = make();
            let whole = file.with_extension("new");
            fs::write(&whole, to_text(&id.internal)).unwrap();
            fs::rename(whole, file).unwrap();
            return id;
        }
        let text = super::wait_until(|| fs::read_to_string(&file).ok());
        UniqueId { internal: to_bytes(&text).try_into().unwrap() }
    }
}

/// Runs a test in `processes` processes, and asserts that all of them pass.
pub(crate) fn passes_in_processes(test: &str, processes: usize) {
    let folder = env::temp_dir().join(format!("gpu-double-{test}-{}-{processes}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let outcomes = thread::scope(|scope| {
        let start = |process| {
            let folder = &folder;
            scope.spawn(move || run(test, (process, processes), folder))
        };
        let running = (0..processes).map(start).collect::<Vec<_>>();
        running.into_iter().map(|process| process.join().unwrap()).collect::<Vec<_>>()
    });
    fs::remove_dir_all(&folder).unwrap();
    for (process, outcome) in outcomes.into_iter().enumerate() {
        assert!(outcome.contains("1 passed"), "process {process} of {test}:\n{outcome}");
    }
}

/// Runs a process and returns its output. A process that hangs is killed.
fn run(test: &str, (process, processes): (usize, usize), folder: &Path) -> String {
    let log = folder.join(format!("log-{process}"));
    let mut command = again(test);
    command
        .env(FOLDER_VARIABLE, folder)
        .env(PROCESS_VARIABLE, process.to_string())
        .env(PROCESSES_VARIABLE, processes.to_string());
    let file = fs::File::create(&log).unwrap();
    let outputs = (Stdio::from(file.try_clone().unwrap()), Stdio::from(file));
    let mut child = command.stdout(outputs.0).stderr(outputs.1).spawn().unwrap();
    if poll(PROCESS_TIMEOUT, || child.try_wait().unwrap()).is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    fs::read_to_string(log).unwrap()
}
