//! Encoding of a worker's progress.

use super::{Packet, WireError};
use crate::activity::{OpRecord, OpState, Progress, TimeLimit};
use crate::dtype::DType;
use crate::op::OpKind;
use crate::value::Value;

/// The arguments: `received, finished, function or none, whether its time limit is its
/// own, moved`, then for each operation `number, kind, dtype or none, count,
/// state`.
pub(super) fn args(progress: &Progress) -> Vec<Value> {
    let inside = progress.inside.as_ref().map_or(Value::None, |name| Value::Str(name.clone()));
    let limit = Value::Bool(progress.limit == TimeLimit::Own);
    let int = |number: u64| Value::Int(number as i64);
    let mut args = vec![int(progress.received), int(progress.finished), inside, limit, int(progress.moved)];
    for op in &progress.ops {
        args.push(Value::Int(op.number.into()));
        args.push(Value::Int(op.kind as i64));
        args.push(op.dtype.map_or(Value::None, Value::DType));
        args.push(Value::Int(op.count as i64));
        args.push(Value::Int(op.state as i64));
    }
    args
}

pub(super) fn decode(mut packet: Packet<'_>) -> Result<Progress, WireError> {
    let (received, finished) = (packet.number()?, packet.number()?);
    let inside = match packet.value()? {
        Value::None => None,
        Value::Str(name) => Some(name),
        _ => return Err(WireError::Expected("a function's name or none")),
    };
    let limit = match packet.value()? {
        Value::Bool(true) => TimeLimit::Own,
        Value::Bool(false) => TimeLimit::Call,
        _ => return Err(WireError::Expected("whether a time limit is the function's own")),
    };
    let moved = packet.number()?;
    let args = packet.rest()?;
    let (ops, rest) = args.as_chunks::<5>();
    if !rest.is_empty() {
        return Err(WireError::Expected("whole records of operations"));
    }
    let ops = ops.iter().map(decode_op).collect::<Result<_, _>>()?;
    Ok(Progress { received, finished, inside, limit, ops, moved })
}

fn decode_op(args: &[Value; 5]) -> Result<OpRecord, WireError> {
    let [Value::Int(number), Value::Int(kind), dtype, Value::Int(count), Value::Int(state)] = args else {
        return Err(WireError::Expected("the record of an operation"));
    };
    let unknown = |what, number: i64| WireError::Unknown { what, number };
    let dtype: Option<DType> = match dtype {
        Value::None => None,
        Value::DType(dtype) => Some(*dtype),
        _ => return Err(WireError::Expected("a dtype or none")),
    };
    let index = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(OpRecord {
        number: u32::try_from(*number).map_err(|_| unknown("operation", *number))?,
        kind: *OpKind::ALL.get(index(*kind)).ok_or(unknown("kind of operation", *kind))?,
        dtype,
        count: *count as u64,
        state: *OpState::ALL.get(index(*state)).ok_or(unknown("state of an operation", *state))?,
    })
}
