//! Times of operations on devices.

use disco_core::activity::RecordKind;
use disco_core::{OpKind, WorkerId};
use disco_trace::{Trace, WorkerTrace, explain};
use serde_json::Value;

use crate::file::written;
use crate::sample::{Builder, WORLD};

const COUNT: u64 = 65_536;

/// Two workers, each with two sums, a group of two sums, and a barrier that has no time on the device yet. Times are in
/// microseconds.
fn trace() -> Trace {
    let workers = (0..2).map(|worker| {
        let mut it = Builder::new();
        it.named(RecordKind::Note, "some device times are missing: a test", (5, Some(5)));
        it.command(1, "train.step", (10, Some(90)));
        let mut sum =
            |number, start| _ = it.op(OpKind::AllReduce, WORLD, (number, COUNT), (start, Some(start + 4)), (0, 0));
        sum(1, 20);
        sum(2, 30);
        sum(3, 40);
        it.op(OpKind::AllReduce, WORLD, (4, COUNT), (40, Some(40)), (0, 0)).behind = 1;
        it.op(OpKind::Barrier, WORLD, (5, 0), (60, Some(62)), (0, 0));
        // The second one overlaps the first one by the error of the clocks.
        it.on_device(OpKind::AllReduce, (1, COUNT), (22, 122), 9);
        it.on_device(OpKind::AllReduce, (2, COUNT), (120, 230), 8);
        it.on_device(OpKind::AllReduce, (3, COUNT), (240, 500), 7);
        WorkerTrace::new(WorkerId::new(worker), "this machine", "thread", Ok(it.0))
    });
    Trace::new("train", None, workers.collect())
}

#[test]
fn a_device_has_a_track_whose_slices_are_joined_with_their_launches() {
    let trace = trace();
    let bytes = written(&trace, "trace.json");
    let read = Trace::decode(&*bytes, "trace.json".as_ref()).unwrap();
    assert_eq!(read, trace);
    let events: Vec<Value> = serde_json::from_slice(&bytes).unwrap();
    let tracks = events.iter().filter(|event| event["name"] == "thread_name");
    let tracks: Vec<_> = tracks.map(|event| (event["args"]["name"].as_str().unwrap(), &event["tid"])).collect();
    let names: Vec<_> = tracks.iter().map(|track| track.0).collect();
    assert_eq!(names, ["worker 0", "worker 1", "worker 0, device", "worker 1, device"]);
    for (_, tid) in &tracks[2..] {
        let slices: Vec<_> = events.iter().filter(|it| it["ph"] == "X" && it["tid"] == **tid).collect();
        let drawn = slices.iter().map(|it| (it["name"].as_str().unwrap(), it["ts"].as_f64(), it["dur"].as_f64()));
        let sum = |start, length| ("all_reduce", Some(start), Some(length));
        // The file starts at 5 µs.
        assert_eq!(drawn.collect::<Vec<_>>(), [sum(17.0, 100.0), sum(117.0, 108.0), sum(235.0, 260.0)]);
        let args = &slices[1]["args"];
        assert_eq!(
            (&args["kind"], &args["dtype"], &args["bytes"]),
            (&"device all_reduce".into(), &"f32".into(), &262_144.into())
        );
        assert_eq!((&args["comm"], &args["number"]), (&WORLD.into(), &2.into()));
        assert_eq!(
            ["start_ns", "end_ns", "clock_error_ns"].map(|key| args[key].as_u64().unwrap()),
            [120_000, 230_000, 8_000]
        );
    }
    let ends = |phase: &str| {
        let ends = events.iter().filter(|it| it["cat"] == "launch" && it["ph"] == phase);
        let end = |it: &Value| (it["id"].as_u64().unwrap(), it["tid"].as_u64().unwrap(), it["ts"].as_f64().unwrap());
        let mut ends = Vec::from_iter(ends.map(end));
        ends.sort_by_key(|end| end.0);
        ends
    };
    let (starts, finishes) = (ends("s"), ends("f"));
    assert_eq!((starts.len(), finishes.len()), (6, 6));
    for (at, (start, finish)) in starts.iter().zip(&finishes).enumerate() {
        let (launches, slices) = ([15.0, 25.0, 35.0], [17.0, 117.0, 235.0]);
        assert_eq!((start.0, start.2, finish.2), (finish.0, launches[at % 3], slices[at % 3]));
        // The device's track is the last one of the worker.
        assert_eq!(finish.1, start.1 + 63);
    }
}

#[test]
fn an_explanation_compares_single_operations_with_their_launches() {
    let trace = trace();
    let text = explain(&trace);
    assert!(text.contains("\nworkers 0, 1: some device times are missing: a test\n"), "{text}");
    let expected = "\
Times on devices, by event records of each worker's stream (starts are known within 9 µs):
  operation      size  count  on the device  algbw (GB/s)  of the host's call
  all_reduce  256 KiB      4         110 µs          2.38                4 µs
";
    assert!(text.contains(expected), "{text}");
    // Times on devices are no operations of the host: they count neither as its time nor as calls.
    let mut without = trace.clone();
    for recording in without.workers.iter_mut().filter_map(|it| it.recording.as_mut().ok()) {
        recording.records.retain(|record| !matches!(record.kind, RecordKind::Device(_)));
    }
    let times = |text: &str| text.split_once("Slowest collectives").unwrap().1.split_once("\n\n").unwrap().0.to_owned();
    assert_eq!(times(&text), times(&format!("{}\n\n", explain(&without))));
}
