//! Runs test programs and examples, several at a time, because many of them mostly wait for deadlines.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum as _};

use crate::built::{self, Built, root};
use crate::examples::EXAMPLES;
use crate::groups::Group;
use crate::table::{self, Row};
use crate::time_limit::{self, Exit};
use disco_testing::features::ALL_FEATURES;

/// Modules of test programs that run as if they were programs of their own. The program's other modules run together.
const MODULES: [(&str, &[&str]); 4] = [
    ("disco-runtime-cli test cli", &["commands", "gpus", "nodes", "status"]),
    ("disco-serve test serve", &["http", "program"]),
    ("disco-tests test sessions", &["kinds", "launchers", "nodes", "processes", "soak", "subsets"]),
    ("disco-tests test standard", &["failure", "replacement", "session", "template"]),
];

/// Programs that take longest and therefore start first.
const FIRST: [&str; 5] = [
    "disco-runtime-cli test mpi",
    "disco-runtime-cli test cli gpus::",
    "disco-tests test conformance",
    "disco-nccl test kernels",
    "disco-tests test sessions soak::",
];

/// The tests of the Python package, which this program runs.
const PYTHON: &str = "xtask bin xtask python";

/// Programs that wait for half of their time or more. They run beside the others, the longest first.
const WAITING: [&str; 11] = [
    PYTHON,
    "disco-tests test sessions processes::",
    "disco-tests test nccl",
    "disco-tests test sessions nodes::",
    "disco-runtime-cli test cli nodes::",
    "disco-tests test sessions subsets::",
    "disco-runtime-cli test cli status::",
    "disco-tests test standard replacement::",
    "disco-conformance test doubles",
    "disco-tests test standard failure::",
    "disco-tests test sessions launchers::",
];
/// Number of [`WAITING`] programs that run at a time.
const WAITING_SLOTS: usize = 2;

/// The test harness's variable with the number of tests at a time.
const THREADS: &str = "RUST_TEST_THREADS";

/// Variables of programs: the number of tests at a time of one whose tests mostly wait in their own processes, and the only
/// backend of two others.
const VARIABLES: [(&str, &str, &str); 3] = [
    ("disco-tests test nccl", THREADS, "5"),
    ("disco-mailbox test conformance", "DISCO_REQUIRE", "mailbox"),
    ("disco-tcp test conformance", "DISCO_REQUIRE", "tcp-mesh"),
];

/// Limit of a program. The longest takes three minutes on two cores, and has taken fifteen beside compilers.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(1800);

/// How long processes may outlive the programs that started them.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);

/// Time without the end of a program after which the running programs are printed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(180);

/// Lines of a failed program's output that are printed again at the end.
const LAST_LINES: usize = 100;

/// The program with sessions from end to end.
pub(crate) const FROM_END_TO_END: &str = "standard";
/// Its modules that also run if only a package below theirs has changed, in seconds.
const SHORT: [&str; 2] = ["disco-tests test standard failure::", "disco-tests test standard session::"];

/// Cargo's option for targets that need no Python: unit tests of `disco-python` would be linked with it.
pub(crate) const WITHOUT_PYTHON: &str = "--exclude disco-python";

/// Which test programs run: without options, all, and the examples. Those of a group need no other option.
#[derive(Debug, Default, Args)]
pub(crate) struct Selection {
    /// Only programs of this group
    #[arg(long, conflicts_with_all = ["changed", "above", "tests"])]
    pub(crate) group: Option<Group>,
    /// Only programs of these packages, and of those of --above
    #[arg(long, value_delimiter = ',')]
    pub(crate) changed: Vec<String>,
    /// Only unit tests of these packages, and sessions from end to end
    #[arg(long, value_delimiter = ',')]
    pub(crate) above: Vec<String>,
    /// Names of the programs that are not unit tests
    #[arg(long, value_delimiter = ',')]
    pub(crate) tests: Vec<String>,
}

impl Selection {
    /// The programs of a group.
    pub(crate) fn of(group: Group) -> Self {
        Self { group: Some(group), ..Self::default() }
    }

    fn is_everything(&self) -> bool {
        self.group.is_none() && self.changed.is_empty() && self.above.is_empty()
    }

    /// Arguments of cargo that build the programs. A step before builds the same, so that the output shows its time.
    pub(crate) fn build(&self) -> String {
        let tests = match self.group {
            Some(group) => group.tests(),
            // Without names of targets, cargo builds examples as programs, not as tests.
            None if self.is_everything() => return format!("test --workspace {ALL_FEATURES} --no-run"),
            None => self.tests.iter().map(|name| &**name).collect(),
        };
        let targets =
            tests.iter().fold(format!("{WITHOUT_PYTHON} --lib --bins"), |args, name| format!("{args} --test {name}"));
        format!("test --workspace {targets} {ALL_FEATURES} --no-run")
    }

    /// The selected runs of test programs.
    fn programs(&self, built: &[Built]) -> Result<Vec<Program>> {
        let Some(group) = self.group else {
            return Ok(tests(built).into_iter().filter(|program| self.has(program)).collect());
        };
        let run = |(label, args): &(&str, &str)| {
            let is_program = |built: &&Built| built.is_test && built.label() == *label;
            let built = built.iter().find(is_program).with_context(|| format!("cargo has not built {label}"))?;
            Ok(Program { built: built.clone(), args: (*args).to_owned(), but: Vec::new() })
        };
        group.runs().iter().map(run).collect()
    }

    fn has(&self, program: &Program) -> bool {
        let is_in = |packages: &[String]| packages.iter().any(|package| package == program.built.package_name());
        let is_short = program.built.kind != "test" || program.is_one_of(&SHORT);
        self.is_everything() || is_in(&self.changed) || is_in(&self.above) && is_short
    }
}

/// Builds the test programs and the examples and runs all selected ones and the tests of the Python package, even after a failure. Prints the output of each when
/// it ends, and a table of their times at the end.
///
/// # Errors
/// The build fails, a program fails, or a program left a running process behind.
pub(crate) fn run(selection: &Selection) -> Result<()> {
    let built = built::build(&selection.build())?;
    let mut programs = selection.programs(&built)?;
    if selection.is_everything() {
        check_groups(&built)?;
        programs.extend(examples(&built)?);
        programs.push(python()?);
    }
    let (count, start) = (programs.len(), Instant::now());
    let position = |program: &Program| {
        let label = program.label();
        FIRST.iter().chain(&WAITING).position(|first| label.starts_with(first)).unwrap_or(usize::MAX)
    };
    programs.sort_by_key(position);
    let (waiting, busy): (Vec<_>, Vec<_>) = programs.into_iter().partition(|program| program.is_one_of(&WAITING));
    fs::create_dir_all(outputs()).context("cannot create the folder of the outputs")?;
    // Processes that outlive their parents become children of this one.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("cannot adopt processes")?;
    let slots = thread::available_parallelism().map_or(1, usize::from);
    let ended = thread::scope(|scope| {
        let waiting = scope.spawn(|| run_on(WAITING_SLOTS, waiting));
        let mut ended = run_on(slots, busy)?;
        ended.extend(waiting.join().map_err(|_| anyhow!("the thread of the waiting programs panicked"))??);
        anyhow::Ok(ended)
    })?;
    let failed = ended.iter().filter(|ended| !ended.passed);
    let failed: Vec<_> = failed.map(|ended| (ended.row.name.clone(), last_lines(&ended.output).to_owned())).collect();
    table::print(ended.into_iter().map(|ended| ended.row).collect());
    println!("== {count} programs in {:.0} s", start.elapsed().as_secs_f64());
    // Once more after all others: a log that keeps only the end of a long output keeps the reason.
    failed.iter().for_each(|(name, output)| println!("-- {name} failed; its last lines:\n{output}"));
    let names: Vec<_> = failed.iter().map(|(name, _)| &**name).collect();
    ensure!(names.is_empty(), "{} of {count} programs failed: {}", names.len(), names.join(", "));
    no_orphans()
}

/// Checks that each run of a group has tests: one whose filter fits no name would pass.
fn check_groups(built: &[Built]) -> Result<()> {
    for group in Group::value_variants() {
        for program in Selection::of(*group).programs(built)? {
            let list = program.command().arg("--list").output().context("cannot start the program")?;
            let label = program.label();
            ensure!(list.stdout.windows(6).any(|end| end == b": test"), "{label} of the group {group:?} has no tests");
        }
    }
    Ok(())
}

/// The last lines of an output, which have the reason of a failure.
fn last_lines(output: &str) -> &str {
    let start = output.rmatch_indices('\n').nth(LAST_LINES).map_or(0, |(place, _)| place + 1);
    &output[start..]
}

/// A run of a program.
struct Program {
    built: Built,
    /// Arguments, separated by spaces. Of a test program: the filter, if the program runs by module.
    args: String,
    /// Tests with one of these in their names do not run.
    but: Vec<String>,
}

/// The runs of the test programs.
fn tests(built: &[Built]) -> Vec<Program> {
    let mut programs = Vec::new();
    for built in built.iter().filter(|built| built.is_test) {
        let run = |args: &str, but| Program { built: built.clone(), args: args.to_owned(), but };
        let all = run("", Vec::new());
        let modules =
            MODULES.iter().find(|(program, _)| *program == all.label()).map_or(&[][..], |(_, modules)| modules);
        let modules: Vec<_> = modules.iter().map(|module| format!("{module}::")).collect();
        programs.extend(modules.iter().map(|module| run(module, Vec::new())));
        programs.push(Program { but: modules, ..all });
    }
    programs
}

/// The runs of the examples.
fn examples(built: &[Built]) -> Result<Vec<Program>> {
    let example = |(name, args): (&str, &str)| {
        let found = built.iter().find(|built| built.kind == "example" && !built.is_test && built.name == name);
        let built = found.with_context(|| format!("cargo has not built the example {name}"))?.clone();
        Ok(Program { built, args: args.to_owned(), but: Vec::new() })
    };
    EXAMPLES.into_iter().map(example).collect()
}

/// The run of the tests of the Python package.
fn python() -> Result<Program> {
    let file = env::current_exe().context("this program has no path")?;
    let [kind, name, package] = ["bin", "xtask", "#xtask@"].map(str::to_owned);
    let built = Built { kind, name, package, folder: root(), file, is_test: false };
    Ok(Program { built, args: "python".to_owned(), but: Vec::new() })
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
    row: Row,
    passed: bool,
    output: String,
}

/// Runs programs in order, `slots` at a time.
fn run_on(slots: usize, programs: Vec<Program>) -> Result<Vec<Ended>> {
    let (count, queue) = (programs.len(), Mutex::new(VecDeque::from(programs)));
    let running = Mutex::new(Vec::new());
    let (sender, receiver) = mpsc::channel();
    let work = |sender: mpsc::Sender<_>| {
        loop {
            let Some(program) = lock(&queue).pop_front() else { break };
            lock(&running).push(program.label());
            let since = Instant::now();
            let exit = program.run();
            lock(&running).retain(|label| *label != program.label());
            drop(sender.send((program, since.elapsed(), exit)));
        }
    };
    thread::scope(|scope| {
        for sender in (0..slots).map(|_| sender.clone()) {
            scope.spawn(|| work(sender));
        }
        let mut ended = Vec::with_capacity(count);
        while ended.len() < count {
            match receiver.recv_timeout(PROGRESS_INTERVAL) {
                Ok((program, time, exit)) => ended.push(program.report(time, exit)?),
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

impl Program {
    /// Prints the output of the program below its label.
    fn report(&self, time: Duration, exit: Result<Exit>) -> Result<Ended> {
        let name = self.label();
        let (passed, status, cpu) = match exit {
            Ok(exit) => (exit.status.success(), exit.status.to_string(), exit.cpu),
            Err(error) => (false, format!("{error:#}"), Duration::ZERO),
        };
        let output = fs::read(self.output()).with_context(|| format!("cannot read the output of {name}"))?;
        let output = String::from_utf8_lossy(&output).into_owned();
        print!("-- {name}: {:.1} s, {status}\n{output}", time.as_secs_f64());
        Ok(Ended { row: Row { name, time, cpu }, passed, output })
    }

    /// Whether the label begins with one of these.
    fn is_one_of(&self, labels: &[&str]) -> bool {
        labels.iter().any(|label| self.label().starts_with(label))
    }

    /// Package, kind, name and arguments, such as `disco-tests test sessions nodes::`.
    fn label(&self) -> String {
        format!("{} {}", self.built.label(), self.args).trim_end().to_owned()
    }

    /// The file of the program's output. A pipe would stay open while an orphan of the program lives.
    fn output(&self) -> PathBuf {
        outputs().join(self.label().replace(' ', "-"))
    }

    /// Runs the program to its end or its limit.
    fn run(&self) -> Result<Exit> {
        let output = File::create(self.output()).context("cannot create the file of the output")?;
        let errors = output.try_clone().context("cannot share the file of the output")?;
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        time_limit::wait(&mut command.spawn().context("cannot start the program")?, PROGRAM_TIMEOUT)
    }

    /// A command that starts the program as cargo does.
    fn command(&self) -> Command {
        let folder = &self.built.folder;
        let mut command = Command::new(&self.built.file);
        command.args(self.args.split_whitespace()).args(self.built.is_test.then_some("--quiet"));
        command.args(self.but.iter().flat_map(|name| ["--skip", name]));
        command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
        let label = self.label();
        let variables = VARIABLES.iter().filter(|(program, ..)| *program == label);
        // The user's number of tests at a time wins.
        let variables = variables.filter(|(_, name, _)| *name != THREADS || env::var_os(THREADS).is_none());
        variables.for_each(|(_, name, value)| _ = command.env(name, value));
        command
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Built, FIRST, MODULES, SHORT, WAITING, root, tests};

    fn built(name: &str) -> Built {
        let package = "file:///suite#disco-tests@0.1.0".to_owned();
        let (kind, name) = ("test".to_owned(), name.to_owned());
        Built { kind, name, package, folder: "testing/suite".into(), file: "sessions".into(), is_test: true }
    }

    #[test]
    fn a_module_runs_as_a_program_and_the_others_run_without_it() {
        let programs = tests(&[built("standard"), built("nccl")]);
        let (last, others) = programs.split_last().unwrap();
        assert_eq!((last.label().as_str(), last.but.len()), ("disco-tests test nccl", 0));
        let (rest, modules) = others.split_last().unwrap();
        assert_eq!(rest.label(), "disco-tests test standard");
        let names: Vec<_> = modules.iter().map(|module| module.args.clone()).collect();
        assert_eq!(rest.but, names);
        assert_eq!(modules[0].label(), "disco-tests test standard failure::");
    }

    #[test]
    fn each_name_of_a_module_is_in_its_program() {
        for (program, modules) in MODULES {
            let folders = ["disco-cli/tests", "crates/disco-serve/tests", "testing/suite"];
            let file = format!("{}.rs", program.rsplit(' ').next().unwrap());
            let files = folders.iter().map(|folder| root().join(folder).join(&file));
            let source = files.filter_map(|file| fs::read_to_string(file).ok()).next().unwrap();
            modules.iter().for_each(|name| assert!(source.contains(&format!("mod {name};")), "{program}: {name}"));
        }
        let runs = tests(&[built("sessions"), built("standard")]);
        let of_suite = |label: &&&str| label.ends_with("::") && label.starts_with("disco-tests ");
        let named = FIRST.iter().chain(&WAITING).chain(&SHORT).filter(of_suite);
        for label in named {
            assert!(runs.iter().any(|run| run.label() == *label), "{label}");
        }
    }
}
