//! The check over all crates of the workspace.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::graph::{Cycle, Graph};
use super::source::{Folder, Source};
use crate::workspace::packages;

/// Cycles inside folders that are still there, each with its crate: none is added, and one that is gone leaves this list.
const KNOWN: [(&str, &str); 5] = [
    ("disco-gpu-double", "faults → values → faults"),
    ("disco-gpu-double", "across → clique → across"),
    ("disco-gpu-double", "host → proxy → host"),
    ("disco-gpu-double", "capture → stream → capture"),
    ("disco-gpu-double", "handshake → launch → handshake"),
];

/// The modules of folders from the top: each uses those behind it only.
const ORDERS: [(&str, &[&str]); 3] = [
    (
        "disco-core/src/session/mod.rs",
        &[
            // Methods for programs.
            "results",
            "returned",
            "calls",
            "values",
            "methods",
            "observer",
            "shutdown",
            "subset",
            // Changes of workers.
            "changed",
            "at_once",
            "changing",
            "lane_session",
            "submission",
            "helpers",
            "config",
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
            "rank_handshake",
            "noise",
            "token",
            "random",
        ],
    ),
];

/// Reads every crate of the workspace and compares its modules.
///
/// # Errors
/// A cycle between modules of a folder, with the lines that close it. A cycle of [`KNOWN`] that is gone. A module of
/// [`ORDERS`] that uses one before it.
pub(crate) fn check() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    let mut known = KNOWN.to_vec();
    for (file, order) in ORDERS {
        let read = |path: &Path| fs::read_to_string(workspace.join(path)).ok();
        let source = Source::read(&Folder::of_crate(Path::new(file)), &read)?;
        found.extend(Graph::of(&source).against(order).into_iter().map(|line| format!("{file}: {line}")));
    }
    for package in packages()? {
        let (name, folder) = (&*package.name, package.folder());
        let cycles = cycles(&workspace.join(folder)).with_context(|| format!("cannot read the modules of {name}"))?;
        for cycle in cycles {
            let names = cycle.names();
            match known.iter().position(|it| *it == (name, &*names)) {
                Some(at) => _ = known.remove(at),
                None => found.push(format!("{name}: {cycle}")),
            }
        }
    }
    found.extend(known.into_iter().map(|(name, cycle)| format!("{name}: {cycle} is gone: remove it from KNOWN")));
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(())
}

/// The cycles of the package in a folder. A package of only tests or benchmarks has none.
fn cycles(package: &Path) -> Result<Vec<Cycle>> {
    let read = |path: &Path| fs::read_to_string(package.join(path)).ok();
    let roots = ["src/lib.rs", "src/main.rs"].map(PathBuf::from);
    let Some(root) = roots.iter().find(|root| package.join(root).exists()) else {
        ensure!(!package.join("src").exists(), "no src/lib.rs and no src/main.rs");
        return Ok(Vec::new());
    };
    let mut cycles = Vec::new();
    for folder in Folder::of_crate(root).all(&read)? {
        cycles.extend(Graph::of(&Source::read(&folder, &read)?).cycles());
    }
    Ok(cycles)
}
