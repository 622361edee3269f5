//! Files of traces: an accepted file is written and read again as the same trace, and has an explanation.

#![no_main]

use std::path::Path;

use disco_core::WorkerId;
use disco_core::activity::{Activity, OpPlace, Recording};
use disco_core::op::Op;
use disco_trace::{Trace, TraceError, WorkerTrace, explain};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), TraceError> {
    let trace = read(bytes)?;
    drop(explain(&trace));
    let written = write(&trace);
    let again = read(&written).expect("a file that was written can be read");
    assert_eq!(write(&again), written);
    Ok(())
}

fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    Trace::decode(bytes, Path::new("input"))
}

fn write(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    trace.encode(&mut bytes).expect("memory takes a file");
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let activity = Activity::default();
    let comm = activity.intern("plane 1");
    activity.start_op(&Op::Barrier, 2, OpPlace::new(comm, 1)).end(true);
    activity.mark(activity.intern("recover"));
    let recording = Recording::decode(&activity.encode(usize::MAX)).expect("what an activity has encoded");
    let workers = [Ok(recording.clone()), Err("lost".to_owned())];
    let workers = (0..).zip(workers).map(|(id, it)| WorkerTrace::new(WorkerId::new(id), "here", "thread", it));
    let whole = write(&Trace::new("train", Some(recording), workers.collect()));
    vec![whole[..whole.len() * 2 / 3].to_vec(), whole]
}
