//! Traces of `disco run`: the clocks of nodes, in time namespaces, and files that can't be written.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use disco_core::activity::RecordKind;
use disco_trace::{Trace, explain};

use super::{DISCO, Folder, PROGRAM, disco, hello};

crate::trials::tests!("nodes::traces":
    the_clocks_of_nodes_are_aligned_in_a_trace,
);

const SECOND: i64 = 1_000_000_000;
/// How far the monotonic clocks of the nodes are ahead of the controller's, in seconds.
const AHEAD: [i64; 2] = [5_000, 90_000];
/// Error of the readings that relate the two clocks of each end, in nanoseconds.
const READING_ERROR: u64 = 20_000;

/// Skipped if this user can't make namespaces.
fn the_clocks_of_nodes_are_aligned_in_a_trace() {
    let may = Command::new("unshare").args(["--time", "--monotonic", "1", "true"]).output();
    if !may.is_ok_and(|tried| tried.status.success()) {
        return println!("skipped: this user can't make time namespaces");
    }
    // Second time: one node relays for the other.
    for program in ["say", "say-in-a-chain"] {
        let folder = Folder::new("clocks");
        let path = folder.token();
        let file = folder.0.join("trace.json");
        let mut run = disco();
        run.env(PROGRAM, program).args(["run", "--nodes", "3", "--token-file"]).arg(&path);
        run.arg("--trace").arg(&file).arg("--").arg(hello()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut run = run.spawn().unwrap();
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line.split(' ').find(|word| word.starts_with("127.0.0.1:")).unwrap().to_owned();
        let nodes = AHEAD.map(|ahead| {
            let mut node = Command::new("unshare");
            node.args(["--time", "--monotonic", &ahead.to_string(), DISCO, "worker", "--connect", &address]);
            node.env(PROGRAM, "say").arg("--token-file").arg(&path).arg("--").arg(hello()).spawn().unwrap()
        });
        nodes.into_iter().for_each(|mut node| assert!(node.wait().unwrap().success()));
        assert!(run.wait().unwrap().success(), "{:?}", lines.collect::<Vec<_>>());
        check(&Trace::read(&file).unwrap());
    }
}

fn check(trace: &Trace) {
    let controller = trace.controller.as_ref().unwrap();
    let mut found = Vec::new();
    for worker in &trace.workers[1..] {
        let recording = worker.recording.as_ref().unwrap();
        for record in &recording.records {
            let (shift, error) = recording.alignment.at(record.start);
            // The clock of each namespace is the controller's with an exact offset, so the true shift is known.
            let truth =
                *AHEAD.iter().find(|ahead| (shift + **ahead * SECOND).unsigned_abs() < 1_000 * SECOND as u64).unwrap();
            let off = (shift + truth * SECOND).unsigned_abs();
            assert!(off <= error + READING_ERROR, "{}: {shift} ± {error}, and it is -{truth} s", worker.worker);
            found.push(truth);
            // A command is submitted before it begins.
            let submitted =
                controller.records.iter().find(|it| it.kind == RecordKind::Command && it.command == record.command);
            if let Some(submitted) = submitted.filter(|_| record.kind == RecordKind::Command) {
                let begins = record.start.checked_add_signed(shift).unwrap() + error + READING_ERROR;
                assert!(submitted.start <= begins, "{submitted:?}, {record:?} {shift} ± {error}");
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, AHEAD);
    let text = explain(trace);
    assert!(text.contains("\nThe clocks of different machines are aligned within "), "{text}");
}
