//! Reports.

use std::fs;

use disco_trace::report::{self, Measured};
use disco_trace::{Trace, explain};
use proptest::prelude::*;

use crate::{arbitrary, sample};

#[test]
fn a_report_has_the_findings_and_a_table_below_each_picture_and_loads_nothing() {
    let page = report::page(&sample::trace(), &[]);
    assert!(page.contains("Missing: worker 2 has not called it."), "{page}");
    assert_eq!(page.matches("<svg").count(), 4);
    assert_eq!(page.matches("<table").count(), 4);
    // The first step: worker 0 waited 300 µs in each of three operations.
    assert!(page.contains("<title>worker 0 waited 900 µs for worker 2</title>"), "{page}");
    assert!(page.contains("<td>all_reduce, 4 ranks, 256 KiB</td><td>3</td><td>189 µs</td>"), "{page}");
    assert!(!page.contains("http") && !page.contains("src="), "{page}");
}

#[test]
fn measured_bandwidths_stand_beside_those_of_the_same_operation_ranks_and_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bench.json");
    fs::write(
        &path,
        r#"{"operation": "all_reduce", "workers": 4, "rows": [
            {"size": 4096, "out_of_place": {"algbw": 9.0}, "in_place": null},
            {"size": 262144, "out_of_place": {"algbw": 7.0}, "in_place": {"algbw": 8.5}}]}"#,
    )
    .unwrap();
    let measured = Measured::read(&path).unwrap();
    let page = report::page(&sample::trace(), &[measured]);
    assert!(page.contains("<td>4.16</td><td>4.16</td><td>8.5</td>"), "{page}");
    fs::write(&path, "[]").unwrap();
    let error = Measured::read(&path).unwrap_err().to_string();
    assert!(error.contains("bench.json, line 1: not an output of `disco bench --json`"), "{error}");
}

#[test]
fn names_in_a_report_are_text() {
    let mut trace = sample::trace();
    trace.program = "<script>alert(1)</script>".to_owned();
    trace.workers[0].recording = Err("<b>lost</b>".to_owned());
    let page = report::page(&trace, &[]);
    assert!(!page.contains("<script") && !page.contains("<b>"), "{page}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_trace_has_a_report_and_an_explanation(trace in arbitrary::trace()) {
        prop_assert!(report::page(&trace, &[]).ends_with("</html>\n"));
        prop_assert!(explain(&trace).starts_with("Trace of "));
        let folder = tempfile::tempdir().unwrap();
        disco_trace::flight_recorder::write(&trace, folder.path()).unwrap();
    }
}

#[test]
fn many_workers_share_rows() {
    let one = sample::trace().workers[0].clone();
    let workers = (0..200).map(|worker| {
        let mut it = one.clone();
        it.worker = disco_core::WorkerId::new(worker);
        it
    });
    let page = report::page(&Trace::new("many", None, workers.collect()), &[]);
    assert!(page.contains(">workers 0 to 3</text>") && page.contains(">workers 196 to 199</text>"), "{page}");
}
