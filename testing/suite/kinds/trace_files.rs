//! Files of traces: their content, and sessions that write large ones, several at once, or none.

use std::path::{Path, PathBuf};

use disco::trace::Trace;
use disco::{LaneSession, SessionKind, block_on};

use super::records::commands;
use super::{Kind, SOON, builder, call, within};

super::tests![
    a_trace_file_has_the_timeline_and_an_unwritable_one_ends_no_program,
    two_sessions_at_once_write_a_trace_each,
    a_trace_of_many_commands_has_the_last_ones,
];

/// Number of commands of a long session; the second one if `DISCO_LONG_TESTS` is set.
const MANY: [usize; 2] = [2_000, 1_000_000];
/// Records that each worker keeps.
const KEPT: usize = 1 << 16;

fn a_trace_file_has_the_timeline_and_an_unwritable_one_ends_no_program(kind: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json.gz");
    let run = move |path: PathBuf| {
        let session = builder(kind).trace(path).start().unwrap();
        for _ in 0..5 {
            call(&session, "records.work", (0.0,)).unwrap();
        }
        within(SOON, "the session", move || block_on(session.shutdown()).unwrap());
    };
    run(path.clone());
    let trace = Trace::read(&path).unwrap();
    assert!(trace.missing.is_empty());
    let submitted = commands(trace.controller.as_ref().unwrap()).into_iter().map(|(number, _)| number);
    assert!(submitted.eq(1..=7));
    let places: Vec<_> = trace.workers.iter().map(|worker| (&worker.place[..], &worker.kind[..])).collect();
    let last = match kind.session() {
        SessionKind::Processes => ("this machine", "process"),
        SessionKind::Nodes => (places[3].0, "worker of a node"),
        _ => ("this machine", "thread"),
    };
    let first = ("this machine", if kind.is_apart() { "process" } else { "thread" });
    assert_eq!((places[0], places[3]), (first, last));
    assert_eq!(places[3].0.starts_with("node 1 ("), kind.is_nodes(), "{places:?}");
    for worker in &trace.workers {
        assert_eq!(commands(worker.recording.as_ref().unwrap()).len(), 7, "{worker:?}");
    }
    run("/proc/no such folder/out.json".into());
}

fn two_sessions_at_once_write_a_trace_each(kind: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["one.json", "two.json.gz"].map(|name| folder.path().join(name));
    let sessions: Vec<LaneSession> = paths.iter().map(|path| builder(kind).trace(path).start().unwrap()).collect();
    for (session, calls) in [(0, 3), (1, 5), (0, 2)] {
        (0..calls).for_each(|_| drop(call(&sessions[session], "records.work", (0.0,)).unwrap()));
    }
    for session in sessions {
        within(SOON, "the session", move || block_on(session.shutdown()).unwrap());
    }
    // The lookup of the function, and the shutdown.
    for (path, count) in paths.iter().zip([3 + 2 + 2, 5 + 2]) {
        assert_eq!(numbers(path), vec![(1..=count).collect::<Vec<u64>>(); 4]);
    }
}

/// The numbers of the commands of each worker, in a whole file.
fn numbers(path: &Path) -> Vec<Vec<u64>> {
    let trace = Trace::read(path).unwrap();
    assert!(trace.missing.is_empty(), "{}", trace.missing);
    let of = |recording| commands(recording).iter().map(|(number, _)| *number).collect();
    trace.workers.iter().map(|worker| of(worker.recording.as_ref().unwrap())).collect()
}

fn a_trace_of_many_commands_has_the_last_ones(kind: Kind) {
    let many = MANY[usize::from(std::env::var_os("DISCO_LONG_TESTS").is_some())];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json.gz");
    let session = builder(kind).trace(&path).start().unwrap();
    within(10 * SOON, "the session", move || {
        block_on(async {
            let function = session.function("records.work").await.unwrap();
            for _ in 0..many {
                drop(session.call(&function, (0.0,)).await.unwrap());
            }
            session.shutdown().await.unwrap();
        });
    });
    let last = many as u64 + 2;
    let kept = KEPT.min(last as usize);
    for numbers in numbers(&path) {
        // Counters may have taken the place of some.
        assert!((kept.saturating_sub(4096)..=kept).contains(&numbers.len()), "{}", numbers.len());
        assert!(numbers.iter().copied().eq(last + 1 - numbers.len() as u64..=last), "{:?}", numbers.last());
    }
}
