//! The activity of a worker: written by the worker, read for diagnostics and deadlines.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::dtype::DType;
use crate::op::{Op, OpKind};
use crate::sync;

/// Number of the latest operations that are kept.
const OPS: usize = 16;
/// Value of [`Activity::inside`] outside of functions.
const IDLE: u32 = 0;

/// The latest state of one worker. Writing it takes no lock and reads no clock.
#[derive(Debug, Default)]
pub struct Activity {
    received: AtomicU64,
    finished: AtomicU64,
    /// 0, or 1 + the index of a name.
    inside: AtomicU32,
    /// Names of worker functions, in the order of their first call.
    names: Mutex<Vec<Arc<str>>>,
    /// Number of operations enqueued so far; the last `OPS` of them are in `ops`.
    enqueued: AtomicU64,
    ops: [OpCell; OPS],
    /// The id of the worker's thread; 0 before it is known.
    thread: AtomicU32,
}

/// An operation in two words: `number << 32 | kind << 16 | dtype << 8 | state`, and the count. A reader may see words
/// of two different operations, which is acceptable for diagnostics.
#[derive(Debug, Default)]
struct OpCell {
    word: AtomicU64,
    count: AtomicU64,
}

/// A snapshot of an [`Activity`].
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of the last command received.
    pub received: u64,
    /// Number of the last command finished.
    pub finished: u64,
    /// The worker function that the worker is inside.
    pub inside: Option<Arc<str>>,
    /// The latest operations on the worker's communicators, oldest first.
    pub ops: Vec<OpRecord>,
    /// Bytes of large packets that the lane has exchanged with the worker. A lane to a node counts the bytes of all
    /// workers of the node. Only the lane knows this count; a node that relays reports those of its own lane.
    pub moved: u64,
}

impl Progress {
    /// The progress of a worker between two commands, without operations.
    pub fn new(received: u64, finished: u64) -> Self {
        Self { received, finished, ..Self::default() }
    }
}

/// One operation of a worker's communicators.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpRecord {
    /// Number of the operation on this worker, counted from 1.
    pub number: u32,
    /// Kind of the operation.
    pub kind: OpKind,
    /// Element type.
    pub dtype: Option<DType>,
    /// Number of elements of one block.
    pub count: u64,
    /// State of the operation.
    pub state: OpState,
}

/// State of an operation.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpState {
    /// `enqueue` has not returned.
    Running,
    /// `enqueue` returned.
    Done,
    /// `enqueue` returned an error.
    Failed,
}

impl OpState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 3] = [OpState::Running, OpState::Done, OpState::Failed];
}

/// An operation that has started.
#[derive(Debug)]
pub struct RunningOp<'a> {
    cell: &'a OpCell,
    word: u64,
    state: OpState,
}

impl Activity {
    /// Records that the worker runs on the calling thread.
    pub fn run_here(&self) {
        #[cfg(target_os = "linux")]
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
    }

    /// The id of the worker's thread, as Linux numbers threads; `None` before [`Self::run_here`].
    pub fn thread(&self) -> Option<u32> {
        match self.thread.load(Ordering::Relaxed) {
            0 => None,
            thread => Some(thread),
        }
    }

    /// Records that command `number` was received.
    pub fn receive(&self, number: u64) {
        self.received.store(number, Ordering::Relaxed);
    }

    /// Records that command `number` is finished.
    pub fn finish(&self, number: u64) {
        self.finished.store(number, Ordering::Relaxed);
    }

    /// Stores a function's name and returns its number, for [`Activity::enter`].
    pub fn intern(&self, name: &str) -> u32 {
        let mut names = sync::lock(&self.names);
        if let Some(index) = names.iter().position(|known| &**known == name) {
            return 1 + index as u32;
        }
        names.push(name.into());
        names.len() as u32
    }

    /// Records that the worker enters a function.
    pub fn enter(&self, name: u32) {
        self.inside.store(name, Ordering::Relaxed);
    }

    /// Records that the worker has left the function.
    pub fn leave(&self) {
        self.inside.store(IDLE, Ordering::Relaxed);
    }

    /// Records the start of an operation. [`RunningOp::end`] records its end; dropping the result records a failure.
    pub fn start_op(&self, op: &Op, size: usize) -> RunningOp<'_> {
        // Only the worker's thread writes this counter.
        let number = self.enqueued.load(Ordering::Relaxed) + 1;
        self.enqueued.store(number, Ordering::Relaxed);
        let dtype = op.dtype().map_or(u8::MAX, |dtype| dtype as u8);
        let cell = &self.ops[number as usize % OPS];
        let word = (number & 0xffff_ffff) << 32 | (op.kind() as u64) << 16 | u64::from(dtype) << 8;
        cell.count.store(op.count(size) as u64, Ordering::Relaxed);
        cell.word.store(word, Ordering::Release);
        RunningOp { cell, word, state: OpState::Failed }
    }

    /// A snapshot of the current state.
    pub fn progress(&self) -> Progress {
        let inside = self.inside.load(Ordering::Relaxed);
        let names = sync::lock(&self.names);
        let mut ops: Vec<OpRecord> = self.ops.iter().filter_map(OpCell::read).collect();
        ops.sort_by_key(|op| op.number);
        Progress {
            received: self.received.load(Ordering::Relaxed),
            finished: self.finished.load(Ordering::Relaxed),
            inside: inside.checked_sub(1).and_then(|index| names.get(index as usize).cloned()),
            ops,
            moved: 0,
        }
    }
}

impl RunningOp<'_> {
    /// Records the end of the operation.
    pub fn end(mut self, ok: bool) {
        self.state = if ok { OpState::Done } else { OpState::Failed };
    }
}

impl Drop for RunningOp<'_> {
    fn drop(&mut self) {
        // Only the worker's thread writes this cell.
        self.cell.word.store(self.word | self.state as u64, Ordering::Release);
    }
}

impl OpCell {
    fn read(&self) -> Option<OpRecord> {
        let word = self.word.load(Ordering::Acquire);
        let kind = OpKind::ALL.get((word >> 16 & 0xff) as usize)?;
        let state = *OpState::ALL.get((word & 0xff) as usize)?;
        let dtype = DType::all().nth((word >> 8 & 0xff) as usize);
        let number = (word >> 32) as u32;
        let count = self.count.load(Ordering::Relaxed);
        (number > 0).then_some(OpRecord { number, kind: *kind, dtype, count, state })
    }
}

impl Progress {
    /// The collective or point-to-point operation that the worker is inside.
    pub fn collective(&self) -> Option<&OpRecord> {
        self.ops.last().filter(|op| op.state == OpState::Running)
    }
}

impl fmt::Display for OpRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(dtype) = self.dtype {
            write!(f, " {dtype} x {}", self.count)?;
        }
        write!(f, " (operation {})", self.number)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "finished command {}", self.finished)?;
        if self.received > self.finished {
            write!(f, ", in command {}", self.received)?;
        }
        if let Some(name) = &self.inside {
            write!(f, ", inside `{name}`")?;
        }
        self.collective().map_or(Ok(()), |op| write!(f, ", in {op}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_the_current_function_and_collective() {
        let activity = Activity::default();
        let step = activity.intern("train.step");
        assert_eq!(activity.intern("train.step"), step);
        activity.receive(7);
        activity.enter(step);
        let op = activity.start_op(&Op::Barrier, 4);
        assert_eq!(
            activity.progress().to_string(),
            "finished command 0, in command 7, inside `train.step`, in barrier (operation 1)"
        );
        op.end(true);
        activity.leave();
        activity.finish(7);
        assert_eq!(activity.progress().to_string(), "finished command 7");
        assert_eq!(activity.progress().ops[0].state, OpState::Done);
    }

    #[test]
    fn only_the_last_operations_are_kept_in_order() {
        let activity = Activity::default();
        for _ in 0..40 {
            drop(activity.start_op(&Op::Barrier, 1));
        }
        assert_eq!(activity.progress().ops[0].state, OpState::Failed);
        let numbers: Vec<u32> = activity.progress().ops.iter().map(|op| op.number).collect();
        assert_eq!(numbers, (25..=40).collect::<Vec<_>>());
    }
}
