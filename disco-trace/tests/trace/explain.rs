//! Explanations.

use disco_core::OpKind;
use disco_core::activity::RecordKind;
use disco_trace::{Trace, explain};

use crate::sample;

#[test]
fn an_explanation_has_the_hang_the_mismatch_the_times_and_the_late_worker() {
    let expected = include_str!("explain.txt");
    let text = explain(&sample::trace());
    assert_eq!(text, expected, "\n{text}");
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
fn waits_in_a_split_name_no_worker_because_its_ranks_may_have_any_order() {
    let mut trace = sample::trace();
    for recording in trace.workers.iter_mut().filter_map(|worker| worker.recording.as_mut().ok()) {
        for op in recording.records.iter_mut().filter_map(|record| record.op.as_mut()) {
            op.comm = "plane 1, split 1 color Some(0)".into();
        }
    }
    let text = explain(&trace);
    assert!(!text.contains("Workers that arrived last"), "{text}");
}
