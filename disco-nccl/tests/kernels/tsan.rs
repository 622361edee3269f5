//! Runs the kernels on the host under ThreadSanitizer. Each GPU thread of each rank is a thread of the process; only
//! launches of the same rank wait for each other. Injected faults, such as omitted handshakes and weaker memory orders,
//! must be detected.
//!
//! Without a g++ with ThreadSanitizer the tests are skipped, or fail with `DISCO_REQUIRE=tsan`. `DISCO_LONG_TESTS`,
//! which `cargo xtask test --long` sets, runs more rounds of sums.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use disco_conformance::Required;

/// The exit code of a process in which the sanitizer has found a race.
const RACE_EXIT_CODE: i32 = 66;
/// The exit code of the harness after a failed check.
const CHECK_FAILED_EXIT_CODE: i32 = 1;
/// Runs without a detection after which an injected fault counts as undetected.
const MAX_RUNS: usize = 10;

#[test]
fn sums_are_correct_and_identical_on_all_ranks() {
    let Some(compiler) = Compiler::find() else { return };
    let rounds = if env::var_os("DISCO_LONG_TESTS").is_some() { "60" } else { "1" };
    let program = compiler.build("sums", &[]);
    let output = program.run(&["sums", rounds]);
    assert!(output.status.success(), "{}", text(&output));
    // The run that detects injected faults passes without one.
    let none = program.run(&["faults"]);
    assert!(none.status.success(), "{}", text(&none));
    eprint!("{}", text(&output));
}

#[test]
fn a_missing_peer_is_reported_and_later_launches_write_nothing() {
    let Some(compiler) = Compiler::find() else { return };
    let output = compiler.build("ends", &[]).run(&["ends"]);
    assert!(output.status.success(), "{}", text(&output));
    let output = compiler.build("goes-on", &["-DFAULT_FAILED"]).run(&["ends"]);
    assert_eq!(output.status.code(), Some(CHECK_FAILED_EXIT_CODE), "{}", text(&output));
}

#[test]
fn injected_faults_are_detected() {
    let Some(compiler) = Compiler::find() else { return };
    let faults: [(&str, &[i32]); 6] = [
        ("FAULT_SKIP=LEADING", &[RACE_EXIT_CODE, CHECK_FAILED_EXIT_CODE]),
        ("FAULT_SKIP=MID", &[RACE_EXIT_CODE, CHECK_FAILED_EXIT_CODE]),
        ("FAULT_SKIP=TRAILING", &[RACE_EXIT_CODE, CHECK_FAILED_EXIT_CODE]),
        // x86 orders these accesses even if they are relaxed, so only the sanitizer detects the fault.
        ("FAULT_STORE", &[RACE_EXIT_CODE]),
        ("FAULT_LOAD", &[RACE_EXIT_CODE]),
        ("FAULT_COMPARE", &[RACE_EXIT_CODE, CHECK_FAILED_EXIT_CODE]),
    ];
    for (fault, found) in faults {
        let program = compiler.build(fault, &[&format!("-D{fault}")]);
        // Detection depends on the schedule of the threads: on a busy machine, one run in twelve misses
        // `FAULT_COMPARE`.
        let output = (0..MAX_RUNS).map(|_| program.run(&["faults"])).find(|output| !output.status.success());
        let output = output.unwrap_or_else(|| panic!("{fault}: not found in {MAX_RUNS} runs"));
        assert!(output.status.code().is_some_and(|code| found.contains(&code)), "{fault}: {}", text(&output));
        let how = if output.status.code() == Some(RACE_EXIT_CODE) { "a race" } else { "another result" };
        eprintln!("{fault}: found, as {how}");
    }
}

/// A g++ with ThreadSanitizer. It holds a lock, so that only one test runs programs at a time: their spinning threads
/// would slow each other down.
struct Compiler {
    _alone: MutexGuard<'static, ()>,
}

/// The path of a compiled program; the drop deletes the file.
struct Program(PathBuf);

impl Compiler {
    /// Finds the compiler. Without one, prints the reason and returns `None`, or panics if `DISCO_REQUIRE` has `tsan`.
    fn find() -> Option<Self> {
        static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let program = Program::new("probe");
            let source = Program::new("probe.cpp");
            std::fs::write(&source.0, "int main() {}").unwrap();
            succeed(sanitized().args(["-x", "c++"]).arg(&source.0).arg("-o").arg(&program.0))?;
            succeed(&mut Command::new(&program.0))
        });
        let Err(why) = found else {
            static ALONE: Mutex<()> = Mutex::new(());
            return Some(Self { _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner) });
        };
        assert!(!Required::from_env().contains("tsan"), "DISCO_REQUIRE: {why}");
        eprintln!("skipped: no g++ with ThreadSanitizer: {why}");
        None
    }

    fn build(&self, name: &str, options: &[&str]) -> Program {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = Program::new(name);
        let mut command = sanitized();
        command.args(["-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]).args(options);
        // The files of the kernels, except `machine.cuh`: the first include path has the version for the host.
        command.arg("-I").arg(here.join("tests/tsan")).arg("-I").arg(here.join("src/p2p/kernels"));
        succeed(command.arg(here.join("tests/tsan/harness.cpp")).arg("-o").arg(&program.0)).unwrap();
        program
    }
}

impl Program {
    fn new(name: &str) -> Self {
        Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id())))
    }

    fn run(&self, args: &[&str]) -> Output {
        let options = format!("halt_on_error=1 exitcode={RACE_EXIT_CODE}");
        Command::new(&self.0).args(args).env("TSAN_OPTIONS", options).output().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.0);
    }
}

fn sanitized() -> Command {
    let mut command = Command::new("g++");
    command.args(["-fsanitize=thread", "-pthread"]);
    command
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}: {}", output.status, text(&output))) }
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}
