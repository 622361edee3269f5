//! The check over all crates of the workspace.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::graph::Graph;
use super::source::Source;
use crate::steps::CRATES;

/// Crates that may have cycles, with the reason.
const EXEMPT: [(&str, &str); 0] = [];

/// The modules of folders from the top: each uses those behind it only.
const ORDERS: [(&str, &[&str]); 3] = [
    (
        "disco-core/src/session/mod.rs",
        &[
            // Methods for programs.
            "results",
            "ext",
            "methods",
            "shutdown",
            "subset",
            // Changes of workers.
            "changed",
            "at_once",
            "changing",
            "recordings",
            "lane_session",
            "helpers",
            "plan",
            "new_lanes",
            "closing",
            "replacement_policy",
        ],
    ),
    (
        "disco-core/src/stream/mod.rs",
        &[
            "waits",
            "worker_0",
            "asking",
            "preparing",
            "explaining",
            "command_stream",
            "deadline_watch",
            "order",
            "large",
            "timeline",
            "functions",
            "reply_table",
            "fleet",
            "sleepers",
            "lane_set",
            "collecting",
            // What stands alone.
            "ticker",
            "selected",
            "args",
            "dref",
            "deadlines",
        ],
    ),
    (
        "crates/disco-engine/src/lib.rs",
        &[
            "controller",
            "member",
            "tree",
            "pending_requests",
            "transfers",
            "reply",
            "liveness",
            "clock",
            "credit",
            "limits",
            "fault",
            // Proofs and keys.
            "handshake",
            "noise",
            "token",
            "random",
        ],
    ),
];

/// Reads every crate of the workspace and compares its modules.
///
/// # Errors
/// A cycle between modules of a crate, with the lines that close it. An exempt crate without a cycle. A module of
/// [`ORDERS`] that uses one before it.
pub(crate) fn check() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for (file, order) in ORDERS {
        let read = |path: &Path| fs::read_to_string(workspace.join(path)).ok();
        let source = Source::read(Path::new(file), &read)?;
        found.extend(Graph::of(&source).against(order).into_iter().map(|line| format!("{file}: {line}")));
    }
    for (name, folder) in CRATES {
        let cycles = cycles(&workspace.join(folder)).with_context(|| format!("cannot read the modules of {name}"))?;
        let Some((_, reason)) = EXEMPT.iter().find(|(exempt, _)| *exempt == name) else {
            found.extend(cycles.into_iter().map(|cycle| format!("{name}: {cycle}")));
            continue;
        };
        ensure!(!cycles.is_empty(), "{name} has no cycle between modules any more: remove it from EXEMPT");
        println!("{name}: not checked: {reason}");
    }
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(())
}

/// The cycles of the package in a folder, as text. A package of only tests or benchmarks has none.
fn cycles(package: &Path) -> Result<Vec<String>> {
    let read = |path: &Path| fs::read_to_string(package.join(path)).ok();
    let roots = ["src/lib.rs", "src/main.rs"].map(PathBuf::from);
    let Some(root) = roots.iter().find(|root| package.join(root).exists()) else {
        ensure!(!package.join("src").exists(), "no src/lib.rs and no src/main.rs");
        return Ok(Vec::new());
    };
    let source = Source::read(root, &read)?;
    Ok(Graph::of(&source).cycles().iter().map(ToString::to_string).collect())
}
