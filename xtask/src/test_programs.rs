//! Runs test programs, several at a time, because many of them mostly wait for deadlines.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{self, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, bail, ensure};

use crate::built::{self, Built, root};
use crate::features::ALL_FEATURES;
use crate::time_limit;

/// Arguments of cargo that build the test programs. The step before builds the same, so that the output shows its time.
pub(crate) fn build() -> String {
    format!("test --workspace --all-targets {ALL_FEATURES} --no-run")
}

/// Test programs that take longest and therefore start first.
const FIRST: [&str; 4] = ["conformance", "nccl", "processes", "nodes"];

/// Test programs that run alone at the end: MPI libraries poll without pause while a rank waits.
const ALONE: [&str; 1] = ["mpi"];

/// Programs whose tests mostly wait for deadlines in their own processes.
const WAITING: [&str; 1] = ["disco test nccl"];
/// Number of tests of [`WAITING`] programs that run at a time.
const WAITING_THREADS: &str = "5";

/// Number of the longest programs that are listed at the end.
const LISTED: usize = 8;

/// Limit of a program. The longest takes three minutes on two cores.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(900);

/// How long processes may outlive the programs that started them.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);

/// Time without the end of a program after which the running programs are printed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(180);

/// The most tests that run a second time after a failure. More failures have a cause that a second run doesn't change.
const MOST_REPEATED: usize = 3;

/// Builds the test programs and runs all of them, even after a failure. Prints the output of each when it ends. Runs
/// a few failed tests once more, alone: one that passes then is listed as flaky, and is not a failure.
///
/// # Errors
/// The build fails, a test fails twice, a program fails as a whole, or a program left a running process behind.
pub(crate) fn run() -> Result<()> {
    let mut programs: Vec<_> = built::build(&build())?.into_iter().filter(|program| program.is_test).collect();
    let (count, start) = (programs.len(), Instant::now());
    programs.sort_by_key(|program| FIRST.iter().position(|name| program.is_test_named(name)).unwrap_or(FIRST.len()));
    let (alone, beside): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| ALONE.iter().any(|name| program.is_test_named(name)));
    fs::create_dir_all(outputs()).context("cannot create the folder of the outputs")?;
    // Processes that outlive their parents become children of this one.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("cannot adopt processes")?;
    let slots = thread::available_parallelism().map_or(1, usize::from);
    let mut ended = run_on(slots, beside)?;
    ended.extend(run_on(1, alone)?);
    ended.sort_unstable_by_key(|ended| std::cmp::Reverse(ended.time));
    let times =
        ended.iter().take(LISTED).map(|ended| format!("{} {:.0} s", ended.program.label(), ended.time.as_secs_f64()));
    let times = times.collect::<Vec<_>>().join("; ");
    println!("== {count} test programs in {:.0} s, of which {times}", start.elapsed().as_secs_f64());
    let failed: Vec<_> = ended.into_iter().filter(|ended| !ended.passed).collect();
    let names: Vec<_> = failed.iter().map(|ended| ended.program.label()).collect();
    ensure!(passes_again(failed)?, "{} of {count} test programs failed: {}", names.len(), names.join(", "));
    no_orphans()
}

/// Runs the failed tests of programs once more, and tells whether all passed.
fn passes_again(failed: Vec<Ended>) -> Result<bool> {
    let tests: Vec<_> = failed.iter().map(|ended| failures(&ended.output)).collect();
    // A program that was killed, for one, names no test.
    let are_known = tests.iter().all(|tests| !tests.is_empty());
    if !are_known || tests.iter().map(Vec::len).sum::<usize>() > MOST_REPEATED {
        return Ok(false);
    }
    for (Ended { program, .. }, tests) in failed.into_iter().zip(tests) {
        let since = Instant::now();
        let status = program.run(&[&["--exact".to_owned()], &tests[..]].concat());
        if !Ended::report(program, since.elapsed(), status)?.passed {
            return Ok(false);
        }
        println!("== flaky, passed in the second run: {}", tests.join(", "));
    }
    Ok(true)
}

/// Names of the failed tests in the output of a test program, which lists them at its end.
fn failures(output: &str) -> Vec<String> {
    let (_, list) = output.rsplit_once("\nfailures:\n").unwrap_or_default();
    list.lines().map_while(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
}

/// Checks that no process outlives the programs.
fn no_orphans() -> Result<()> {
    let start = Instant::now();
    let orphans = || time_limit::descendants(process::id());
    while !orphans().is_empty() && start.elapsed() < ORPHAN_TIMEOUT {
        thread::sleep(Duration::from_millis(100));
    }
    let orphans = orphans();
    orphans.iter().for_each(|orphan| time_limit::print(*orphan));
    time_limit::kill(&orphans);
    ensure!(orphans.is_empty(), "{} processes outlived the test programs that started them", orphans.len());
    Ok(())
}

/// The folder of the programs' outputs.
fn outputs() -> PathBuf {
    root().join("target/test-output")
}

/// A program that has ended.
struct Ended {
    program: Built,
    time: Duration,
    passed: bool,
    output: String,
}

/// Runs programs in order, `slots` at a time.
fn run_on(slots: usize, programs: Vec<Built>) -> Result<Vec<Ended>> {
    let (count, queue) = (programs.len(), Mutex::new(VecDeque::from(programs)));
    let running = Mutex::new(Vec::new());
    let (sender, receiver) = mpsc::channel();
    let work = |sender: mpsc::Sender<_>| {
        loop {
            let Some(program) = lock(&queue).pop_front() else { break };
            lock(&running).push(program.label());
            let since = Instant::now();
            let status = program.run(&[]);
            lock(&running).retain(|label| *label != program.label());
            drop(sender.send((program, since.elapsed(), status)));
        }
    };
    thread::scope(|scope| {
        for sender in (0..slots).map(|_| sender.clone()) {
            scope.spawn(|| work(sender));
        }
        let mut ended = Vec::with_capacity(count);
        while ended.len() < count {
            match receiver.recv_timeout(PROGRESS_INTERVAL) {
                Ok((program, time, status)) => ended.push(Ended::report(program, time, status)?),
                Err(RecvTimeoutError::Timeout) => println!("-- still running: {}", lock(&running).join(", ")),
                Err(RecvTimeoutError::Disconnected) => bail!("a thread that runs test programs panicked"),
            }
        }
        Ok(ended)
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ended {
    /// Prints the output of a program below its label.
    fn report(program: Built, time: Duration, status: Result<ExitStatus>) -> Result<Self> {
        let (label, passed) = (program.label(), status.as_ref().is_ok_and(ExitStatus::success));
        let status = status.map_or_else(|error| format!("{error:#}"), |status| status.to_string());
        println!("-- {label}: {:.1} s, {status}", time.as_secs_f64());
        let output = fs::read(program.output()).with_context(|| format!("cannot read the output of {label}"))?;
        let output = String::from_utf8_lossy(&output).into_owned();
        print!("{output}");
        Ok(Self { program, time, passed, output })
    }
}

impl Built {
    fn is_test_named(&self, name: &str) -> bool {
        self.kind == "test" && self.name == name
    }

    /// Package, kind and name, such as `disco-tests test nodes`.
    fn label(&self) -> String {
        // `file:///…/disco-core#0.1.0`, or `file:///…/tests#disco-tests@0.1.0` if the folder has another name.
        let (folder, version) = self.package.rsplit_once('#').unwrap_or((&self.package, ""));
        let package = match version.split_once('@') {
            Some((name, _)) => name,
            None => folder.rsplit('/').next().unwrap_or(folder),
        };
        format!("{package} {} {}", self.kind, self.name)
    }

    /// The file of the program's output. A pipe would stay open while an orphan of the program lives.
    fn output(&self) -> PathBuf {
        outputs().join(self.label().replace(' ', "-"))
    }

    /// Runs the program with these arguments to its end or its limit.
    fn run(&self, args: &[String]) -> Result<ExitStatus> {
        let output = File::create(self.output()).context("cannot create the file of the output")?;
        let errors = output.try_clone().context("cannot share the file of the output")?;
        let mut command = self.command();
        command.args(args).stdin(Stdio::null()).stdout(output).stderr(errors);
        time_limit::wait(&mut command.spawn().context("cannot start the program")?, PROGRAM_TIMEOUT)
    }

    /// A command that starts the program as cargo does.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.arg("--quiet").current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        if WAITING.contains(&&*self.label()) && env::var_os("RUST_TEST_THREADS").is_none() {
            command.env("RUST_TEST_THREADS", WAITING_THREADS);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::failures;

    #[test]
    fn failed_tests_are_read_from_the_list_at_the_end() {
        let output = "running 3 tests\n..F\nfailures:\n\n---- deep::one stdout ----\n    no name\n\n\nfailures:\n    deep::one\n    two\n\ntest result: FAILED. 1 passed\n";
        assert_eq!(failures(output), ["deep::one", "two"]);
        assert_eq!(failures("running 1 test\n.\ntest result: ok.\n"), [""; 0]);
        assert_eq!(failures("signal: 11"), [""; 0]);
    }
}
