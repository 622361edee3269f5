//! One collective as an entry of PyTorch's flight recorder.

use disco_core::activity::{OpState, RecordKind};
use disco_core::{DType, OpKind};

use super::pickle::Value;
use crate::calls::{Calls, Entry};

/// The entry of a collective with the number `record` in the dump.
pub(super) fn entry(calls: &Calls<'_>, it: &Entry<'_>, record: u64, description: Value) -> Value {
    let (kind, number) = (it.record.kind, it.op.number);
    let ranks = calls.members(&it.op.comm).len() as u64;
    let (name, [input, output]) = match kind {
        RecordKind::Op(kind) => (name(kind), sizes(kind, it.op.count, ranks)),
        _ => ("unknown", [0, 0]),
    };
    let sizes = |count| Value::List(vec![Value::List(vec![Value::number(count)])]);
    let dtypes = || Value::List(vec![Value::text(it.op.dtype.map_or("Byte", dtype))]);
    let state = if it.record.state == OpState::Done { "completed" } else { "started" };
    let end = it.record.end.map(|_| it.end);
    Value::dict([
        ("record_id", Value::number(record)),
        ("pg_id", Value::number(0)),
        ("process_group", Value::Tuple(Box::new([Value::text(&it.op.comm), description]))),
        ("collective_seq_id", Value::number(number)),
        ("p2p_seq_id", Value::number(0)),
        ("op_id", Value::number(number)),
        ("profiling_name", Value::Text(format!("nccl:{name}"))),
        ("time_created_ns", Value::Number(it.start)),
        ("time_discovered_started_ns", Value::Number(it.start)),
        ("time_discovered_completed_ns", end.map_or(Value::None, Value::Number)),
        ("duration_ms", end.map_or(Value::None, |end| Value::Float((end - it.start) as f64 / 1e6))),
        ("input_sizes", sizes(input)),
        ("input_dtypes", dtypes()),
        ("output_sizes", sizes(output)),
        ("output_dtypes", dtypes()),
        ("state", Value::text(state)),
        ("timeout_ms", Value::number(0)),
        ("is_p2p", Value::Bool(false)),
        ("retired", Value::Bool(state == "completed")),
        ("frames", Value::List(Vec::new())),
    ])
}

/// The name that the analyser knows.
fn name(kind: OpKind) -> &'static str {
    match kind {
        OpKind::AllToAllV => "all_to_all",
        OpKind::AllGatherV => "all_gather_v",
        other => other.name(),
    }
}

/// Elements of input and output, as the analyser expects them to be on all ranks alike.
fn sizes(kind: OpKind, count: u64, ranks: u64) -> [u64; 2] {
    let all = count.saturating_mul(ranks);
    match kind {
        OpKind::AllGather | OpKind::Gather => [count, all],
        OpKind::ReduceScatter | OpKind::Scatter => [all, count],
        OpKind::AllToAll => [all, all],
        // The counts of ranks differ, and the analyser wants them equal.
        OpKind::AllGatherV => [1, 1],
        OpKind::Barrier => [1, 1],
        _ => [count, count],
    }
}

/// PyTorch's name.
fn dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "Bool",
        DType::I8 => "Char",
        DType::U8 => "Byte",
        DType::I16 => "Short",
        DType::U16 => "UInt16",
        DType::I32 => "Int",
        DType::U32 => "UInt32",
        DType::I64 => "Long",
        DType::U64 => "UInt64",
        DType::F16 => "Half",
        DType::BF16 => "BFloat16",
        DType::F32 => "Float",
        DType::F64 => "Double",
        DType::F8E4M3 => "Float8_e4m3fn",
        DType::F8E5M2 => "Float8_e5m2",
        other => other.name(),
    }
}
