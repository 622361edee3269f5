//! Recordings of workers, which may come from another process: an accepted one has times in order and a diagnosis or none.

#![no_main]

use disco_core::activity::{Activity, OpPlace, RecordKind, RecorderConfig, Recording};
use disco_core::op::Op;
use disco_core::wire::WireError;
use disco_core::{Diagnosis, Result, WorkerId};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), WireError> {
    let recording = Recording::decode(bytes)?;
    for record in &recording.records {
        assert!(record.end.is_none_or(|end| end >= record.start), "{record:?}");
        assert_eq!(record.op.is_some(), matches!(record.kind, RecordKind::Op(_)), "{record:?}");
    }
    let recordings = [(WorkerId::new(0), Ok(recording.clone())), (WorkerId::new(1), Ok(recording))];
    drop(Diagnosis::of(&recordings).map(|diagnosis| diagnosis.to_string()));
    Ok(())
}

fn seeds() -> Vec<Vec<u8>> {
    let activity = Activity::new(RecorderConfig::new(8, true));
    let comm = activity.intern("plane 1");
    activity.mark(activity.intern("recover"));
    let running = activity.start_op(&Op::Barrier, 2, OpPlace::new(comm, 1));
    let bytes = activity.encode(usize::MAX);
    drop(running);
    let failed = activity.encode(usize::MAX);
    vec![bytes, failed]
}
