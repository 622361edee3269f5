//! The soak's log of steps, its watchdog, and a count of the resources that it leaves behind.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use disco_conformance::waiting::poll;

/// Maximum duration of one step; longer than all deadlines of the sessions.
const STEP_LIMIT: Duration = Duration::from_secs(60);
/// Number of steps in a report.
const REPORTED_STEPS: usize = 60;

static STEPS: Mutex<VecDeque<(Instant, String)>> = Mutex::new(VecDeque::new());

/// Records a step for reports.
pub(crate) fn step(what: impl fmt::Display) {
    let mut steps = STEPS.lock().unwrap();
    steps.push_back((Instant::now(), what.to_string()));
    if steps.len() > REPORTED_STEPS {
        steps.pop_front();
    }
}

/// The last steps, in order, each with the seconds since then.
pub(crate) fn report() -> String {
    let steps = STEPS.lock().unwrap();
    steps.iter().map(|(at, what)| format!("  {:7.3} s ago: {what}\n", at.elapsed().as_secs_f64())).collect()
}

/// Aborts the program with a report if no step is recorded within [`STEP_LIMIT`].
pub(crate) fn start_watchdog() {
    step("the soak starts");
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_secs(1));
            let last = STEPS.lock().unwrap().back().map(|(at, _)| at.elapsed());
            if last.is_some_and(|last| last > STEP_LIMIT) {
                eprintln!("soak: no end of a step after {STEP_LIMIT:?}\n{}", report());
                process::abort();
            }
        }
    });
}

/// Numbers of this process's resources that sessions use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) children: usize,
    pub(crate) descriptors: usize,
    pub(crate) segments: usize,
    /// Threads whose names start with `disco-`.
    pub(crate) threads: usize,
}

impl Resources {
    pub(crate) fn now() -> Self {
        let count = |folder: &str| fs::read_dir(folder).unwrap().count();
        let of_tasks = |file: &str| {
            // A thread may end meanwhile.
            let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
            tasks.filter_map(|task| fs::read_to_string(task.path().join(file)).ok()).collect::<Vec<_>>()
        };
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            children: of_tasks("children").iter().map(|list| list.split_whitespace().count()).sum(),
            descriptors: count("/proc/self/fd"),
            segments: maps.lines().filter(|line| line.contains("memfd:disco")).count(),
            threads: of_tasks("comm").iter().filter(|name| name.starts_with("disco-")).count(),
        }
    }

    /// Whether the resources equal these within 10 s: the system lists a thread for a moment after it was joined.
    pub(crate) fn are_restored(self) -> bool {
        poll(Duration::from_secs(10), || (Self::now() == self).then_some(())).is_some()
    }
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident() -> usize {
    let pages: usize = fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
