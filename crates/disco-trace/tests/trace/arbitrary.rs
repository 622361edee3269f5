//! Arbitrary traces, also with clocks that jump.

use std::sync::Arc;

use disco_core::activity::{
    Alignment, ClockPoint, CommKind, DataPath, OpDetails, OpState, Record, RecordKind, Recording,
};
use disco_core::{DType, OpKind, Rank, RegisterId, WorkerId};
use disco_trace::{Trace, WorkerTrace};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

fn name() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![
        select(vec!["train.step", "plane 1", "plane 1, split 1 color Some(0)"]).prop_map(Arc::from),
        ".{0,12}".prop_map(Arc::from)
    ]
}

/// Mostly near each other, so that records overlap in all ways.
fn time() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..200_u64, 1 => any::<u64>()]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..6_u64, 1 => any::<u64>()]
}

fn op() -> impl Strategy<Value = OpDetails> {
    let values = (name(), number(), option::of(select(DType::all().collect::<Vec<_>>())), number());
    let more =
        (option::of(name()), option::of(0..5_u32), select(DataPath::ALL.to_vec()), time(), option::of(any::<u32>()));
    (values, more).prop_map(|((comm, number, dtype, count), (reduction, root, path, waited, last))| {
        let mut op = OpDetails::new(comm, number);
        (op.dtype, op.count, op.reduction) = (dtype, count, reduction);
        op.kind = match root {
            None => CommKind::World,
            Some(0) => CommKind::Group,
            Some(root) => CommKind::Split(Rank::new(root ^ 1)),
        };
        op.behind = count as u8;
        (op.root, op.path, op.waited, op.last) = (root.map(Rank::new), path, waited, last.map(Rank::new));
        op
    })
}

fn kind() -> impl Strategy<Value = RecordKind> {
    let [command, span, wait] = [RecordKind::Command, RecordKind::Span, RecordKind::Wait];
    let other = vec![command, span, wait, RecordKind::Mark, RecordKind::Counter, RecordKind::Note];
    let [op, device] = [RecordKind::Op, RecordKind::Device].map(|of| select(OpKind::ALL.to_vec()).prop_map(of));
    prop_oneof![op, device, select(other)]
}

fn record() -> impl Strategy<Value = Record> {
    let what = (kind(), option::of(name()), op());
    let when = (time(), option::of(time()), select(OpState::ALL.to_vec()), number(), option::of(any::<u32>()));
    (what, when).prop_map(|((kind, name, op), (start, end, state, command, register))| {
        let mut record = Record::new(0, kind, start);
        (record.name, record.end, record.state, record.command) = (name, end, state, command);
        record.register = register.map(RegisterId::new);
        record.value = if kind == RecordKind::Counter { start } else { 0 };
        let is_on_device = matches!(kind, RecordKind::Device(_));
        record.clock_error = if is_on_device { start } else { 0 };
        record.op = (is_on_device || matches!(kind, RecordKind::Op(_))).then_some(op);
        record
    })
}

fn recording() -> impl Strategy<Value = Recording> {
    let state = (any::<u64>(), any::<u64>(), option::of(name()), time(), any::<u64>());
    let shift = prop_oneof![-200..200_i64, any::<i64>()];
    let point = (any::<u64>(), shift, any::<u64>()).prop_map(|(time, shift, error)| ClockPoint { time, shift, error });
    let alignment = proptest::collection::vec(point, 0..4).prop_map(Alignment::new);
    (state, proptest::collection::vec(record(), 0..20), alignment).prop_map(|(state, records, alignment)| {
        let mut recording = Recording::default();
        (recording.received, recording.finished, recording.inside, recording.time, recording.replaced) = state;
        recording.records = records;
        (100..).zip(&mut recording.records).for_each(|(number, record)| record.number = number);
        recording.alignment = alignment;
        recording
    })
}

/// Traces of up to four workers.
pub(crate) fn trace() -> impl Strategy<Value = Trace> {
    let recorded = prop_oneof![4 => recording().prop_map(Ok), 1 => ".{0,12}".prop_map(Err)];
    let worker = (select(vec!["here", "node 1 (host)"]), ".{0,5}", recorded);
    let workers = proptest::collection::vec(worker, 0..4);
    (".{0,12}", option::of(recording()), workers).prop_map(|(program, controller, workers)| {
        let workers = (0..).zip(workers).map(|(worker, (place, kind, recording))| {
            WorkerTrace::new(WorkerId::new(3 * worker), place, kind, recording)
        });
        Trace::new(program, controller, workers.collect())
    })
}
