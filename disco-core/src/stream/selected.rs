//! Arguments of calls that only some workers execute, or each with arguments of its own.

use std::ops::Range;

use super::{Arguments, DRef};
use crate::error::{Error, Result};
use crate::function::selection;
use crate::id::WorkerId;
use crate::value::Value;
use crate::world::World;

/// The arguments of a call of the function [`CALL_SELECTED`](crate::function::CALL_SELECTED).
pub(crate) struct Selected {
    parts: Vec<Option<Range<usize>>>,
    args: Arguments,
}

impl Selected {
    /// No worker of `world`.
    pub(crate) fn none(world: World) -> Self {
        Self { parts: vec![None; world.size()], args: Arguments::default() }
    }

    /// Adds a worker with arguments of its own.
    pub(crate) fn add(&mut self, worker: WorkerId, args: Arguments) {
        let start = self.args.values.len();
        self.args.append(args);
        if let Some(part) = self.parts.get_mut(worker.index()) {
            *part = Some(start..self.args.values.len());
        }
    }

    /// Adds workers that share their arguments.
    ///
    /// # Errors
    /// A worker does not exist, or is named twice.
    pub(crate) fn add_all(&mut self, workers: &[WorkerId], world: World, args: Arguments) -> Result<()> {
        let start = self.args.values.len();
        self.args.append(args);
        for worker in workers {
            world.check(*worker)?;
            if self.parts[worker.index()].replace(start..self.args.values.len()).is_some() {
                return Err(Error::invalid(format!("call_on: {worker} is named twice")));
            }
        }
        Ok(())
    }

    /// The arguments of the call.
    pub(crate) fn into_args(self, function: &DRef) -> Arguments {
        let mut args = Arguments::with_capacity(2 + self.args.values.len());
        args.push(function);
        args.push(Value::Shape(selection(&self.parts)));
        args.append(self.args);
        args
    }
}
