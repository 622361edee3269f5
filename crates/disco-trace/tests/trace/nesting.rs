//! Shapes that viewers draw: slices that nest, arrows between slices, counters.

use std::collections::BTreeMap;

use disco_core::activity::{Alignment, ClockPoint};
use disco_core::{OpKind, WorkerId};
use disco_trace::{Trace, WorkerTrace};
use proptest::prelude::*;
use serde_json::Value;

use crate::file::written;
use crate::{arbitrary, sample};

/// A time in nanoseconds, ten years after the first one.
const LATE: u64 = 296_074_975_465_924_453;

fn events(trace: &Trace) -> Vec<Value> {
    serde_json::from_slice(&written(trace, "trace.json")).unwrap()
}

/// Nanoseconds.
fn ns(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1e3).round() as u64
}

fn is(event: &Value, phase: &str) -> bool {
    event["ph"] == phase
}

/// Fails if slices of a track overlap without one being inside of the other.
fn check_nesting(events: &[Value]) {
    let mut tracks: BTreeMap<u64, Vec<(u64, u64, &Value)>> = BTreeMap::new();
    for event in events.iter().filter(|event| is(event, "X")) {
        let start = ns(&event["ts"]);
        tracks.entry(event["tid"].as_u64().unwrap()).or_default().push((start, start + ns(&event["dur"]), event));
    }
    for slices in tracks.values_mut() {
        // Stable: of slices with the same start, the outer one is written first.
        slices.sort_by_key(|slice| slice.0);
        let mut open: Vec<(u64, &Value)> = Vec::new();
        for (start, end, event) in slices {
            open.retain(|(end, _)| *end > *start);
            for (outer, other) in &open {
                assert!(*end <= *outer, "{event}\novertakes\n{other}");
            }
            open.push((*end, event));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn slices_of_a_track_nest(trace in arbitrary::trace()) {
        // Larger times have no nanoseconds as 64-bit floats, which is what viewers read.
        let is_small = |event: &Value| event["ts"].as_f64().unwrap_or(0.0) + event["dur"].as_f64().unwrap_or(0.0) < 1e9;
        let small: Vec<Value> = events(&trace).into_iter().filter(is_small).collect();
        check_nesting(&small);
    }
}

#[test]
fn slices_nest_where_the_alignment_of_clocks_changes_their_order() {
    let mut recording = sample::Builder::new();
    for (start, end) in [(2, 3), (LATE, LATE + 90)] {
        recording.op(OpKind::AllReduce, sample::WORLD, (1, 1), (0, Some(0)), (0, 0));
        let record = recording.0.records.last_mut().unwrap();
        (record.start, record.end) = (start, Some(end));
    }
    recording.0.alignment = Alignment::new([
        ClockPoint { time: 16_829, shift: 5_189_878_009_486_372_726, error: 15_371_553_662_412_541_394 },
        ClockPoint { time: 8_203_692_354_489_793_156, shift: 122, error: 13_410_395_349_993_560_611 },
    ]);
    let aligned = |time: u64| i128::from(time) + i128::from(recording.0.alignment.at(time).0);
    assert!(aligned(LATE) < aligned(2), "{} {}", aligned(LATE), aligned(2));
    let worker = WorkerTrace::new(WorkerId::new(0), "here", "", Ok(recording.0));
    check_nesting(&events(&Trace::new("", None, vec![worker])));
}

#[test]
fn a_worker_has_a_track_on_which_commands_contain_operations_and_these_their_waits() {
    let events = events(&sample::trace());
    check_nesting(&events);
    let name = |event: &Value| event["args"]["name"].as_str().unwrap_or_default().to_owned();
    let names = |what: &str| events.iter().filter(|event| event["name"] == what).map(name).collect::<Vec<_>>();
    assert_eq!(names("process_name"), ["controller", "node 0 (alpha)", "node 1 (beta)"]);
    assert_eq!(names("thread_name"), ["controller", "worker 0", "worker 1", "worker 2", "worker 3"]);
    // The first step of worker 0: its time is that of the controller's clock.
    let first: Vec<_> = events
        .iter()
        .filter(|event| is(event, "X") && event["tid"] == 65)
        .take(6)
        .map(|event| (event["name"].as_str().unwrap(), ns(&event["ts"]), ns(&event["dur"])))
        .collect();
    assert_eq!(
        first,
        [
            ("train.step", 15_000, 900_000),
            ("forward", 65_000, 50_000),
            ("all_reduce", 115_000, 360_000),
            ("wait for rank 2", 115_000, 300_000),
            ("all_gather", 515_000, 50_000),
            ("barrier", 615_000, 40_000),
        ]
    );
    let reduce = events.iter().find(|event| event["name"] == "all_reduce").unwrap();
    let args = &reduce["args"];
    assert_eq!((&args["dtype"], &args["count"], &args["bytes"]), (&"f32".into(), &65_536.into(), &262_144.into()));
    assert_eq!(
        (&args["reduction"], &args["path"], &args["state"]),
        (&"sum".into(), &"shared memory".into(), &"done".into())
    );
    assert_eq!((&args["algbw_GB_s"], &args["number"]), (&0.728.into(), &1.into()));
    let hanging = events.iter().rfind(|event| event["name"] == "all_reduce (unfinished)").unwrap();
    assert_eq!((&hanging["args"]["unfinished"], ns(&hanging["dur"])), (&true.into(), 9_000_000 - 3_120_000));
}

#[test]
fn arrows_join_submissions_with_commands_and_the_calls_of_a_collective() {
    let events = events(&sample::trace());
    let flow = |cat: &str, phase: &str| events.iter().filter(|event| event["cat"] == cat && is(event, phase)).count();
    assert_eq!((flow("submit", "s"), flow("submit", "f")), (16, 16), "four commands of four workers");
    // Seven of the world, the last one of three workers, and three of each group of two.
    assert_eq!((flow("collective", "s"), flow("collective", "t"), flow("collective", "f")), (13, 13, 13));
    // Each end of an arrow is inside of a slice of its track, and arrows do not go back in time.
    let mut starts: BTreeMap<(String, u64), u64> = BTreeMap::new();
    let mut arrows: Vec<&Value> = events.iter().filter(|event| !event["id"].is_null()).collect();
    arrows.sort_by_key(|event| ns(&event["ts"]));
    for event in arrows {
        let at = ns(&event["ts"]);
        let slice = |slice: &&Value| {
            is(slice, "X")
                && slice["tid"] == event["tid"]
                && (ns(&slice["ts"])..=ns(&slice["ts"]) + ns(&slice["dur"])).contains(&at)
        };
        assert!(events.iter().any(|it| slice(&it)), "{event}");
        let key = (event["cat"].to_string(), event["id"].as_u64().unwrap());
        if is(event, "s") {
            assert!(starts.insert(key, at).is_none(), "{event}")
        } else {
            assert!(starts[&key] <= at, "{event}")
        }
    }
}

#[test]
fn counters_show_unfinished_commands_and_bandwidth() {
    let events = events(&sample::trace());
    let points = |name: &str| -> Vec<(u64, f64)> {
        let all = events.iter().filter(|event| is(event, "C") && event["name"] == name);
        all.map(|event| (ns(&event["ts"]), event["args"]["value"].as_f64().unwrap())).collect()
    };
    let unfinished = points("worker 1 unfinished commands");
    assert_eq!(unfinished[..3], [(0, 1.0), (915_000, 0.0), (1_000_000, 1.0)]);
    assert_eq!(unfinished.last(), Some(&(3_000_000, 1.0)), "the last one hangs");
    let bandwidth = points("worker 1 GB/s");
    let highest = bandwidth.iter().map(|point| point.1).fold(0.0, f64::max);
    assert!((0.7..0.8).contains(&highest), "{highest}: 256 KiB in 351 µs");
    assert!(bandwidth.iter().any(|point| point.1 == 0.0));
    assert_eq!(points("controller registers in use"), [(10_000, 3.0)]);
}

#[test]
fn an_operation_whose_end_is_not_recorded_is_drawn_at_its_start_and_is_not_unfinished() {
    let mut trace = sample::trace();
    let recording = trace.workers[0].recording.as_mut().unwrap();
    recording.records.retain(|record| record.op.is_some());
    recording.records[0].end = None;
    let events = events(&trace);
    let event = events.iter().find(|event| event["cat"] == "op").unwrap();
    assert_eq!((event["name"].as_str(), ns(&event["dur"])), (Some("all_reduce"), 0));
    assert!(event["args"]["unfinished"].is_null() && event["args"]["end_ns"].is_null(), "{event}");
}
