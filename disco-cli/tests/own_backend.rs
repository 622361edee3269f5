//! The `disco` command and the conformance suite with a third-party backend: that of `examples/own_backend.rs`.

use std::process::{Command, ExitCode, Output};

use disco_conformance::{Runner, ThreadSessions};

use crate::PROGRAM;

#[path = "../../examples/own_backend.rs"]
mod example;

/// `main` of the command `my-disco`.
fn my_disco() -> ExitCode {
    disco_cli::main("my-disco")
}

/// `main` of a conformance test target with `harness = false`.
fn my_suite() -> ExitCode {
    Runner::new()
        .backend(ThreadSessions::of("counting").exact().detecting_mismatches().detecting_dropped_peers())
        .main()
}

crate::trials::tests!("own_backend":
    the_example_runs,
    the_command_treats_the_backend_like_a_built_in_one,
    the_command_prints_the_name_passed_to_main,
    the_suite_filters_and_lists_checks_by_name,
    the_suite_reports_filters_and_requirements_without_match,
);

/// Runs the program, if this file has it.
pub(crate) fn main(program: &str) -> Option<ExitCode> {
    match program {
        "my-disco" => Some(my_disco()),
        "my-suite" => Some(my_suite()),
        _ => None,
    }
}

fn the_example_runs() {
    example::main().unwrap();
}

/// Runs this executable as `program`, without `DISCO_REQUIRE`, whose backends `program` does not link.
fn run(program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PROGRAM, program).env_remove("DISCO_REQUIRE").args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

fn the_command_treats_the_backend_like_a_built_in_one() {
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

fn the_command_prints_the_name_passed_to_main() {
    assert_eq!(text(&run("my-disco", &["--version"])), format!("my-disco {}\n", env!("CARGO_PKG_VERSION")));
    assert!(text(&run("my-disco", &["check", "--backend", "ucc"])).starts_with("my-disco: backend `ucc` is not"));
    let help = text(&run("my-disco", &["check", "--help"]));
    assert!(help.contains("\nUsage: my-disco check [OPTIONS]\n"), "{help}");
    assert!(text(&run("my-disco", &["completions", "bash"])).contains(" my-disco\n"));
}

fn the_suite_filters_and_lists_checks_by_name() {
    let output = run("my-suite", &["counting::all_reduce::i8"]);
    assert!(output.status.success() && text(&output).contains("5 passed; 0 failed; 0 ignored;"), "{}", text(&output));
    let listed = text(&run("my-suite", &["--list"]));
    assert!(listed.contains("counting::abort::barrier::a_worker_fails_and_the_others_return: test\n"), "{listed}");
}

fn the_suite_reports_filters_and_requirements_without_match() {
    let output = run("my-suite", &["nccl::all_reduce"]);
    let expected = "no check has `nccl::all_reduce` in its name; the names start with counting::\n";
    assert!(output.status.success() && text(&output).ends_with(expected), "{}", text(&output));
    let mut required = Command::new(std::env::current_exe().unwrap());
    let output = required.env(PROGRAM, "my-suite").env("DISCO_REQUIRE", "ucc").output().unwrap();
    assert_eq!(text(&output), "DISCO_REQUIRE has the unknown name `ucc`; this program has counting\n");
    assert!(!output.status.success());
}
