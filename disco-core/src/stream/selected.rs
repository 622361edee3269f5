//! Arguments of calls that only some workers execute, or each with arguments of its own.

use std::ops::Range;

use super::Arguments;
use crate::calling::Parts;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::world::World;

/// The arguments of a call of some workers.
pub(crate) struct Selected {
    parts: Parts,
    args: Arguments,
}

impl Selected {
    /// No worker of `world`.
    pub(crate) fn none(world: World) -> Self {
        Self { parts: vec![None; world.size()].into(), args: Arguments::default() }
    }

    /// Adds a worker with arguments of its own.
    pub(crate) fn add(&mut self, worker: WorkerId, args: Arguments) {
        let range = self.append(args);
        if let Some(part) = self.parts.get_mut(worker.index()) {
            *part = Some(range);
        }
    }

    /// Adds workers that share their arguments.
    ///
    /// # Errors
    /// A worker does not exist, or is named twice.
    pub(crate) fn add_all(&mut self, workers: &[WorkerId], world: World, args: Arguments) -> Result<()> {
        let range = self.append(args);
        for worker in workers {
            world.check(*worker)?;
            if self.parts[worker.index()].replace(range.clone()).is_some() {
                return Err(Error::invalid(format!("call_on: {worker} is named twice")));
            }
        }
        Ok(())
    }

    /// Appends arguments. Returns their range.
    fn append(&mut self, args: Arguments) -> Range<u32> {
        let start = self.args.values.len() as u32;
        self.args.append(args);
        start..self.args.values.len() as u32
    }

    /// The arguments of the call.
    pub(crate) fn into_args(self) -> Arguments {
        let mut args = self.args;
        args.parts = Some(self.parts);
        args
    }
}
