//! How the workers execute a call: all with the same arguments, or some, or each with its own; and whether results come
//! while it runs, or one worker replies with its own.

use std::ops::Range;
use std::sync::Arc;

use futures_channel::mpsc::UnboundedSender;

use crate::codec::WireError;
use crate::error::{Error, Failure, Result};
use crate::id::WorkerId;
use crate::value::Value;
use crate::world::World;

/// What a [`Command::CallWith`](crate::Command::CallWith) adds to a call of all workers with the same arguments.
#[allow(clippy::exhaustive_structs, reason = "a part of a command")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calling {
    /// For each worker, the range of its own arguments among all; `None` if it is not called. Without this list, all
    /// workers are called with all arguments.
    pub parts: Option<Parts>,
    /// Whether the workers send results while the call runs.
    pub streams: bool,
    /// The place of the worker that replies with its result.
    pub answers: Option<WorkerId>,
}

/// For each worker, the range of its own arguments; `None` if it is not called.
pub type Parts = Box<[Option<Range<u32>>]>;

/// Something of a worker in a call whose results stream.
#[derive(Debug)]
pub(crate) enum Sent {
    /// A result, and its size in bytes.
    Value(Value, u64),
    /// A result that the controller can't read.
    Unreadable(WireError),
    /// All results have come, and the worker has executed the call, or left it out.
    End(Result<(), Arc<Failure>>),
}

/// Gets the results of a call, with the places of their workers.
pub(crate) type ResultSender = UnboundedSender<(WorkerId, Sent)>;

impl Calling {
    /// The arguments of one worker; `None` if it is not called.
    ///
    /// # Errors
    /// The world has changed since the call.
    pub(crate) fn part<'a>(&self, args: &'a [Value], worker: WorkerId, world: World) -> Result<Option<&'a [Value]>> {
        let Some(parts) = &self.parts else { return Ok(Some(args)) };
        if parts.len() != world.size() {
            let text = format!("the call is for {} workers, and there are {} now", parts.len(), world.size());
            return Err(Error::invalid(text));
        }
        let Some(Some(part)) = parts.get(worker.index()) else { return Ok(None) };
        let part = args.get(part.start as usize..part.end as usize);
        part.map(Some).ok_or_else(|| Error::invalid("an argument is missing"))
    }
}
