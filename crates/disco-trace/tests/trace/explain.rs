//! Explanations.

use disco_core::activity::{Alignment, ClockPoint, CommKind, OpState, RecordKind};
use disco_core::{OpKind, Rank};
use disco_trace::{Trace, explain};
use proptest::prelude::*;

use crate::{arbitrary, sample};

#[test]
fn an_explanation_has_the_hang_the_mismatch_the_times_and_the_late_worker() {
    let expected = include_str!("explain.txt");
    let text = explain(&sample::trace());
    assert_eq!(text, expected, "\n{text}");
}

/// The communicators of the new epoch have the names and numbers of the old ones.
#[test]
fn operations_before_a_recovery_are_not_compared_with_those_since_then() {
    let mut trace = sample::trace();
    let recordings = || sample::trace().workers.into_iter().map(|it| it.recording.unwrap());
    let hang = recordings().next().unwrap().records.into_iter().rfind(|record| record.op.is_some()).unwrap();
    for it in trace.workers.iter_mut().map(|it| it.recording.as_mut().unwrap()) {
        let mut mark = hang.clone();
        (mark.kind, mark.name, mark.op) = (RecordKind::Mark, Some("recover".into()), None);
        (mark.state, mark.end, mark.command) = (OpState::Done, Some(mark.start), 9);
        let mut again = hang.clone();
        (again.state, again.end, again.command) = (OpState::Done, Some(again.start + 1_000), 10);
        it.records.extend([mark, again]);
    }
    let before = explain(&sample::trace());
    let (_, hang) = before.split_once("\n\nOperation 7 of ").unwrap();
    let mismatch = hang.split_once("The workers do not call").unwrap().1.split_once("\n\n").unwrap().0;
    let text = explain(&trace);
    assert!(text.contains("\n\nBefore recovery 1 of 1:\nOperation 7 of plane 00000000c0ffee00, as "), "{text}");
    // Also that worker 2 is missing.
    assert!(text.contains(mismatch), "{text}");
    assert!(text.contains("\n\nNo operation hangs or has failed since the last recovery.\n"), "{text}");
    // A worker that has not called it since then is missing, though it had called the operation of this number.
    let last = trace.workers[0].recording.as_mut().unwrap();
    last.records.pop();
    for it in trace.workers.iter_mut().skip(1).map(|it| it.recording.as_mut().unwrap()) {
        let again = it.records.last_mut().unwrap();
        (again.state, again.end) = (OpState::Running, None);
    }
    let text = explain(&trace);
    assert!(text.contains("Missing: worker 0 has not called it."), "{text}");
}

#[test]
fn a_trace_without_records_is_explained_in_a_line() {
    assert_eq!(
        explain(&Trace::new("nothing", None, Vec::new())),
        "Trace of nothing: 0 workers, 0 records over 0 ns\n\nNo operation hangs or has failed.\n"
    );
}

#[test]
fn counts_of_v_forms_that_differ_are_no_mismatch() {
    let mut trace = sample::trace();
    let recordings = trace.workers.iter_mut().map(|it| it.recording.as_mut().unwrap());
    for record in recordings.flat_map(|recording| &mut recording.records) {
        if matches!(record.kind, RecordKind::Op(OpKind::AllGather | OpKind::AllReduce)) {
            record.kind = RecordKind::Op(OpKind::AllToAllV);
            record.op.as_mut().unwrap().reduction = None;
        }
    }
    let text = explain(&trace);
    assert!(!text.contains("do not call the same"), "{text}");
    assert!(text.contains("Missing: worker 2 has not called it."), "{text}");
}

#[test]
fn waits_in_a_split_name_the_workers_whose_ranks_are_recorded() {
    let explain_with = |rank: fn(u32) -> u32| {
        let mut trace = sample::trace();
        for (worker, it) in (0..).zip(&mut trace.workers) {
            let records = it.recording.as_mut().map_or(&mut [][..], |recording| &mut recording.records);
            for op in records.iter_mut().filter_map(|record| record.op.as_mut()) {
                op.comm = "plane 1, split 1 color Some(0)".into();
                op.kind = CommKind::Split(Rank::new(rank(worker)));
            }
        }
        explain(&trace)
    };
    // Its ranks may have any order, and the ranks that arrived last have recorded nothing.
    let unknown = explain_with(|worker| worker + 10);
    assert!(!unknown.contains("Workers that arrived last"), "{unknown}");
    let known = explain_with(|worker| (worker + 1) % 4);
    let late = known.split_once("Workers that arrived last").unwrap().1;
    let workers: Vec<&str> = late.lines().filter_map(|line| line.trim().split_inclusive("  ").next()).collect();
    assert_eq!(
        workers[2..].iter().map(|worker| worker.trim()).collect::<Vec<_>>(),
        ["worker 1", "worker 0"],
        "{known}"
    );
}

#[test]
fn the_time_of_a_group_is_that_of_its_first_operation() {
    let mut trace = sample::trace();
    // All gathers are behind the sum before them.
    for recording in trace.workers.iter_mut().filter_map(|worker| worker.recording.as_mut().ok()) {
        for index in 1..recording.records.len() {
            let (before, start) = (recording.records[index - 1].op.clone(), recording.records[index - 1].start);
            let record = &mut recording.records[index];
            if let (Some(_), Some(op)) =
                (before, record.op.as_mut().filter(|_| record.kind == RecordKind::Op(OpKind::AllGather)))
            {
                op.behind = 1;
                (record.start, record.end) = (start, Some(start));
            }
        }
    }
    let text = explain(&trace);
    let slow = text.split_once("Slowest collectives").unwrap().1;
    assert!(slow.contains("all_reduce sum f32 x 65536") && !slow.contains("all_gather"), "{text}");
}

#[test]
fn no_worker_came_last_within_the_error_of_the_clocks() {
    let mut trace = sample::trace();
    for recording in trace.workers.iter_mut().skip(2).filter_map(|worker| worker.recording.as_mut().ok()) {
        let point = ClockPoint { error: 500_000, ..recording.alignment.points()[0] };
        recording.alignment = Alignment::new([point]);
    }
    let text = explain(&trace);
    assert!(text.contains("The clocks of different machines are aligned within 501 µs.\n"), "{text}");
    let sum = text.lines().find(|line| line.trim_start().starts_with("all_reduce sum f32 x 65536 ")).unwrap();
    // Worker 2 came 300 µs after the workers of the other machine.
    assert!(sum.ends_with("–           300 µs"), "{sum}");
}

#[test]
fn machines_whose_clocks_are_not_aligned_are_named() {
    let mut trace = sample::trace();
    trace.workers.iter_mut().filter_map(|worker| worker.recording.as_mut().ok()).for_each(|recording| {
        recording.alignment = Alignment::default();
    });
    let text = explain(&trace);
    let expected = "\nThe clocks of node 0 (alpha), node 1 (beta) are not aligned: compare times only within one of these places.\n";
    assert!(text.contains(expected), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_trace_has_an_explanation_and_dumps(trace in arbitrary::trace()) {
        prop_assert!(explain(&trace).starts_with("Trace of "));
        let folder = tempfile::tempdir().unwrap();
        disco_trace::flight_recorder::write(&trace, folder.path()).unwrap();
    }
}
