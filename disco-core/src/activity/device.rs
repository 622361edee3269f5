//! Times of operations on a device. A backend measures them by events of the worker's stream and adds them later, on the
//! worker's thread.

use std::sync::atomic::Ordering;

use super::clock::{Reading, Scale, ticks};
use super::record::RawRecord;
use super::{Activity, OpState, RecordKind};

/// The arguments of an operation, or of the first operation of a group, for the record of its time on a device.
#[derive(Clone, Copy, Debug)]
pub struct RunningOp(RawRecord);

impl Activity {
    /// The operation that the worker is inside. `None` outside of operations that are recorded. Called on the worker's
    /// thread.
    pub fn running_op(&self) -> Option<RunningOp> {
        let number = self.op.load(Ordering::Relaxed);
        // 0 before the first operation.
        let record = self.memory.read(number).filter(|_| number > 0)?;
        (record.state() == Some(OpState::Running)).then_some(RunningOp(record))
    }

    /// Records the time of an operation on a device: its start in nanoseconds of the machine's monotonic clock, its length,
    /// and the largest error of start and end, in nanoseconds. Called on the worker's thread, after the end.
    pub fn add_device_time(&self, op: &RunningOp, start: u64, length: u64, error: u64) {
        let scale = Scale::new(self.memory.first_reading(), Reading::now());
        let start = scale.ticks(start);
        self.memory.begin(op.0.on_device(start, start + scale.ticks_of(length), scale.ticks_of(error)));
    }

    /// Records the reason why records are missing.
    pub fn note(&self, why: &str) {
        self.add_moment(RawRecord::new(RecordKind::Note, self.intern(why).into(), ticks(), self.memory.received()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DataPath, OpPlace, RecorderConfig, Recording, nanoseconds};
    use super::*;
    use crate::op::{Op, OpKind};

    #[test]
    fn the_time_on_a_device_has_the_arguments_of_its_operation() {
        let activity = Activity::new(RecorderConfig::new(16, true));
        assert!(activity.running_op().is_none());
        let running = activity.start_ops(&Op::Barrier, &[Op::Barrier], 4, OpPlace::new(activity.intern("plane"), 7));
        activity.take_path(DataPath::Nccl);
        let op = activity.running_op().unwrap();
        running.end(true);
        assert!(activity.running_op().is_none());
        activity.add_device_time(&op, nanoseconds() - 5_000, 3_000, 700);
        activity.note("no device times: a test");
        let recording = Recording::decode(&activity.encode(usize::MAX)).unwrap();
        let [host, _, device, note] = &recording.records[..] else { panic!("{recording:?}") };
        assert_eq!((host.kind, device.kind), (RecordKind::Op(OpKind::Barrier), RecordKind::Device(OpKind::Barrier)));
        assert_eq!(device.op, host.op);
        assert_eq!(device.signature(), host.signature());
        assert_eq!((host.clock_error, device.state), (0, OpState::Done));
        assert!(device.end.unwrap() > device.start && device.clock_error > 0, "{device:?}");
        assert_eq!((note.kind, note.name.as_deref()), (RecordKind::Note, Some("no device times: a test")));
    }
}
