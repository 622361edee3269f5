//! The activity of a worker: written by the worker, read for diagnostics, deadlines and timelines.
//!
//! An [`Activity`] keeps the worker's progress and its last [`Record`]s: always those of operations, the *flight
//! recorder*; with a timeline also those of commands and of the program's own spans. It may lie in memory that processes
//! share, so that a controller reads the last words of a process that was killed.
//!
//! ```text
//! clock       readings of the processor's counter, and their conversion to nanoseconds
//! record      one record in 8 words
//! current     the activity of the worker that a thread runs
//! counters    samples of numbers that change
//! device      times of operations on a device
//! running     the records of operations that the worker is inside
//! started     the records of operations that go on beside the worker
//! progress    the state of a worker at a moment
//! memory      the words of an activity: progress, names, a ring of records
//! recording   a copy of them, as bytes for another process, and decoded
//! alignment   the alignment of a machine's clock with the controller's
//! ```

mod alignment;
mod clock;
mod counters;
mod current;
mod device;
mod memory;
mod progress;
mod record;
mod recording;
mod running;
mod started;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use self::clock::{Reading, ticks};
use self::memory::Memory;
use self::record::RawRecord;
use crate::command::Command;
use crate::id::Rank;
use crate::op::{Op, Reduction};
use crate::shared_memory::Segment;
use crate::sync;

pub use self::alignment::{Alignment, ClockPoint, Shifts};
pub use self::clock::nanoseconds;
pub(crate) use self::counters::Sampler;
pub(crate) use self::current::{Current, thread_of_worker};
pub use self::current::{Entered, Span, enter_span, leave_span, records_spans, span, take_path};
pub use self::device::RunningOp;
pub use self::progress::{OpRecord, OpState, Progress, TimeLimit};
pub use self::record::{CommKind, DataPath, OpDetails, OpPlace, Record, RecordKind, UNNAMED};
pub(crate) use self::recording::RECOVERY;
pub use self::recording::{Recording, align, recoveries};
pub use self::running::Running;
pub(crate) use self::started::StartedOps;

/// Number of the latest operations in a [`Progress`].
const OPS: usize = 16;
/// Value of [`Activity::enter`] outside of functions.
const IDLE: u32 = 0;
/// Largest number of names.
const MAX_NAMES: usize = 4096;
/// Largest number of operations that are recorded of a group of operations.
const MAX_GROUP: usize = 64;
/// Largest number of records: 1 GiB.
const MAX_RECORDS: usize = 1 << 24;

/// The settings of a recorder: the number of records, and whether it keeps a timeline.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderConfig {
    /// A power of two.
    records: usize,
    timeline: bool,
}

/// The latest state of one worker and its last records. Writing it takes no lock; only the worker's thread writes.
#[derive(Debug)]
pub struct Activity {
    memory: Memory,
    /// Names of worker functions and communicators, in the order of their first use.
    names: Mutex<Names>,
    timeline: bool,
    /// Number of the running command's record, and of the last operation's.
    command: AtomicU64,
    op: AtomicU64,
    /// Ticks of the longest wait of the running operation, once it has waited.
    longest_wait: AtomicU64,
    /// The id of the worker's thread; 0 before it is known.
    thread: AtomicU32,
}

#[derive(Debug, Default)]
struct Names {
    names: Vec<(Arc<str>, CommKind)>,
    /// A name has not fitted into the memory.
    is_full: bool,
}

impl RecorderConfig {
    /// Defaults: the last 256 operations.
    pub const DEFAULT: Self = Self { records: 256, timeline: false };

    /// Keeps `records` records, rounded up to a power of two and limited to 2^24; with `timeline` also those of
    /// commands and spans.
    pub const fn new(records: usize, timeline: bool) -> Self {
        let records = if records > MAX_RECORDS { MAX_RECORDS } else { records };
        Self { records: records.next_power_of_two(), timeline }
    }

    /// Number of records that are kept, a power of two. Each takes 64 bytes for each worker.
    pub const fn records(self) -> usize {
        self.records
    }

    /// Whether commands and spans are recorded, besides operations.
    pub const fn has_timeline(self) -> bool {
        self.timeline
    }

    /// Words of the memory of one activity.
    pub const fn words(self) -> usize {
        Memory::words_for(self.records)
    }
}

impl Default for RecorderConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Default for Activity {
    fn default() -> Self {
        Self::new(RecorderConfig::DEFAULT)
    }
}

impl Activity {
    /// An activity in this process's memory.
    pub fn new(config: RecorderConfig) -> Self {
        Self::over(Memory::own(config.records), config.timeline)
    }

    /// An activity at word `start` of a segment; `None` if the segment ends before [`RecorderConfig::words`] words
    /// more. The worker and the readers of its records each make one over the same words.
    pub fn shared(config: RecorderConfig, segment: Arc<Segment>, start: usize) -> Option<Self> {
        Memory::shared(segment, start, config.records).map(|memory| Self::over(memory, config.timeline))
    }

    fn over(memory: Memory, timeline: bool) -> Self {
        if memory.first_reading().nanoseconds == 0 {
            memory.set_first_reading(Reading::now());
        }
        Self {
            memory,
            names: Mutex::default(),
            timeline,
            command: AtomicU64::new(0),
            op: AtomicU64::new(0),
            longest_wait: AtomicU64::new(0),
            thread: AtomicU32::new(0),
        }
    }

    /// Records that command `number` was received.
    #[inline]
    pub fn receive(&self, number: u64) {
        self.memory.set_received(number);
    }

    /// Number of the last command received, 0 before the first.
    pub fn received(&self) -> u64 {
        self.memory.received()
    }

    /// Number of the last command finished, 0 before the first.
    pub fn finished(&self) -> u64 {
        self.memory.finished()
    }

    /// Records that command `number` is finished, and whether the worker has not failed.
    #[inline]
    pub fn finish(&self, number: u64, ok: bool) {
        self.memory.set_finished(number);
        if self.timeline {
            self.end(self.command.load(Ordering::Relaxed), OpState::of(ok));
        }
    }

    /// Stores a name and returns its number, for [`Activity::enter`] and records. 16 KiB of names are kept for records;
    /// 0, for no name, once there are 4096.
    pub fn intern(&self, name: &str) -> u32 {
        self.intern_comm(name, CommKind::World)
    }

    /// [`Activity::intern`] for the name of a communicator of this kind.
    pub fn intern_comm(&self, name: &str, kind: CommKind) -> u32 {
        let mut names = sync::lock(&self.names);
        if let Some(index) = names.names.iter().position(|(known, of)| &**known == name && *of == kind) {
            return 1 + index as u32;
        }
        // Numbers have 16 bits in records.
        if names.names.len() == MAX_NAMES {
            return IDLE;
        }
        names.names.push((name.into(), kind));
        // Later names must not take the number of one that does not fit.
        names.is_full = names.is_full || !self.memory.add_name(name, kind);
        names.names.len() as u32
    }

    /// Records that the worker enters a function, and whose time limit holds there.
    #[inline]
    pub fn enter(&self, name: u32, limit: TimeLimit) {
        self.memory.set_inside(name, limit);
        if self.timeline {
            self.change(self.command.load(Ordering::Relaxed), |what| RawRecord::named(what, name.into()));
        }
    }

    /// Records that the worker has left the function.
    #[inline]
    pub fn leave(&self) {
        self.memory.set_inside(IDLE, TimeLimit::Call);
    }

    /// Whether commands and spans are recorded.
    pub fn has_timeline(&self) -> bool {
        self.timeline
    }

    /// Begins the record of the received command; does nothing without a timeline.
    #[inline]
    pub fn start_command(&self, command: &Command) {
        if self.timeline {
            // `enter` gives a call the name of its function.
            let name = if command.function().is_some() { IDLE } else { self.intern(command.name()) };
            self.command.store(self.memory.begin(self.command_record(command, name)), Ordering::Relaxed);
        }
    }

    /// Records that the controller submits a command: a moment of its own.
    pub fn submit(&self, number: u64, command: &Command, name: &str) {
        self.memory.set_received(number);
        let name = self.intern(name);
        self.end(self.memory.begin(self.command_record(command, name)), OpState::Done);
    }

    fn command_record(&self, command: &Command, name: u32) -> RawRecord {
        let record = RawRecord::new(RecordKind::Command, name.into(), ticks(), self.memory.received());
        record.with_register(command.register())
    }

    /// Records a wait of the controller for the replies to command `number`, which has ended.
    pub fn add_wait(&self, since: Waiting, name: &str, number: u64) {
        let record = RawRecord::new(RecordKind::Wait, self.intern(name).into(), since.0, number);
        self.end(self.memory.begin(record), OpState::Done);
    }

    /// Records the value of a counter.
    pub fn count(&self, name: u32, value: u64) {
        let record = RawRecord::new(RecordKind::Counter, name.into(), ticks(), self.memory.received());
        self.add_moment(record.with_value(value));
    }

    /// Records a moment.
    pub fn mark(&self, name: u32) {
        self.add_moment(RawRecord::new(RecordKind::Mark, name.into(), ticks(), self.memory.received()));
    }

    /// Begins the record of an operation of a communicator of `size` ranks. [`Running::end`] records its end; dropping
    /// the result records a failure.
    #[inline]
    pub fn start_op(&self, op: &Op, size: usize, at: OpPlace) -> Running<'_> {
        self.start_ops(op, &[], size, at)
    }

    /// Begins the records of a group of operations, of at most 64: `at` is the place of the first one, and the others
    /// follow it.
    #[inline]
    pub fn start_ops(&self, first: &Op, more: &[Op], size: usize, at: OpPlace) -> Running<'_> {
        let now = ticks();
        let number = self.memory.begin(RawRecord::of_op(self.named(first), 0, size, at, now, self.memory.received()));
        self.op.store(number, Ordering::Relaxed);
        if !more.is_empty() {
            self.start_more(more, size, at, now);
        }
        Running { activity: self, number, more: more.len().min(MAX_GROUP - 1) as u64, state: OpState::Failed }
    }

    /// Records the way that the data of the running operation takes.
    #[inline]
    pub fn take_path(&self, path: DataPath) {
        self.change(self.op.load(Ordering::Relaxed), |what| RawRecord::with_path(what, path as u8));
    }

    /// The start of a wait, for [`Activity::waited`] and [`Activity::add_wait`].
    #[inline]
    pub fn start_wait(&self) -> Waiting {
        Waiting(ticks())
    }

    /// Adds a wait for rank `last` to the running operation. A rank waits in each step of a collective: the rank of its
    /// longest wait came last.
    #[inline]
    pub fn waited(&self, since: Waiting, last: Option<Rank>) {
        let waited = ticks().saturating_sub(since.0);
        self.memory.change(self.op.load(Ordering::Relaxed), |words| {
            let word = words[7].load(Ordering::Relaxed);
            let is_longest = word == 0 || waited > self.longest_wait.load(Ordering::Relaxed);
            if is_longest {
                self.longest_wait.store(waited, Ordering::Relaxed);
            }
            words[7].store(RawRecord::waited(word, waited, last.filter(|_| is_longest)), Ordering::Relaxed);
        });
    }

    /// An operation with the number of its reduction's name, if the reduction is a program's own.
    #[inline]
    fn named<'o>(&self, op: &'o Op) -> (&'o Op, u32) {
        match op.reduction() {
            Some(Reduction::Custom(name)) => (op, self.intern(name)),
            _ => (op, IDLE),
        }
    }

    /// Adds a record without length.
    fn add_moment(&self, record: RawRecord) {
        self.memory.begin(record.ended_at_start());
    }

    /// Begins the records behind the first one of a group. Apart, so that the start of a single operation stays short.
    #[inline(never)]
    fn start_more(&self, more: &[Op], size: usize, at: OpPlace, now: u64) {
        for (behind, op) in (1..MAX_GROUP as u8).zip(more) {
            let at = OpPlace { number: at.number + u64::from(behind), ..at };
            self.memory.begin(RawRecord::of_op(self.named(op), behind, size, at, now, self.memory.received()));
        }
    }

    /// Ends the `more` records behind the first one of a group, at their start and with its path.
    #[inline(never)]
    fn end_more(&self, first: u64, more: u64, state: OpState) {
        let mut path = DataPath::Unknown as u8;
        self.change(first, |what| {
            path = RawRecord::path(what);
            what
        });
        for number in first + 1..=first + more {
            self.memory.change(number, |words| {
                words[2].store(words[1].load(Ordering::Relaxed), Ordering::Relaxed);
                let what = RawRecord::with_path(words[3].load(Ordering::Relaxed), path);
                words[3].store(RawRecord::ended(what, state), Ordering::Relaxed);
            });
        }
    }

    #[inline]
    fn end(&self, number: u64, state: OpState) {
        self.memory.change(number, |words| {
            words[2].store(ticks(), Ordering::Relaxed);
            words[3].store(RawRecord::ended(words[3].load(Ordering::Relaxed), state), Ordering::Relaxed);
        });
    }

    /// Changes the third word of a record.
    #[inline]
    fn change(&self, number: u64, change: impl FnOnce(u64) -> u64) {
        self.memory.change(number, |words| words[3].store(change(words[3].load(Ordering::Relaxed)), Ordering::Relaxed));
    }

    /// A snapshot of the current state.
    pub fn progress(&self) -> Progress {
        let (inside, limit) = self.memory.inside();
        let index = (inside as usize).checked_sub(1);
        let inside = index.and_then(|index| sync::lock(&self.names).names.get(index).map(|(name, _)| name.clone()));
        let begun = self.memory.begun();
        let records = (1..=begun).rev().take(self.memory.places().min(4 * OPS));
        let mut ops: Vec<OpRecord> = records.filter_map(|number| self.memory.read(number)?.op()).take(OPS).collect();
        ops.reverse();
        let (received, finished) = (self.memory.received(), self.memory.finished());
        Progress { received, finished, inside, limit, ops, moved: 0 }
    }

    /// A copy of the state and the `last` records, for [`Recording::decode`].
    pub fn encode(&self, last: usize) -> Vec<u8> {
        recording::encode(&self.memory, last)
    }
}

/// The start of a wait.
#[derive(Clone, Copy, Debug)]
pub struct Waiting(u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_the_current_function_and_collective() {
        let activity = Activity::default();
        let step = activity.intern("train.step");
        assert_eq!(activity.intern("train.step"), step);
        activity.receive(7);
        activity.enter(step, TimeLimit::Call);
        let op = activity.start_op(&Op::Barrier, 4, OpPlace::default());
        assert_eq!(
            activity.progress().to_string(),
            "finished command 0, in command 7, inside `train.step`, in barrier (operation 1)"
        );
        op.end(true);
        activity.leave();
        activity.finish(7, true);
        assert_eq!(activity.progress().to_string(), "finished command 7");
        assert_eq!(activity.progress().ops[0].state, OpState::Done);
    }

    #[test]
    fn all_operations_of_a_group_are_recorded_and_the_first_one_has_its_time() {
        for (timeline, count) in [(false, 3), (true, 3), (true, 100)] {
            let activity = Activity::new(RecorderConfig::new(256, timeline));
            let (comm, more) = (activity.intern("plane"), vec![Op::Barrier; count - 1]);
            let running = activity.start_ops(&Op::Barrier, &more, 4, OpPlace::new(comm, 7));
            let inside = activity.progress().collective().map(|op| (op.number, op.kind));
            assert_eq!(inside, Some((if count > OPS { 49 } else { 1 }, crate::op::OpKind::Barrier)));
            activity.take_path(DataPath::Staged);
            activity.waited(activity.start_wait(), Some(Rank::new(1)));
            running.end(true);
            activity.start_op(&Op::Barrier, 4, OpPlace::new(comm, 7 + count as u64)).end(false);
            let recording = Recording::decode(&activity.encode(usize::MAX)).unwrap();
            let ops: Vec<&OpDetails> = recording.records.iter().filter_map(|record| record.op.as_ref()).collect();
            let (last, group) = ops.split_last().unwrap();
            assert_eq!((last.number, last.behind), (7 + count as u64, 0));
            let numbers = group.iter().map(|op| (op.number, u64::from(op.behind)));
            assert!(numbers.eq((0..count.min(64) as u64).map(|behind| (7 + behind, behind))), "{group:?}");
            assert!(group.iter().all(|op| op.path == DataPath::Staged), "{group:?}");
            assert!(group[1..].iter().all(|op| (op.waited, op.last) == (0, None)), "{group:?}");
            let records = &recording.records[..group.len()];
            assert!(records.iter().all(|it| it.state == OpState::Done && it.start == records[0].start));
            assert!(records[1..].iter().all(|it| it.end == Some(it.start)), "{records:?}");
            assert_eq!(records[0].end.is_some(), timeline);
        }
    }

    #[test]
    fn the_record_of_a_reduction_of_the_program_has_its_name() {
        let activity = Activity::default();
        let op = |reduction| {
            let dst = crate::Tensor::zeros(crate::DType::F32, [3, 2]).unwrap();
            [Op::AllReduce { src: None, dst, reduction }]
        };
        for reduction in [Reduction::Custom("test.own"), Reduction::Max] {
            activity.start_ops(&op(reduction)[0], &op(reduction), 4, OpPlace::default()).end(true);
        }
        let recording = Recording::decode(&activity.encode(usize::MAX)).unwrap();
        let signatures: Vec<_> = recording.records.iter().filter_map(Record::signature).collect();
        let [own, max] = ["all_reduce test.own f32 x 6", "all_reduce max f32 x 6"];
        assert_eq!(signatures, [own, own, max, max]);
        assert!(recording.records.iter().all(|record| record.name.is_none()));
    }

    #[test]
    fn the_rank_of_the_longest_wait_came_last() {
        let activity = Activity::default();
        let waits = |waits: &[(u64, u32)]| {
            let running = activity.start_op(&Op::Barrier, 4, OpPlace::default());
            for (length, rank) in waits {
                activity.waited(Waiting(ticks() - length), Some(Rank::new(*rank)));
            }
            running.end(true);
            let recording = Recording::decode(&activity.encode(usize::MAX)).unwrap();
            recording.records.last().unwrap().op.as_ref().unwrap().last
        };
        // An operation's longest wait is not that of an earlier operation.
        assert_eq!(waits(&[(0, 2), (1 << 40, 1), (0, 3)]), Some(Rank::new(1)));
        assert_eq!(waits(&[(1 << 39, 0), (0, 3)]), Some(Rank::new(0)));
        assert_eq!(waits(&[]), None);
    }

    #[test]
    fn only_the_last_operations_are_kept_in_order() {
        let activity = Activity::default();
        for _ in 0..40 {
            drop(activity.start_op(&Op::Barrier, 1, OpPlace::default()));
        }
        assert_eq!(activity.progress().ops[0].state, OpState::Failed);
        let numbers: Vec<u32> = activity.progress().ops.iter().map(|op| op.number).collect();
        assert_eq!(numbers, (25..=40).collect::<Vec<_>>());
    }
}
