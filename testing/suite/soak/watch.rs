//! The soak's log of steps and its watchdog.

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
        let last = || STEPS.lock().unwrap().back().map(|(at, _)| at.elapsed());
        poll(Duration::MAX, || last().filter(|last| *last > STEP_LIMIT));
        eprintln!("soak: no end of a step after {STEP_LIMIT:?}\n{}", report());
        process::abort();
    });
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident() -> usize {
    let pages: usize = fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
