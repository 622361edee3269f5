//! Runs the program.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

#[test]
fn the_program_prints_the_sum_of_each_task() {
    let output = Command::new(env!("CARGO_BIN_EXE_disco-tokio")).output().unwrap();
    let mut lines: Vec<_> = str::from_utf8(&output.stdout).unwrap().lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "the squares below 10 sum up to 285",
            "the squares below 100 sum up to 328350",
            "the squares below 1000 sum up to 332833500"
        ],
        "{output:?}"
    );
    assert!(output.status.success(), "{output:?}");
}
