//! A command and a run of the conformance suite for a backend that is not Disco's: that of `examples/own_backend.rs`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Command, ExitCode, Output};

use disco_conformance::{Runner, ThreadSessions};
use libtest_mimic::{Arguments, Trial};

#[path = "../../examples/own_backend.rs"]
mod own_backend;

/// Says that this program is another.
const PROGRAM: &str = "DISCO_TEST_PROGRAM";

/// `main` of the command `my-disco`.
fn my_disco() -> ExitCode {
    disco_cli::main("my-disco")
}

/// `main` of a test target with `harness = false`.
fn my_suite() -> ExitCode {
    Runner::new().backend(ThreadSessions::of("counting").exact().detecting_mismatches()).main()
}

fn main() -> ExitCode {
    match std::env::var(PROGRAM).as_deref() {
        Ok("my-disco") => return my_disco(),
        Ok("my-suite") => return my_suite(),
        _ => {}
    }
    let tests: [(&str, fn()); 5] = [
        ("the_example_runs", || own_backend::main().unwrap()),
        ("a_command_checks_measures_and_pings", a_command_checks_measures_and_pings),
        ("a_command_prints_its_own_name", a_command_prints_its_own_name),
        ("the_suite_runs_by_name", the_suite_runs_by_name),
        ("a_suite_says_which_names_it_has", a_suite_says_which_names_it_has),
    ];
    let trials = tests.map(|(name, test)| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(name, run)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

/// This program as another, which has no backend that `DISCO_REQUIRE` may ask the tests for.
fn run(program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PROGRAM, program).env_remove("DISCO_REQUIRE").args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

fn a_command_checks_measures_and_pings() {
    for (args, expected) in [
        (&["backends", "--require", "counting"][..], "counting available    0.1.0 (this program)\n"),
        (&["check", "--backend", "counting", "--filter", "all_reduce::i8"], "5 passed, 0 failed, 0 skipped\n"),
        (&["bench", "all_reduce", "--backend", "counting", "-e", "64", "-n", "5"], "# wrong elements: 0\n"),
        (&["ping", "--session", "processes", "--workers", "2", "--rounds", "20"], "2 workers (processes), "),
        (&["check", "--help"], "[possible values: counting,"),
    ] {
        let output = run("my-disco", args);
        assert!(output.status.success() && text(&output).contains(expected), "{args:?}: {}", text(&output));
    }
}

fn a_command_prints_its_own_name() {
    assert_eq!(text(&run("my-disco", &["--version"])), format!("my-disco {}\n", env!("CARGO_PKG_VERSION")));
    assert!(text(&run("my-disco", &["check", "--backend", "ucc"])).starts_with("my-disco: backend `ucc` is not"));
    let help = text(&run("my-disco", &["check", "--help"]));
    assert!(help.contains("\nUsage: my-disco check [OPTIONS]\n"), "{help}");
    assert!(text(&run("my-disco", &["completions", "bash"])).contains(" my-disco\n"));
}

fn the_suite_runs_by_name() {
    let output = run("my-suite", &["counting::all_reduce::i8"]);
    assert!(output.status.success() && text(&output).contains("5 passed; 0 failed; 0 ignored;"), "{}", text(&output));
    let listed = text(&run("my-suite", &["--list"]));
    assert!(listed.contains("counting::abort::barrier::a_worker_fails_and_the_others_return: test\n"), "{listed}");
}

fn a_suite_says_which_names_it_has() {
    let output = run("my-suite", &["nccl::all_reduce"]);
    let expected = "no check has `nccl::all_reduce` in its name; the names start with counting::\n";
    assert!(output.status.success() && text(&output).ends_with(expected), "{}", text(&output));
    let mut required = Command::new(std::env::current_exe().unwrap());
    let output = required.env(PROGRAM, "my-suite").env("DISCO_REQUIRE", "ucc").output().unwrap();
    assert_eq!(text(&output), "DISCO_REQUIRE asks for `ucc`; this program has counting\n");
    assert!(!output.status.success());
}
