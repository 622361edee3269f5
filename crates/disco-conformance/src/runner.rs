//! The suite as a test program.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use disco_core::sync;
use libtest_mimic::{Arguments, Completion, Failed, FormatSetting, Trial};

use crate::check::{Check, Outcome};
use crate::harness::Harness;
use crate::require::Required;
use crate::summary::Summary;
use crate::{communicator, lane};

/// A test program that runs the suite over backends and lanes, with tests like `mine::all_reduce::bf16::avg`. It
/// accepts the arguments of Rust's test programs. It is the `main` of a test target with `harness = false`:
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use disco_conformance::{Runner, ThreadSessions};
/// // use my_backend as _; // so that it is linked
///
/// fn main() -> ExitCode {
///     Runner::new().backend(ThreadSessions::of("mine")).main()
/// }
/// ```
///
/// At the end, the program prints for each backend and lane how many checks ran, and the reasons of the skipped ones.
/// If a backend is unavailable, its checks are skipped with the reason, or fail if `DISCO_REQUIRE` has its harness.
#[derive(Debug, Default)]
pub struct Runner {
    required: Required,
    elsewhere: Vec<&'static str>,
    names: Vec<String>,
    trials: Vec<Trial>,
    suites: Vec<SuiteRun>,
    expected: HashMap<&'static str, usize>,
}

/// The suite of one backend or lane in this run.
#[derive(Debug)]
struct SuiteRun {
    name: String,
    /// None for a lane.
    suite: Option<Arc<communicator::Suite>>,
    summary: SharedSummary,
}

/// The outcomes of a suite, which its checks count on several threads.
type SharedSummary = Arc<Mutex<Summary>>;

impl Runner {
    /// A runner without checks. Reads `DISCO_REQUIRE`.
    pub fn new() -> Self {
        Self { required: Required::from_env(), ..Self::default() }
    }

    /// Adds the checks of a backend.
    #[must_use]
    pub fn backend(mut self, harness: impl Harness + 'static) -> Self {
        let (name, absent) = (harness.name().to_owned(), harness.probe().err());
        let is_required = self.required.contains(&name);
        let suite = Arc::new(communicator::Suite::new(Arc::new(harness)));
        let summary = SharedSummary::default();
        let trial = |check: Check| {
            let (suite, summary, absent) = (suite.clone(), summary.clone(), absent.clone());
            Trial::ignorable_test(format!("{name}::{}", check.name()), move || {
                let outcome = match (absent, is_required) {
                    (Some(absent), true) => Outcome::Failed { why: format!("DISCO_REQUIRE: {absent}") },
                    (Some(absent), false) => Outcome::Skipped { reason: absent.to_string() },
                    (None, _) => suite.run(&check),
                };
                completion(outcome, &summary)
            })
        };
        self.trials.extend(communicator::Suite::checks().into_iter().map(trial));
        self.names.push(name.clone());
        self.suites.push(SuiteRun { name, suite: Some(suite), summary });
        self
    }

    /// Adds the checks of a lane.
    #[must_use]
    pub fn lane(mut self, harness: impl lane::Harness + 'static) -> Self {
        let name = harness.name().to_owned();
        let suite = Arc::new(lane::Suite::new(Arc::new(harness)));
        let summary = SharedSummary::default();
        self.trials.extend(lane::Suite::checks().into_iter().map(|check| {
            let (suite, summary, test) = (suite.clone(), summary.clone(), format!("{name}::{}", check.name()));
            Trial::ignorable_test(test, move || completion(suite.run(&check), &summary))
        }));
        self.names.push(name.clone());
        self.suites.push(SuiteRun { name, suite: None, summary });
        self
    }

    /// Permits these names in `DISCO_REQUIRE`, which other test programs use. Any other unknown name is a failure.
    #[must_use]
    pub fn required_elsewhere(mut self, names: impl IntoIterator<Item = &'static str>) -> Self {
        self.elsewhere.extend(names);
        self
    }

    /// Makes a run of all checks fail unless this backend skips none and executes exactly `cases` sub-cases, each
    /// counted on each worker. So cases that are lost by accident are noticed. The error text has the actual number.
    #[must_use]
    pub fn executes(mut self, name: &'static str, cases: usize) -> Self {
        self.expected.insert(name, cases);
        self
    }

    /// Runs the checks that the arguments of this process select, and returns the exit status.
    pub fn main(self) -> ExitCode {
        let mut arguments = Arguments::from_args();
        // Without a filter there are hundreds of checks, which are printed as dots.
        arguments.quiet |= arguments.filter.is_none() && arguments.format.is_none();
        let known: Vec<&str> = self.names.iter().map(String::as_str).chain(self.elsewhere).collect();
        if let Some(unknown) = self.required.unknown(&known).next() {
            println!("DISCO_REQUIRE has the unknown name `{unknown}`; this program has {}", self.names.join(", "));
            return ExitCode::FAILURE;
        }
        if let Some(name) = self.expected.keys().find(|name| !self.names.iter().any(|known| known == *name)) {
            println!(
                "the number of sub-cases of `{name}` is to be checked, but this program has only {}",
                self.names.join(", ")
            );
            return ExitCode::FAILURE;
        }
        // The JSON format has one object per line.
        let prints_summary = !matches!(arguments.format, Some(FormatSetting::Json));
        let is_whole = arguments.filter.is_none() && arguments.skip.is_empty() && !arguments.list && !arguments.ignored;
        let conclusion = libtest_mimic::run(&arguments, self.trials);
        if let Some(filter) = &arguments.filter
            && !arguments.list
            && conclusion.num_passed + conclusion.num_failed + conclusion.num_ignored == 0
        {
            // Not a failure: `cargo test NAME` passes the filter to all test programs of a package.
            println!("no check has `{filter}` in its name; the names start with {}", self.names.join("::, ") + "::");
        }
        let mut is_good = true;
        for SuiteRun { name, suite, summary } in &self.suites {
            let summary = sync::lock(summary);
            if prints_summary && !summary.is_empty() {
                println!("checks of {name}: {summary}");
            }
            if let Some(Err(error)) = suite.as_ref().map(|suite| suite.close()) {
                println!("{name}: {error}");
                is_good = false;
            }
            if let Some(expected) = self.expected.get(name.as_str()).filter(|_| is_whole && !conclusion.has_failed()) {
                is_good &= has_executed(&summary, name, *expected);
            }
        }
        if is_good { conclusion.exit_code() } else { ExitCode::FAILURE }
    }
}

/// Whether no check was skipped and `expected` sub-cases were executed. Prints a message otherwise.
fn has_executed(summary: &Summary, name: &str, expected: usize) -> bool {
    let (executed, skipped) = (summary.executed(), summary.skipped());
    if skipped > 0 {
        println!("{name}: {skipped} checks were skipped, and all checks must run");
    }
    if executed != expected {
        println!(
            "{name}: {executed} sub-cases were executed, expected {expected}. If this is intended, pass {executed} to \
             `Runner::executes`"
        );
    }
    skipped == 0 && executed == expected
}

/// Counts an outcome and converts it for the test program.
fn completion(outcome: Outcome, summary: &Mutex<Summary>) -> Result<Completion, Failed> {
    sync::lock(summary).count(&outcome);
    match outcome {
        Outcome::Passed { .. } => Ok(Completion::Completed),
        Outcome::Skipped { reason } => Ok(Completion::ignored_with(reason)),
        Outcome::Failed { why } => Err(Failed::from(why)),
    }
}
