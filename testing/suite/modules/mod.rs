//! Modules of a program of tests with a `main` of its own.

use std::env;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

use crate::trials;

/// Variable with the only module that runs.
const MODULE: &str = "DISCO_TEST_MODULE";

/// The tests of a module, which run together.
pub(crate) struct Module {
    name: &'static str,
    /// Largest number of tests at a time: none is as many as there are processors.
    most: Option<usize>,
    trials: Vec<Trial>,
}

impl Module {
    pub(crate) fn new(name: &'static str, most: Option<usize>) -> Self {
        Self { name, most, trials: Vec::new() }
    }

    /// With a test that succeeds unless it panics. The name of the module comes before its name.
    pub(crate) fn test(mut self, name: &str, test: impl FnOnce() + Send + 'static) -> Self {
        self.trials.push(trials::trial(format!("{}::{name}", self.name), test));
        self
    }

    /// With tests by name.
    pub(crate) fn tests(self, tests: impl IntoIterator<Item = (&'static str, fn())>) -> Self {
        tests.into_iter().fold(self, |module, (name, test)| module.test(name, test))
    }

    /// Runs this program again for this module only. Returns whether its tests passed.
    fn run_alone(&self) -> bool {
        let mut alone = Command::new(env::current_exe().unwrap());
        alone.args(env::args_os().skip(1)).env(MODULE, self.name);
        alone.status().unwrap().success()
    }

    /// Runs the tests that the command line names. Returns whether they passed.
    fn run(self, mut arguments: Arguments) -> bool {
        if let Some(most) = self.most {
            arguments.test_threads = Some(arguments.test_threads.unwrap_or(most).min(most));
        }
        !libtest_mimic::run(&arguments, self.trials).has_failed()
    }
}

/// Runs the modules that have tests which the command line names, even after a failure. If there are several, each runs
/// in a process of its own, one after the other, because some tests count the resources of their process.
pub(crate) fn run(modules: impl IntoIterator<Item = Module>) -> ExitCode {
    let arguments = Arguments::from_args();
    let only = env::var(MODULE).ok();
    let is_named = |module: &Module| {
        let is_here = only.as_ref().is_none_or(|only| only == module.name);
        is_here && module.trials.iter().any(|trial| !arguments.is_filtered_out(trial))
    };
    let mut named: Vec<Module> = modules.into_iter().filter(is_named).collect();
    let passed = match named.pop() {
        Some(module) if named.is_empty() => module.run(arguments),
        last => named.into_iter().chain(last).filter(|module| !module.run_alone()).count() == 0,
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
