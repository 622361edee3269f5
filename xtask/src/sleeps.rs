//! Limit of the number of sleeps in tests.

use std::fs;

use anyhow::{Result, ensure};

use crate::built::root;
use crate::fast::git;

/// The largest number of sleeps.
const LIMIT: usize = 60;
/// Folders of test code. In other folders, `tests.rs` and what follows `#[cfg(test)]` are test code.
const FOLDERS: [&str; 4] =
    ["/tests/", "/testing/suite/", "/crates/disco-conformance/", "/crates/disco-engine/src/sim/"];
/// The functions, by the module that tests call them by.
const SLEEPS: [&str; 4] = ["thread::sleep", "time::sleep", "time.sleep", "asyncio.sleep"];

/// Counts the calls of sleep functions in the tests of Rust and Python.
///
/// # Errors
/// There are more than [`LIMIT`]. The error has their lines. Or git fails.
pub(crate) fn check() -> Result<()> {
    let files = git(&["ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.py"])?;
    let mut found = Vec::new();
    for file in files.lines() {
        // A file that is deleted, but not yet in git, has no text.
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        found.extend(lines(file, &text).map(|line| format!("{file}:{line}")));
    }
    println!("{} sleeps in tests", found.len());
    let advice = "wait for an event or a state (`disco_conformance::waiting`)";
    ensure!(found.len() <= LIMIT, "at most {LIMIT} sleeps are permitted in tests; {advice}:\n{}", found.join("\n"));
    Ok(())
}

/// Numbers of the lines of test code that sleep.
fn lines(file: &str, text: &str) -> impl Iterator<Item = usize> {
    let path = format!("/{file}");
    let is_test = path.ends_with("/tests.rs") || FOLDERS.iter().any(|folder| path.contains(folder));
    let begins = |line: &str| line.starts_with("#[cfg(") && line.contains("test");
    let tests = text.lines().enumerate().skip_while(move |(_, line)| !is_test && !begins(line));
    // `asyncio.sleep(0)` runs the other tasks once.
    let sleeps = |line: &str| SLEEPS.iter().any(|sleep| line.contains(sleep)) && !line.contains("sleep(0)");
    tests.filter(move |(_, line)| sleeps(line)).map(|(at, _)| at + 1)
}

#[test]
fn sleeps_of_tests_are_found_by_line() {
    let found = |file, text| lines(file, text).collect::<Vec<_>>();
    let text = "thread::park();\nthread::sleep(TIME);\n#[cfg(test)]\ntime.sleep(1)\nasyncio.sleep(0)";
    assert_eq!(found("a/src/b.rs", text), [4]);
    assert_eq!(found("a/src/b/tests.rs", text), [2, 4]);
    assert_eq!(found("testing/suite/b.rs", text), [2, 4]);
}
