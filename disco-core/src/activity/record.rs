//! One record of an activity: a piece of a worker's work, with its start and its end.
//!
//! ```text
//! word 0  number, from 1; 0 while the place is written     5  communicator's name << 48 | number of the operation there
//!      1  ticks at the start                               6  command's number << 24 | 1 + root or peer
//!      2  ticks at the end, or 0                           7  ticks waited << 24 | 1 + rank that came last
//!      3  kind | state << 8 | dtype << 16 | reduction << 24 | path << 32 | operations before it in its group << 40 | name << 48
//!      4  elements of an operation, the register of a command, or the value of a counter
//! ```
//! The record of an operation's time on a device has the words of the operation, with 128 more in kind and the largest error
//! of its times in place of the wait. Names are numbers of the activity's names, from 1; the name of an operation is that of a
//! program's reduction. dtype, reduction: 255 for none.

use std::sync::Arc;

use super::progress::{OpRecord, OpState};
use crate::dtype::DType;
use crate::id::{Rank, RegisterId};
use crate::op::{self, Op, OpKind, Reduction};

/// Words of a record: one cache line.
pub(super) const RECORD_WORDS: usize = 8;

/// Numbers of the kinds that are no operations. Operations have those of [`OpKind`].
const COMMAND: u8 = 64;
const SPAN: u8 = 65;
const WAIT: u8 = 66;
const MARK: u8 = 67;
const COUNTER: u8 = 68;
const NOTE: u8 = 69;
/// Added to the number of an operation for its time on a device.
const ON_DEVICE: u8 = 128;
/// The name of a communicator or a reduction whose name has found no room.
pub const UNNAMED: &str = "unnamed";
/// A dtype or a reduction that is not there.
const NONE: u8 = u8::MAX;
/// Largest number in 24 bits, and in 40 and 48.
const MAX_24: u64 = (1 << 24) - 1;
const MAX_40: u64 = (1 << 40) - 1;
const MAX_48: u64 = (1 << 48) - 1;

/// The words of a record. Word 0 is written by the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawRecord(pub(super) [u64; RECORD_WORDS]);

/// The place of an operation among those of its communicator.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpPlace {
    /// The communicator's name, as [`Activity::intern`](super::Activity::intern) numbers it.
    pub comm: u32,
    /// The operation's number on the communicator, from 1: collectives and transfers count apart.
    pub number: u64,
}

impl OpPlace {
    /// Operation `number` of communicator `comm`.
    pub const fn new(comm: u32, number: u64) -> Self {
        Self { comm, number }
    }
}

/// Which workers are the ranks of a communicator.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommKind {
    /// All workers, in their order.
    #[default]
    World,
    /// The workers of a group, in their order.
    Group,
    /// Workers that a worker function has split off, in any order; the rank is this worker's.
    Split(Rank),
}

impl CommKind {
    /// The number in the memory of an activity.
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::World => 0,
            Self::Group => 1,
            Self::Split(rank) => (rank.index() as u32).saturating_add(2),
        }
    }

    pub(super) const fn of(number: u32) -> Self {
        match number {
            0 => Self::World,
            1 => Self::Group,
            more => Self::Split(Rank::new(more - 2)),
        }
    }
}

/// One thing that a worker did.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number among the worker's records, from 1.
    pub number: u64,
    /// The kind of activity.
    pub kind: RecordKind,
    /// The function of a call, or the name of another command; the name of a span, a wait or a mark.
    pub name: Option<Arc<str>>,
    /// When it began, in nanoseconds of the machine's monotonic clock.
    pub start: u64,
    /// When it ended; `None` while it runs, and for an operation that ended without an error and without a timeline.
    pub end: Option<u64>,
    /// How it ended.
    pub state: OpState,
    /// The command inside which it was, or which it is; 0 for none.
    pub command: u64,
    /// The register that a command sets.
    pub register: Option<RegisterId>,
    /// The value of a counter; otherwise 0.
    pub value: u64,
    /// The operation; its start and end are those of the call, on devices of the enqueuing. Of [`RecordKind::Device`],
    /// the first operation of the group.
    pub op: Option<OpDetails>,
    /// Largest error of the start and the end of [`RecordKind::Device`] against the machine's monotonic clock, in
    /// nanoseconds; otherwise 0. The length is more exact, since both ends are times of the device's clock.
    pub clock_error: u64,
}

/// The arguments and the course of a communicator's operation.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpDetails {
    /// The communicator: the same text on all its ranks.
    pub comm: Arc<str>,
    /// The operation's number on the communicator, from 1: the same on all ranks of a collective. Sends and receives
    /// count apart.
    pub number: u64,
    /// Element type.
    pub dtype: Option<DType>,
    /// Number of elements of one block.
    pub count: u64,
    /// The name of the reduction: how elements are combined.
    pub reduction: Option<Arc<str>>,
    /// The root, or the peer of a send or a receive.
    pub root: Option<Rank>,
    /// The way that the data took.
    pub path: DataPath,
    /// Time that the rank waited for other ranks, in nanoseconds, as far as the backend tells.
    pub waited: u64,
    /// The rank of its longest wait, which came last, if the backend tells.
    pub last: Option<Rank>,
    /// Which workers are the communicator's ranks.
    pub kind: CommKind,
    /// Number of operations before it in the same group of operations. The times of a group are those of its first
    /// operation; the others start with it and have no length. At most 64 operations of a group are recorded.
    pub behind: u8,
}

/// The kind of a record.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// An operation of a communicator.
    Op(OpKind),
    /// A command; on the controller its submission.
    Command,
    /// A span of the program's own.
    Span,
    /// A wait of the controller.
    Wait,
    /// A moment without length: a recovery.
    Mark,
    /// The value of a counter from its start on.
    Counter,
    /// The time of an operation, or of a group of operations, on a device, as events of its stream have measured it.
    Device(OpKind),
    /// A moment without length: the reason why records are missing.
    Note,
}

/// The way that the data of an operation took.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataPath {
    /// The backend does not tell.
    #[default]
    Unknown,
    /// Memory that the ranks share.
    SharedMemory,
    /// Copies through staging memory that the ranks share.
    Staged,
    /// Disco's kernels over the memory of GPUs that are peers.
    PeerToPeer,
    /// MPI.
    Mpi,
    /// NCCL.
    Nccl,
    /// RCCL.
    Rccl,
    /// Disco's own connections between machines.
    Tcp,
}

impl DataPath {
    /// All paths, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Unknown,
        Self::SharedMemory,
        Self::Staged,
        Self::PeerToPeer,
        Self::Mpi,
        Self::Nccl,
        Self::Rccl,
        Self::Tcp,
    ];

    /// The name in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::SharedMemory => "shared memory",
            Self::Staged => "staged",
            Self::PeerToPeer => "p2p kernel",
            Self::Mpi => "MPI",
            Self::Nccl => "NCCL",
            Self::Rccl => "RCCL",
            Self::Tcp => "TCP",
        }
    }
}

/// The names of an activity, by their numbers from 1.
pub(super) struct Names(pub(super) Vec<(Arc<str>, CommKind)>);

impl Names {
    fn find(&self, number: u64) -> Option<&(Arc<str>, CommKind)> {
        self.0.get((number as usize).checked_sub(1)?)
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<str>> {
        self.find(number).map(|(name, _)| name.clone())
    }

    fn comm(&self, number: u64) -> (Arc<str>, CommKind) {
        self.find(number).cloned().unwrap_or_else(|| (UNNAMED.into(), CommKind::World))
    }
}

impl RecordKind {
    fn of(number: u8) -> Option<Self> {
        Some(match number {
            COMMAND => Self::Command,
            SPAN => Self::Span,
            WAIT => Self::Wait,
            MARK => Self::Mark,
            COUNTER => Self::Counter,
            NOTE => Self::Note,
            op if op >= ON_DEVICE => Self::Device(*OpKind::ALL.get(usize::from(op - ON_DEVICE))?),
            op => Self::Op(*OpKind::ALL.get(usize::from(op))?),
        })
    }

    const fn number(self) -> u8 {
        match self {
            Self::Op(kind) => kind as u8,
            Self::Command => COMMAND,
            Self::Span => SPAN,
            Self::Wait => WAIT,
            Self::Mark => MARK,
            Self::Counter => COUNTER,
            Self::Device(kind) => ON_DEVICE + kind as u8,
            Self::Note => NOTE,
        }
    }
}

impl RawRecord {
    /// A record that is no operation, at `start`.
    #[inline]
    pub(super) fn new(kind: RecordKind, name: u64, start: u64, command: u64) -> Self {
        let none = u64::from(NONE);
        let what = u64::from(kind.number()) | none << 16 | none << 24 | name << 48;
        Self([0, start, 0, what, 0, 0, (command & MAX_40) << 24, 0])
    }

    /// An operation, with the number of operations before it in its group. `name` is that of a program's reduction.
    #[inline(always)]
    pub(super) fn of_op(
        (op, name): (&Op, u32),
        behind: u8,
        size: usize,
        at: OpPlace,
        start: u64,
        command: u64,
    ) -> Self {
        let dtype = op.dtype().map_or(NONE, |dtype| dtype as u8);
        let reduction = op.reduction().map_or(NONE, Reduction::code);
        let what = op.kind() as u64 | u64::from(dtype) << 16 | u64::from(reduction) << 24 | u64::from(behind) << 40;
        let what = Self::named(what, name.into());
        let root = one_more(op.root().or(op.peer()));
        let comm = u64::from(at.comm) << 48 | at.number & MAX_48;
        Self([0, start, 0, what, op.count(size) as u64, comm, (command & MAX_40) << 24 | root, 0])
    }

    pub(super) fn with_register(mut self, register: Option<RegisterId>) -> Self {
        self.0[4] = register.map_or(0, |register| 1 + register.index() as u64);
        self
    }

    pub(super) fn with_value(mut self, value: u64) -> Self {
        self.0[4] = value;
        self
    }

    /// The record of a moment: it ends when it starts.
    pub(super) fn ended_at_start(mut self) -> Self {
        self.0[2] = self.0[1];
        self.0[3] = Self::ended(self.0[3], OpState::Done);
        self
    }

    /// The record of an operation's time on a device, in ticks.
    pub(super) fn on_device(self, start: u64, end: u64, error: u64) -> Self {
        let Self([_, _, _, what, count, place, command, _]) = self;
        Self([
            0,
            start,
            end,
            Self::ended(what | u64::from(ON_DEVICE), OpState::Done),
            count,
            place,
            command,
            error.min(MAX_40) << 24,
        ])
    }

    /// The third word once the record has ended.
    #[inline]
    pub(super) const fn ended(what: u64, state: OpState) -> u64 {
        what & !0xff00 | (state as u64) << 8
    }

    /// The third word with another name.
    #[inline]
    pub(super) const fn named(what: u64, name: u64) -> u64 {
        what & MAX_48 | name << 48
    }

    #[inline]
    pub(super) const fn with_path(what: u64, path: u8) -> u64 {
        what & !(0xff << 32) | (path as u64) << 32
    }

    pub(super) const fn path(what: u64) -> u8 {
        (what >> 32) as u8
    }

    /// The last word with a wait of `ticks` more, and with `last` if there is one.
    #[inline]
    pub(super) fn waited(word: u64, ticks: u64, last: Option<Rank>) -> u64 {
        let last = if last.is_some() { one_more(last) } else { word & MAX_24 };
        ((word >> 24) + ticks).min(MAX_40) << 24 | last
    }

    pub(super) fn state(&self) -> Option<OpState> {
        OpState::ALL.get((self.0[3] >> 8 & 0xff) as usize).copied()
    }

    pub(super) fn kind(&self) -> Option<RecordKind> {
        RecordKind::of(self.0[3] as u8)
    }

    pub(super) fn dtype(&self) -> Option<DType> {
        DType::all().nth((self.0[3] >> 16 & 0xff) as usize)
    }

    /// The record of an operation; none if it is another one, or if the words make no sense.
    pub(super) fn op(&self) -> Option<OpRecord> {
        let RecordKind::Op(kind) = self.kind()? else { return None };
        let [number, .., count, _, _, _] = self.0;
        Some(OpRecord { number: number as u32, kind, dtype: self.dtype(), count, state: self.state()? })
    }

    /// The record, with its names and with times in nanoseconds. `None` if the words make no sense.
    pub(super) fn decode(
        &self,
        names: &Names,
        nanoseconds: impl Fn(u64) -> u64,
        length: impl Fn(u64) -> u64,
    ) -> Option<Record> {
        let [number, start, end, what, count, place, command, waited] = self.0;
        let (kind, state) = (self.kind()?, self.state()?);
        let is_on_device = matches!(kind, RecordKind::Device(_));
        let is_op = is_on_device || matches!(kind, RecordKind::Op(_));
        let (comm, comm_kind) = if is_op { names.comm(place >> 48) } else { Default::default() };
        let op = is_op.then(|| OpDetails {
            comm,
            kind: comm_kind,
            number: place & MAX_48,
            dtype: self.dtype(),
            count,
            reduction: reduction((what >> 24) as u8, names.get(what >> 48)),
            root: rank(command),
            path: DataPath::ALL.get(usize::from(Self::path(what))).copied().unwrap_or_default(),
            waited: if is_on_device { 0 } else { length(waited >> 24) },
            last: rank(waited),
            behind: (what >> 40) as u8,
        });
        let is_counter = kind == RecordKind::Counter;
        let register = count.checked_sub(1).filter(|_| !is_op && !is_counter);
        let register = register.and_then(|id| u32::try_from(id).ok()).map(RegisterId::new);
        let end = (end != 0).then(|| nanoseconds(end).max(nanoseconds(start)));
        let command = command >> 24;
        Some(Record {
            number,
            kind,
            name: names.get(what >> 48).filter(|_| op.is_none()),
            start: nanoseconds(start),
            end,
            state,
            command,
            register,
            value: if is_counter { count } else { 0 },
            op,
            clock_error: if is_on_device { length(waited >> 24) } else { 0 },
        })
    }
}

/// 1 + a rank in 24 bits; 0 for none or a rank that is too large.
#[inline]
fn one_more(rank: Option<Rank>) -> u64 {
    rank.map(|rank| 1 + rank.index() as u64).filter(|number| *number <= MAX_24).unwrap_or(0)
}

/// The name of the reduction with this code; `name` is that of a program's reduction, if it has found room.
fn reduction(code: u8, name: Option<Arc<str>>) -> Option<Arc<str>> {
    match Reduction::ALL.get(usize::from(code)) {
        Some(known) => Some(known.name().into()),
        None => (code != NONE).then(|| name.unwrap_or_else(|| UNNAMED.into())),
    }
}

fn rank(word: u64) -> Option<Rank> {
    ((word & MAX_24) as u32).checked_sub(1).map(Rank::new)
}

impl Record {
    /// A record that began at `start` and runs; the other fields are assigned.
    pub fn new(number: u64, kind: RecordKind, start: u64) -> Self {
        Self {
            number,
            kind,
            name: None,
            start,
            end: None,
            state: OpState::Running,
            command: 0,
            register: None,
            value: 0,
            op: None,
            clock_error: 0,
        }
    }

    /// The kind and the arguments of an operation, as in a call: `all_reduce sum f32 x 64`. The texts of all ranks of a
    /// collective are the same. Therefore V-forms leave out counts, which may differ between ranks. `None` if the record
    /// is no operation.
    pub fn signature(&self) -> Option<String> {
        let (RecordKind::Op(kind) | RecordKind::Device(kind), Some(op)) = (self.kind, &self.op) else { return None };
        let is_v_form = matches!(kind, OpKind::AllGatherV | OpKind::AllToAllV);
        let extent = (!is_v_form).then(|| op.count.to_string());
        Some(op::signature(kind, op.reduction.as_deref(), op.dtype, extent, op.root))
    }
}

impl OpDetails {
    /// Operation `number` of a communicator; the other fields are assigned.
    pub fn new(comm: Arc<str>, number: u64) -> Self {
        Self { comm, number, ..Self::default() }
    }

    /// Bytes of one block.
    pub fn bytes(&self) -> u64 {
        self.dtype.map_or(0, |dtype| self.count.saturating_mul(dtype.size() as u64))
    }
}

crate::format_as!(Display for DataPath, |it| "{}", it.name());
