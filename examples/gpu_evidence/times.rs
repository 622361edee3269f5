//! Sums in a timeline: their times on the device against their times on the host.

use std::sync::mpsc;

use disco::activity::{Record, RecordKind, Recording};
use disco::{Builder, CommunicatorExt as _, DType, OpKind, Reduction, WorkerContext, block_on};

use crate::ranks::{self, Result, Row, is_quick, median, row};

const RECORDS: usize = 1 << 12;
const ROUNDS: usize = 20;

disco::register_function!("gpu.times", sums_on_a_worker);

/// Seconds of a sum of 64 MiB: on the device by events, from the host's launch until the host has waited for it, and of
/// the launch alone; then the largest error of the place on the host's clock. The time on the device must fit in.
pub(crate) fn times(size: usize) -> Result<Vec<Row>> {
    let bytes = if is_quick() { 64 << 10 } else { 64 << 20 };
    let (sink, timelines) = mpsc::channel();
    let session = Builder::threads(size).timeline(RECORDS, move |timeline| _ = sink.send(timeline)).start()?;
    block_on(async {
        session.init_ccl("nccl", &vec![0; size]).await?;
        session.call("gpu.times", ((bytes / 4) as i64,)).await?;
        session.sync_all().await?;
        session.shutdown().await
    })?;
    let mut slowest: Vec<Row> = Vec::new();
    for (worker, recording) in timelines.recv()?.workers {
        let recording = recording?;
        let rows = of_worker(&recording, bytes).map_err(|error| format!("{worker}: {error}"))?;
        ranks::keep_slowest(&mut slowest, rows);
    }
    Ok(slowest)
}

fn sums_on_a_worker(ctx: &mut WorkerContext, elements: usize) -> disco::Result<()> {
    let tensor = ctx.empty(DType::F32, [elements as i64])?;
    for _ in 0..1 + ranks::times(ROUNDS) {
        let _span = disco::activity::span("sum and wait");
        let comm = ctx.comm()?;
        comm.all_reduce_in_place(&tensor, Reduction::Max)?;
        comm.synchronize()?;
    }
    Ok(())
}

fn of_worker(recording: &Recording, bytes: usize) -> Result<Vec<Row>> {
    let of_kind = |kind| -> Vec<&Record> { recording.records.iter().filter(|it| it.kind == kind).collect() };
    let notes = of_kind(RecordKind::Note);
    if let Some(note) = notes.first() {
        return Err(note.name.as_deref().unwrap_or("a note").into());
    }
    let [spans, launches, devices] =
        [RecordKind::Span, RecordKind::Op(OpKind::AllReduce), RecordKind::Device(OpKind::AllReduce)].map(of_kind);
    if spans.is_empty() || [launches.len(), devices.len()] != [spans.len(); 2] {
        let counts = [spans.len(), launches.len(), devices.len()];
        return Err(format!("{counts:?} spans, sums and times on the device are recorded").into());
    }
    let length = |record: &&Record| record.end.map_or(f64::NAN, |end| (end - record.start) as f64 / 1e9);
    for (span, device) in spans.iter().zip(&devices) {
        let (end, limit) = (device.end.unwrap_or_default(), span.end.unwrap_or_default());
        if device.start + device.clock_error < span.start || end > limit + device.clock_error {
            return Err(format!("a time on the device is outside of its wait: {device:?}, {span:?}").into());
        }
    }
    // The first sum warms up.
    let of = |records: &[&Record]| median(records.iter().skip(1).map(length).collect());
    let error = devices.iter().map(|it| it.clock_error).max().unwrap_or_default() as f64 / 1e9;
    Ok(vec![
        row("sum of a timeline, on the device", bytes, of(&devices)),
        row("sum of a timeline, launch and wait", bytes, of(&spans)),
        row("sum of a timeline, launch", bytes, of(&launches)),
        row("sum of a timeline, error of the clocks", bytes, error),
    ])
}
