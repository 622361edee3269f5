//! Reads the stacks of threads.

use std::collections::HashMap;

use super::maps::Maps;
use super::symbols::Symbols;
use super::unwind::Modules;
use super::{Frame, Stack, denied, kernel, trace};

/// Reads stacks. Keeps the unwind tables of processes and the symbols of files.
#[derive(Default)]
pub(crate) struct Reader {
    processes: HashMap<u32, Modules>,
    symbols: Symbols,
}

impl Reader {
    /// The stack of a thread of process `process`.
    pub(crate) fn stack(&mut self, process: u32, thread: u32) -> Stack {
        let state = kernel::state(process, thread);
        let (frames, problem) = match self.frames(process, thread) {
            Ok(frames) => (frames, None),
            Err(problem) => (Vec::new(), Some(problem)),
        };
        Stack { process, thread, state, frames, problem }
    }

    fn frames(&mut self, process: u32, thread: u32) -> Result<Vec<Frame>, String> {
        // Read anew: the process may have loaded a library.
        let maps = Maps::read(process).map_err(|error| {
            format!("can't read the mappings of process {process}: {}", denied::describe(process, &error))
        })?;
        let snapshot = trace::take(process, thread, &maps).map_err(|error| {
            format!("can't read thread {thread} of process {process}: {}", denied::describe(process, &error))
        })?;
        let modules = self.processes.entry(process).or_default();
        modules.update(&maps);
        let mut frames = Vec::new();
        for address in modules.unwind(&snapshot) {
            match maps.find(address) {
                Some(mapping) => self.symbols.resolve(mapping, modules.offset(mapping), address, &mut frames),
                None => frames.push(Frame { code: format!("{address:#x}"), ..Frame::default() }),
            }
        }
        Ok(frames)
    }
}
