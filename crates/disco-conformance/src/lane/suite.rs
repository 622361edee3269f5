//! Runs the cases on the lanes of a harness.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::cases::{self, Case};
use super::harness::Harness;
use crate::check::{Check, Outcome};

/// Timeout of one case.
const CASE_TIMEOUT: Duration = Duration::from_secs(120);

/// All cases on one kind of lane.
#[derive(Clone, Debug)]
pub struct Suite {
    harness: Arc<dyn Harness>,
}

impl Suite {
    /// The suite of a harness.
    pub fn new(harness: Arc<dyn Harness>) -> Self {
        Self { harness }
    }

    /// All checks. They are the same for every harness.
    pub fn checks() -> Vec<Check> {
        cases::ALL.iter().map(|case| Check::new(case.name)).collect()
    }

    /// Runs one check. A check that hangs fails after two minutes, and its thread is leaked.
    pub fn run(&self, check: &Check) -> Outcome {
        match cases::ALL.iter().find(|case| case.name == check.name()) {
            Some(case) => match self.harness.cannot(case.name) {
                Some(reason) => Outcome::Skipped { reason: reason.into() },
                None => self.run_case(case),
            },
            None => Outcome::Failed { why: "there is no such check".into() },
        }
    }

    fn run_case(&self, case: &'static Case) -> Outcome {
        let (sender, receiver) = mpsc::channel();
        let harness = self.harness.clone();
        let started = thread::Builder::new().name(case.name.into()).spawn(move || sender.send((case.run)(&*harness)));
        let ran = match (started, receiver.recv_timeout(CASE_TIMEOUT)) {
            (Err(error), _) => Err(format!("the system can't start a thread: {error}")),
            (_, Ok(ran)) => ran,
            (_, Err(mpsc::RecvTimeoutError::Timeout)) => Err(format!("no end after {CASE_TIMEOUT:?}")),
            (_, Err(mpsc::RecvTimeoutError::Disconnected)) => Err("the case panicked".into()),
        };
        match ran {
            Ok(()) => Outcome::Passed { executed: 1 },
            Err(why) => Outcome::Failed { why },
        }
    }
}
