//! Calls that only some workers execute, or each with arguments of its own: calls of `disco.call_selected`.
//!
//! Its arguments are the function, a shape of the number of workers and two numbers for each of them, and the arguments
//! of all workers. The numbers are the range of the worker's own arguments among these, or -1 and -1 if it is not called.

use std::ops::Range;

use super::{Args, Object};
use crate::context::WorkerContext;
use crate::error::{Error, Result};
use crate::id::{RegisterId, WorkerId};
use crate::shape::Shape;
use crate::value::Value;
use crate::world::World;

/// The worker function's name.
pub(crate) const CALL_SELECTED: &str = "disco.call_selected";

inventory::submit! {
    super::FunctionEntry {
        name: CALL_SELECTED,
        call: refuse,
        place: concat!(module_path!(), " at ", file!(), ":", line!()),
    }
}

/// The worker's loop executes these calls ([`part`]).
fn refuse(_: &mut WorkerContext, _: &Args<'_>) -> Result<Object, super::BoxError> {
    Err(Error::invalid("only the methods `call_on` and `call_each` of a session call this function").into())
}

/// The argument that selects: the ranges of the arguments of all workers.
pub(crate) fn selection(parts: &[Option<Range<usize>>]) -> Shape {
    let ends = |part: &Option<Range<usize>>| match part {
        Some(part) => [part.start as i64, part.end as i64],
        None => [-1, -1],
    };
    [parts.len() as i64].into_iter().chain(parts.iter().flat_map(ends)).collect::<Vec<_>>().into()
}

/// The function and the arguments of one worker; `None` if it is not called.
///
/// # Errors
/// The world has changed since the call; or a session has not made these arguments.
pub(crate) fn part(args: &[Value], worker: WorkerId, world: World) -> Result<Option<(RegisterId, &[Value])>> {
    let [Value::Register(function), Value::Shape(selection), args @ ..] = args else {
        return Err(Error::invalid("the arguments are not those of a session"));
    };
    let (of, parts) = selection.split_first().unwrap_or((&0, &[]));
    if usize::try_from(*of) != Ok(world.size()) {
        return Err(Error::invalid(format!("the call is for {of} workers, and there are {} now", world.size())));
    }
    match parts.chunks(2).nth(worker.index()) {
        Some([-1, -1]) => Ok(None),
        Some([start, end]) => {
            let range = usize::try_from(*start).ok().zip(usize::try_from(*end).ok());
            let part = range.and_then(|(start, end)| args.get(start..end));
            part.map(|part| Some((*function, part))).ok_or_else(|| Error::invalid("an argument is missing"))
        }
        _ => Err(Error::invalid(format!("{worker} is not in the selection"))),
    }
}
