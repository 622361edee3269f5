//! The parts of the kit, and which of them are due: those whose code has changed since a GPU has run them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::built::root;
use crate::fast;

/// A part of the script, for one run on a GPU machine.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// Seconds that it takes at most.
    limit: u32,
    /// Folders and files whose change makes it due. Of the parts for GPUs, crates that know no device are not among them:
    /// the test double and the tests on the CPU cover them. Part 0 is due at any time.
    depends: &'static [&'static str],
}

/// The parts.
pub(crate) const PARTS: [Part; 6] = [
    Part { name: "0", limit: 180, depends: &[] },
    Part {
        name: "1",
        limit: 540,
        depends: &[
            "crates/disco-ccl/src",
            "disco-nccl/src",
            "testing/suite/nccl",
            "benches/nccl.rs",
            "examples/gpu_evidence",
        ],
    },
    Part {
        name: "2",
        limit: 540,
        depends: &["crates/disco-ccl/src", "disco-nccl/src", "crates/disco-conformance/src/communicator"],
    },
    Part { name: "3", limit: 540, depends: &["crates/disco-ccl/src", "disco-nccl/src", "testing/suite/nccl"] },
    Part {
        name: "4",
        limit: 540,
        depends: &[
            "crates/disco-candle/src",
            "crates/disco-candle/examples/attention.rs",
            "crates/disco-models/src",
            "crates/disco-models/examples/generate",
            "crates/disco-python",
            "crates/disco-ccl/src",
            "disco-nccl/src",
        ],
    },
    // Of the processors only.
    Part {
        name: "5",
        limit: 360,
        depends: &[
            "benches/examples/cores.rs",
            "crates/disco-local/src",
            "disco-channel/src/ring",
            "disco-channel/src/shared_ring",
            "disco-channel/src/threads",
        ],
    },
];

/// The page that says when each part has run.
const PAGE: &str = "docs/gpu-evidence.md";
const HEADING: &str = "\n## Parts\n";

/// The last run of a part: a row of the page's table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Measured {
    part: String,
    commit: String,
    date: String,
    /// Seconds, if the run noted them.
    seconds: Option<u32>,
}

/// Prints a line for each part: whether it is due, why, and how long it takes.
///
/// # Errors
/// The page has no table of parts, or git fails.
pub(crate) fn due() -> Result<()> {
    let page = fs::read_to_string(root().join(PAGE)).with_context(|| format!("{PAGE} can't be read"))?;
    let measured = measured(&page)?;
    let mut all = 0;
    for part in &PARTS {
        let last = measured.iter().find(|measured| measured.part == part.name);
        let files = last.map(|last| fast::files_since(&last.commit));
        let (is_due, reason) = part.state(last, files.unwrap_or_else(|| Ok(Vec::new())));
        let seconds = last.and_then(|last| last.seconds);
        all += if is_due { seconds.unwrap_or(part.limit) } else { 0 };
        let time = seconds.map_or_else(|| format!("at most {} s", part.limit), |seconds| format!("{seconds} s"));
        println!("part {}  {:7}  {time:13}  {reason}", part.name, if is_due { "due" } else { "not due" });
    }
    println!("== all parts that are due take at most {all} s");
    Ok(())
}

impl Part {
    /// Whether the part is due, and why. `files` have changed since the last run.
    fn state(&self, last: Option<&Measured>, files: Result<Vec<String>>) -> (bool, String) {
        if self.depends.is_empty() {
            return (true, "always".to_owned());
        }
        let Some(Measured { commit, date, .. }) = last else { return (true, "it has never run".to_owned()) };
        let files = match files {
            Ok(files) => files,
            Err(error) => return (true, format!("its commit {commit} is not known here: {error:#}")),
        };
        let is_own = |file: &&String| self.depends.iter().any(|path| Path::new(file).starts_with(path));
        let own: Vec<_> = files.iter().filter(is_own).collect();
        match own[..] {
            [] => (false, format!("no change in {} since {commit}, {date}", self.depends.join(", "))),
            [file] => (true, format!("{file} has changed since {commit}, {date}")),
            [file, ..] => {
                (true, format!("{file} and {} more files have changed since {commit}, {date}", own.len() - 1))
            }
        }
    }
}

/// The rows of the first table below the heading: part, commit, date, duration.
fn measured(page: &str) -> Result<Vec<Measured>> {
    let (_, section) =
        page.split_once(HEADING).with_context(|| format!("{PAGE} has no section `{}`", HEADING.trim()))?;
    let is_row = |line: &&str| line.starts_with('|');
    let lines = section.lines().skip_while(|line| !is_row(line)).take_while(is_row);
    // After the header and its rule.
    lines.skip(2).map(Measured::parse).collect()
}

impl Measured {
    fn parse(row: &str) -> Result<Self> {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [part, commit, date, duration] = cells[..] else {
            anyhow::bail!("{PAGE}: the row `{row}` of the parts has {} cells instead of 4", cells.len());
        };
        ensure!(
            commit.len() >= 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{PAGE}: part {part}: `{commit}` is no commit"
        );
        let seconds = duration.strip_suffix(" s").and_then(|seconds| seconds.parse().ok());
        let [part, commit, date] = [part, commit, date].map(str::to_owned);
        Ok(Self { part, commit, date, seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# Page\n\n## Parts\n\nText.\n\n| part | commit | date | duration |\n|---|---|---|---|\n\
        | 1 | 46565f81 | 26 November 2026 | 270 s |\n| 2 | 0aeabbff | 26 November 2026 | not noted |\n\nText.\n\n| a | b |\n";

    fn changed(files: &[&str]) -> Result<Vec<String>> {
        Ok(files.iter().map(|file| (*file).to_owned()).collect())
    }

    #[test]
    fn rows_of_the_first_table_are_read() {
        let rows = measured(TABLE).unwrap();
        assert_eq!(rows.iter().map(|row| row.seconds).collect::<Vec<_>>(), [Some(270), None]);
        let (part, commit, date) = ("2".to_owned(), "0aeabbff".to_owned(), "26 November 2026".to_owned());
        assert_eq!(rows[1], Measured { part, commit, date, seconds: None });
    }

    #[test]
    fn a_missing_table_and_a_row_without_a_commit_are_errors() {
        let error = |page: &str| measured(page).unwrap_err().to_string();
        assert_eq!(error("# Page\n"), "docs/gpu-evidence.md has no section `## Parts`");
        assert_eq!(error(&TABLE.replace("0aeabbff", "main")), "docs/gpu-evidence.md: part 2: `main` is no commit");
        let cells = "docs/gpu-evidence.md: the row `| 1 | 2 |` of the parts has 2 cells instead of 4";
        assert_eq!(error("\n## Parts\n| part |\n|---|\n| 1 | 2 |\n"), cells);
    }

    #[test]
    fn a_part_is_due_if_a_file_that_it_depends_on_has_changed() {
        let rows = measured(TABLE).unwrap();
        let [zero, one, ..] = &PARTS;
        let state = |files| one.state(Some(&rows[0]), changed(files));
        assert!(state(&["disco-nccl/src/lib.rs"]).0 && state(&["benches/nccl.rs", "README.md"]).0);
        let (is_due, reason) = state(&["disco-nccl/README.md", "benches/nccl.rs.txt", "disco-core/src/lib.rs"]);
        assert!(!is_due && reason.ends_with("since 46565f81, 26 November 2026"), "{reason}");
        assert!(one.state(None, changed(&[])).0);
        assert!(one.state(Some(&rows[0]), Err(anyhow::anyhow!("bad object"))).0);
        assert!(zero.state(None, changed(&[])).0);
    }

    #[test]
    fn what_parts_depend_on_exists_and_every_run_is_of_a_part() {
        for path in PARTS.iter().flat_map(|part| part.depends) {
            assert!(root().join(path).exists(), "{path}");
        }
        let page = fs::read_to_string(root().join(PAGE)).unwrap();
        for row in measured(&page).unwrap() {
            assert!(PARTS.iter().any(|part| part.name == row.part), "{row:?}");
        }
    }
}
