//! Recordings of workers, which may come from another process: an accepted one has times in order, a diagnosis or none,
//! and can be aligned with another clock.

#![no_main]

use disco_core::activity::{
    Activity, Alignment, ClockPoint, OpPlace, RecordKind, RecorderConfig, Recording, align, nanoseconds,
};
use disco_core::op::Op;
use disco_core::wire::WireError;
use disco_core::{Diagnosis, Result, WorkerId};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), WireError> {
    let recording = Recording::decode(bytes)?;
    for record in &recording.records {
        assert!(record.end.is_none_or(|end| end >= record.start), "{record:?}");
        assert_eq!(record.op.is_some(), matches!(record.kind, RecordKind::Op(_) | RecordKind::Device(_)), "{record:?}");
    }
    let aligned = align(bytes, &hop()).expect("a recording that was decoded can be aligned");
    let aligned = Recording::decode(&aligned).expect("a recording that was aligned can be decoded");
    assert_eq!(aligned.alignment, recording.alignment.then(&hop()));
    assert_eq!(aligned.records, recording.records);
    for time in [0, recording.time, u64::MAX] {
        _ = aligned.alignment.at(time);
    }
    let recordings = [(WorkerId::new(0), Ok(recording.clone())), (WorkerId::new(1), Ok(recording))];
    drop(Diagnosis::of(&recordings).map(|diagnosis| diagnosis.to_string()));
    Ok(())
}

fn hop() -> Alignment {
    Alignment::new([
        ClockPoint { time: 1 << 40, shift: -5, error: 7 },
        ClockPoint { time: 1 << 41, shift: 9, error: 3 },
    ])
}

fn seeds() -> Vec<Vec<u8>> {
    let activity = Activity::new(RecorderConfig::new(8, true));
    let comm = activity.intern("plane 1");
    activity.mark(activity.intern("recover"));
    activity.count(activity.intern("registers in use"), 3);
    let running = activity.start_op(&Op::Barrier, 2, OpPlace::new(comm, 1));
    activity.running_op().into_iter().for_each(|op| activity.add_device_time(&op, nanoseconds() - 9, 7, 3));
    activity.note("no device times: a test");
    let bytes = activity.encode(usize::MAX);
    drop(running);
    let failed = activity.encode(usize::MAX);
    let aligned = align(&bytes, &hop()).expect("a recording that was encoded can be aligned");
    vec![bytes, failed, aligned]
}
