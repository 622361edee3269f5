//! Runs the kernels on the host under ThreadSanitizer. Each GPU thread of each rank is a thread of the process; only
//! launches of the same rank wait for each other. Injected faults, such as omitted handshakes and weaker memory orders,
//! must be detected.
//!
//! Without a g++ with ThreadSanitizer the tests are skipped, or fail with `DISCO_REQUIRE=tsan`. `DISCO_LONG_TESTS`,
//! which `cargo xtask test --long` sets, runs more rounds of sums.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

use std::env;
use std::path::Path;

use disco_conformance::tsan::{Compiler, Program, text};

/// The exit code of the harness after a failed check.
const CHECK_FAILED_EXIT_CODE: i32 = 1;
/// Runs without a detection after which an injected fault counts as undetected.
const MAX_RUNS: usize = 10;

#[test]
fn sums_are_correct_and_identical_on_all_ranks() {
    let Some(compiler) = Compiler::find() else { return };
    let rounds = if env::var_os("DISCO_LONG_TESTS").is_some() { "60" } else { "1" };
    let program = build(&compiler, "sums", &[]);
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
    let output = build(&compiler, "ends", &[]).run(&["ends"]);
    assert!(output.status.success(), "{}", text(&output));
    let output = build(&compiler, "goes-on", &["-DFAULT_FAILED"]).run(&["ends"]);
    assert_eq!(output.status.code(), Some(CHECK_FAILED_EXIT_CODE), "{}", text(&output));
}

#[test]
fn injected_faults_are_detected() {
    let Some(compiler) = Compiler::find() else { return };
    let faults: [(&str, &[i32]); 6] = [
        ("FAULT_SKIP=LEADING", &[Program::RACE, CHECK_FAILED_EXIT_CODE]),
        ("FAULT_SKIP=MID", &[Program::RACE, CHECK_FAILED_EXIT_CODE]),
        ("FAULT_SKIP=TRAILING", &[Program::RACE, CHECK_FAILED_EXIT_CODE]),
        // x86 orders these accesses even if they are relaxed, so only the sanitizer detects the fault.
        ("FAULT_STORE", &[Program::RACE]),
        ("FAULT_LOAD", &[Program::RACE]),
        ("FAULT_COMPARE", &[Program::RACE, CHECK_FAILED_EXIT_CODE]),
    ];
    for (fault, found) in faults {
        let program = build(&compiler, fault, &[&format!("-D{fault}")]);
        // Detection depends on the schedule of the threads: on a busy machine, one run in twelve misses
        // `FAULT_COMPARE`.
        let output = (0..MAX_RUNS).map(|_| program.run(&["faults"])).find(|output| !output.status.success());
        let output = output.unwrap_or_else(|| panic!("{fault}: not found in {MAX_RUNS} runs"));
        assert!(output.status.code().is_some_and(|code| found.contains(&code)), "{fault}: {}", text(&output));
        let how = if output.status.code() == Some(Program::RACE) { "a race" } else { "another result" };
        eprintln!("{fault}: found, as {how}");
    }
}

/// Compiles the harness.
fn build(compiler: &Compiler, name: &str, options: &[&str]) -> Program {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let [host, kernels] = ["tests/tsan", "src/p2p/kernels"].map(|folder| here.join(folder));
    // The files of the kernels, except `machine.cuh`: the first include path has the version for the host.
    compiler.build(name, &host.join("harness.cpp"), &[&host, &kernels], options)
}
