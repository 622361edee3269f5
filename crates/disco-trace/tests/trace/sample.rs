//! A trace of four workers on two nodes, made by hand.

use std::sync::Arc;

use disco_core::activity::{
    Alignment, ClockPoint, CommKind, DataPath, OpDetails, OpState, Record, RecordKind, Recording,
};
use disco_core::{DType, OpKind, Rank, RegisterId, WorkerId};
use disco_trace::{Trace, WorkerTrace};

/// The communicator of all workers.
pub(crate) const WORLD: &str = "plane 00000000c0ffee00";
const MICROSECOND: u64 = 1_000;

/// Builds a recording. Times are in microseconds.
pub(crate) struct Builder(pub(crate) Recording);

impl Builder {
    pub(crate) fn new() -> Self {
        Self(Recording::default())
    }

    fn add(&mut self, kind: RecordKind, (start, end): (u64, Option<u64>)) -> &mut Record {
        let mut record = Record::new(self.0.records.len() as u64 + 1, kind, start * MICROSECOND);
        record.end = end.map(|end| end * MICROSECOND);
        record.state = if end.is_some() { OpState::Done } else { OpState::Running };
        record.command = self.0.received;
        self.0.time = self.0.time.max(end.unwrap_or(start) * MICROSECOND);
        self.0.records.push(record);
        self.0.records.last_mut().unwrap()
    }

    pub(crate) fn command(&mut self, number: u64, name: &str, times: (u64, Option<u64>)) -> &mut Record {
        self.0.received = number;
        if times.1.is_some() {
            self.0.finished = number;
        }
        let record = self.add(RecordKind::Command, times);
        record.name = Some(name.into());
        record.register = Some(RegisterId::new(number as u32));
        record
    }

    pub(crate) fn named(&mut self, kind: RecordKind, name: &str, times: (u64, Option<u64>)) {
        self.add(kind, times).name = Some(name.into());
    }

    /// An operation, with the time waited and the rank that came last.
    pub(crate) fn op(
        &mut self,
        kind: OpKind,
        comm: &str,
        (number, count): (u64, u64),
        times: (u64, Option<u64>),
        (waited, last): (u64, u32),
    ) -> &mut OpDetails {
        self.op_as(RecordKind::Op(kind), kind, comm, (number, count), times, (waited, last))
    }

    /// The time of such an operation on the device, with the largest error of its start.
    pub(crate) fn on_device(&mut self, kind: OpKind, of: (u64, u64), times: (u64, u64), error: u64) {
        let times = (times.0, Some(times.1));
        self.op_as(RecordKind::Device(kind), kind, WORLD, of, times, (0, 0));
        self.0.records.last_mut().unwrap().clock_error = error * MICROSECOND;
    }

    fn op_as(
        &mut self,
        as_kind: RecordKind,
        kind: OpKind,
        comm: &str,
        (number, count): (u64, u64),
        times: (u64, Option<u64>),
        (waited, last): (u64, u32),
    ) -> &mut OpDetails {
        let record = self.add(as_kind, times);
        let mut op = OpDetails::new(comm.into(), number);
        op.dtype = (kind != OpKind::Barrier).then_some(DType::F32);
        op.reduction = (kind == OpKind::AllReduce).then(|| "sum".into());
        op.count = count;
        op.path = DataPath::SharedMemory;
        op.waited = waited * MICROSECOND;
        op.last = (waited > 0).then_some(Rank::new(last));
        record.op = Some(op);
        record.op.as_mut().unwrap()
    }
}

/// Worker 2 is late. In the second step, worker 3 gathers another number of elements, in its group. In the last step, worker 3 reduces another number of elements, and worker 2 is still in its code.
pub(crate) fn trace() -> Trace {
    let mut controller = Builder::new();
    for step in 0..4 {
        controller.command(step + 1, "train.step", (1_000 * step + 5, Some(1_000 * step + 6)));
    }
    controller.named(RecordKind::Counter, "registers in use", (15, Some(15)));
    controller.0.records.last_mut().unwrap().value = 3;
    controller.named(RecordKind::Wait, "sync_all", (3_010, None));
    controller.0.time = 9_000 * MICROSECOND;
    let workers = (0..4).map(|worker| {
        let place = if worker < 2 { "node 0 (alpha)" } else { "node 1 (beta)" };
        let mut recording = recording(worker);
        if worker >= 2 {
            // The clock of the other machine.
            recording.records.iter_mut().for_each(|record| {
                record.start += 70_000_000;
                record.end = record.end.map(|end| end + 70_000_000);
            });
            recording.time += 70_000_000;
            let point = ClockPoint { time: 74_000_000, shift: -70_000_000, error: 12_000 };
            recording.alignment = Alignment::new([point]);
        }
        WorkerTrace::new(WorkerId::new(worker), place, "process", Ok(recording))
    });
    Trace::new("train", Some(controller.0), workers.collect())
}

fn recording(worker: u32) -> Recording {
    let mut it = Builder::new();
    if worker == 1 {
        it.named(RecordKind::Mark, "warning", (10, Some(10)));
    }
    let late = if worker == 2 { 300 } else { 10 * u64::from(worker) };
    for step in 0..3 {
        let at = 1_000 * step + 20;
        it.command(step + 1, "train.step", (at, Some(at + 900)));
        it.named(RecordKind::Span, "forward", (at + 50, Some(at + 100 + late)));
        let start = at + 100 + late;
        it.op(
            OpKind::AllReduce,
            WORLD,
            (2 * step + 1, 65_536),
            (start, Some(at + 460 + u64::from(worker))),
            (300 - late, 2),
        );
        let group = format!("{WORLD}, group {}", worker / 2);
        let count = if (worker, step) == (3, 1) { 1_025 } else { 1_024 };
        let of = it.op(OpKind::AllGather, &group, (step + 1, count), (at + 500, Some(at + 550)), (0, 0));
        of.kind = CommKind::Group;
        it.op(OpKind::Barrier, WORLD, (2 * step + 2, 0), (at + 600, Some(at + 640)), (20, 1));
    }
    it.command(4, "train.step", (3_020, None));
    if worker == 2 {
        it.0.inside = Some(Arc::from("train.step"));
    } else {
        let count = if worker == 3 { 65_537 } else { 65_536 };
        it.op(OpKind::AllReduce, WORLD, (7, count), (3_120, None), (0, 0));
    }
    it.0.time = 9_000 * MICROSECOND;
    it.0
}
