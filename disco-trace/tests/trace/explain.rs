//! Explanations.

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
