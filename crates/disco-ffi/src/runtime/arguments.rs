//! Arguments as compiled code passes them.

use disco_core::function::Args;
use disco_core::{Error, Result, Scope, Shape, Value, WorkerId};

/// A bool, which compiled code passes as an int.
pub(super) fn flag(args: &Args<'_>, index: usize) -> Result<bool> {
    match args.take::<Value>(index)? {
        Value::Bool(flag) => Ok(flag),
        Value::Int(number @ 0..=1) => Ok(number == 1),
        other => Err(Error::Argument { index, expected: "a bool", found: other.kind().into() }),
    }
}

/// The flag `in_group`.
pub(super) fn scope(args: &Args<'_>, index: usize) -> Result<Scope> {
    flag(args, index).map(Scope::from)
}

/// An int, which compiled code passes as a shape of one extent.
pub(super) fn number(args: &Args<'_>, index: usize) -> Result<i64> {
    match args.take::<Value>(index)? {
        Value::Int(number) => Ok(number),
        Value::Shape(shape) if shape.len() == 1 => Ok(shape[0]),
        other => Err(Error::Argument { index, expected: "an int, or a shape of one int", found: found(&other) }),
    }
}

/// A position, as [`number`].
pub(super) fn position(args: &Args<'_>, index: usize) -> Result<usize> {
    let number = number(args, index)?;
    usize::try_from(number).map_err(|_| Error::Argument {
        index,
        expected: "a position from 0",
        found: number.to_string(),
    })
}

/// A worker's id, as [`number`].
pub(super) fn worker(args: &Args<'_>, index: usize) -> Result<WorkerId> {
    let number = number(args, index)?;
    u32::try_from(number).map(WorkerId::new).map_err(|_| Error::Argument {
        index,
        expected: "the id of a worker",
        found: number.to_string(),
    })
}

/// The extents of a shape.
pub(super) fn shape(args: &Args<'_>, index: usize) -> Result<Shape> {
    args.take(index)
}

fn found(value: &Value) -> String {
    match value {
        Value::Shape(shape) => format!("the shape {shape}"),
        other => other.kind().to_owned(),
    }
}
