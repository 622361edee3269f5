//! The `args` of events, which have all that a trace has.

use std::borrow::Cow;
use std::sync::Arc;

use disco_core::activity::{
    Alignment, ClockPoint, CommKind, DataPath, OpDetails, OpState, Record, RecordKind, Recording,
};
use disco_core::{OpKind, Rank, RegisterId, WorkerId};
use serde::{Deserialize, Serialize};

use crate::trace::{Missing, Trace, WorkerTrace, is_running};

/// The head of a file.
#[derive(Serialize, Deserialize)]
pub(super) struct Head<'a> {
    pub(super) format: Cow<'a, str>,
    pub(super) program: Cow<'a, str>,
    pub(super) workers: u64,
    /// Number of records of all tracks.
    pub(super) records: u64,
    /// Of the trace that was written.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) missing_workers: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) missing_records: u64,
}

/// A track: the controller, if `worker` is not there, or a worker.
#[derive(Serialize, Deserialize)]
pub(super) struct Track<'a> {
    /// The name that viewers show.
    pub(super) name: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<u32>,
    place: Cow<'a, str>,
    kind: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) recording: Option<State<'a>>,
    /// Why there is no recording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<Cow<'a, str>>,
}

/// A recording without its records.
#[derive(Serialize, Deserialize)]
pub(super) struct State<'a> {
    received: u64,
    finished: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inside: Option<Cow<'a, str>>,
    time_ns: u64,
    replaced: u64,
    /// Nanoseconds to add to `time_ns` to get the time on the controller's clock.
    #[serde(skip_deserializing)]
    clock_shift_ns: i64,
    /// Largest error of that sum.
    #[serde(skip_deserializing)]
    clock_error_ns: u64,
    /// The measurements of the alignment: time, shift, largest error of their sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    clock_points_ns: Vec<(u64, i64, u64)>,
    /// Number of records that follow.
    pub(super) records: u64,
}

/// A record, and the values that readers derive from it.
#[derive(Serialize, Deserialize)]
pub(super) struct Entry<'a> {
    record: u64,
    kind: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    start_ns: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end_ns: Option<u64>,
    state: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "is_zero")]
    command: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    register: Option<u32>,
    /// The value of a counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<u64>,
    /// Largest error of the start and the end of a time on a device.
    #[serde(default, skip_serializing_if = "is_zero")]
    clock_error_ns: u64,
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    op: Option<Op<'a>>,
    /// Bytes of one block.
    #[serde(default, skip_deserializing, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Bytes, of all blocks, over time, in GB/s.
    #[serde(default, skip_deserializing, rename = "algbw_GB_s", skip_serializing_if = "Option::is_none")]
    bandwidth: Option<f64>,
    #[serde(default, skip_deserializing, skip_serializing_if = "std::ops::Not::not")]
    unfinished: bool,
}

/// Names of the kinds of communicators.
const WORLD: &str = "world";
const GROUP: &str = "group";
const SPLIT: &str = "split";

#[derive(Serialize, Deserialize)]
struct Op<'a> {
    comm: Cow<'a, str>,
    /// Which workers are the ranks of the communicator: `world`, `group` or `split`.
    ranks: Cow<'a, str>,
    number: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dtype: Option<Cow<'a, str>>,
    count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reduction: Option<Cow<'a, str>>,
    /// The root, or the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    root: Option<u32>,
    path: Cow<'a, str>,
    waited_ns: u64,
    /// The rank that it waited for last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<u32>,
    /// The rank of the worker in a split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    /// Number of operations before it in its group of operations.
    #[serde(default, skip_serializing_if = "is_none")]
    behind: u8,
}

fn is_none(number: &u8) -> bool {
    *number == 0
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl<'a> Head<'a> {
    pub(super) fn of(trace: &'a Trace) -> Self {
        Self {
            format: super::FORMAT.into(),
            program: (&*trace.program).into(),
            workers: trace.workers.len() as u64,
            records: trace.recordings().map(|recording| recording.records.len() as u64).sum(),
            missing_workers: trace.missing.workers,
            missing_records: trace.missing.records,
        }
    }

    pub(super) fn missing(&self) -> Missing {
        Missing { workers: self.missing_workers, records: self.missing_records }
    }
}

impl<'a> Track<'a> {
    pub(super) fn of_controller(recording: &'a Recording) -> Self {
        let name = Cow::Borrowed("controller");
        Self {
            name,
            worker: None,
            place: "".into(),
            kind: "".into(),
            recording: Some(State::of(recording)),
            error: None,
        }
    }

    pub(super) fn of_worker(it: &'a WorkerTrace) -> Self {
        let (recording, error) = match &it.recording {
            Ok(recording) => (Some(State::of(recording)), None),
            Err(error) => (None, Some(Cow::Borrowed(&**error))),
        };
        Self {
            name: it.worker.to_string().into(),
            worker: Some(it.worker.index() as u32),
            place: (&*it.place).into(),
            kind: (&*it.kind).into(),
            recording,
            error,
        }
    }

    /// `Ok`: a worker, without its records. `Err`: the recording of the controller.
    pub(super) fn decode(self) -> Result<WorkerTrace, Recording> {
        let recording = match (self.recording, self.error) {
            (Some(state), _) => Ok(state.decode()),
            (None, Some(error)) => Err(error.into_owned()),
            (None, None) => Ok(Recording::default()),
        };
        match self.worker {
            Some(worker) => Ok(WorkerTrace::new(WorkerId::new(worker), self.place, self.kind, recording)),
            None => Err(recording.unwrap_or_default()),
        }
    }
}

impl<'a> State<'a> {
    fn of(recording: &'a Recording) -> Self {
        let (clock_shift_ns, clock_error_ns) = recording.alignment.at(recording.time);
        let points = recording.alignment.points().iter();
        Self {
            received: recording.received,
            finished: recording.finished,
            inside: recording.inside.as_deref().map(Cow::Borrowed),
            time_ns: recording.time,
            replaced: recording.replaced,
            clock_shift_ns,
            clock_error_ns,
            clock_points_ns: points.map(|point| (point.time, point.shift, point.error)).collect(),
            records: recording.records.len() as u64,
        }
    }

    fn decode(self) -> Recording {
        let mut recording = Recording::default();
        recording.received = self.received;
        recording.finished = self.finished;
        recording.inside = self.inside.map(|name| name.into());
        recording.time = self.time_ns;
        recording.replaced = self.replaced;
        let points = self.clock_points_ns.into_iter();
        recording.alignment = Alignment::new(points.map(|(time, shift, error)| ClockPoint { time, shift, error }));
        recording
    }
}

/// Stands before the name of an operation in the kind of its time on a device.
const ON_DEVICE: &str = "device ";

/// The name of a kind in `args`.
fn kind_name(kind: RecordKind) -> Cow<'static, str> {
    match kind {
        RecordKind::Op(kind) => kind.name().into(),
        RecordKind::Device(kind) => format!("{ON_DEVICE}{kind}").into(),
        other => category(other).into(),
    }
}

/// The category of a record's event.
pub(super) fn category(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Op(_) => "op",
        RecordKind::Command => "command",
        RecordKind::Span => "span",
        RecordKind::Wait => "wait",
        RecordKind::Mark => "mark",
        RecordKind::Counter => "counter",
        RecordKind::Device(_) => "device",
        RecordKind::Note => "note",
        // A kind of a later version of disco-core, which `Trace::read` of this version would not know.
        _ => "other",
    }
}

fn kind(name: &str) -> Option<RecordKind> {
    Some(match name {
        "command" => RecordKind::Command,
        "span" => RecordKind::Span,
        "wait" => RecordKind::Wait,
        "mark" => RecordKind::Mark,
        "counter" => RecordKind::Counter,
        "note" => RecordKind::Note,
        _ => match name.strip_prefix(ON_DEVICE) {
            Some(name) => RecordKind::Device(op_kind(name)?),
            None => RecordKind::Op(op_kind(name)?),
        },
    })
}

fn op_kind(name: &str) -> Option<OpKind> {
    OpKind::ALL.into_iter().find(|kind| kind.name() == name)
}

impl<'a> Entry<'a> {
    /// The `args` of a record. `size` is the number of bytes of an operation's blocks.
    pub(super) fn of(record: &'a Record, size: u64) -> Self {
        let time = record.end.map(|end| end.saturating_sub(record.start)).filter(|time| *time > 0);
        let bandwidth = time.filter(|_| size > 0).map(|time| (size as f64 / time as f64 * 1e3).round() / 1e3);
        Self {
            record: record.number,
            kind: kind_name(record.kind),
            name: record.name.as_deref().map(Cow::Borrowed),
            start_ns: record.start,
            end_ns: record.end,
            state: record.state.name().into(),
            command: record.command,
            register: record.register.map(|register| register.index() as u32),
            value: (record.kind == RecordKind::Counter).then_some(record.value),
            clock_error_ns: record.clock_error,
            op: record.op.as_ref().map(Op::of),
            bytes: record.op.as_ref().map(OpDetails::bytes).filter(|bytes| *bytes > 0),
            bandwidth,
            unfinished: is_running(record),
        }
    }

    /// The record, or its fault.
    pub(super) fn decode(self, intern: &mut impl FnMut(&str) -> Arc<str>) -> Result<Record, String> {
        let kind = kind(&self.kind).ok_or_else(|| format!("unknown kind of a record, `{}`", self.kind))?;
        let mut record = Record::new(self.record, kind, self.start_ns);
        record.name = self.name.map(|name| intern(&name));
        record.end = self.end_ns;
        record.state = find("state", &OpState::ALL, OpState::name, &self.state)?;
        record.command = self.command;
        record.register = self.register.map(RegisterId::new);
        record.value = self.value.unwrap_or_default();
        record.clock_error = self.clock_error_ns;
        record.op = self.op.map(|op| op.decode(intern)).transpose()?;
        if matches!(kind, RecordKind::Op(_) | RecordKind::Device(_)) != record.op.is_some() {
            return Err(format!("a record of the kind `{}` with the wrong fields", self.kind));
        }
        Ok(record)
    }
}

impl<'a> Op<'a> {
    fn of(op: &'a OpDetails) -> Self {
        let (ranks, rank) = match op.kind {
            CommKind::Split(rank) => (SPLIT, Some(rank.index() as u32)),
            CommKind::Group => (GROUP, None),
            _ => (WORLD, None),
        };
        Self {
            comm: (&*op.comm).into(),
            ranks: ranks.into(),
            number: op.number,
            dtype: op.dtype.map(|dtype| dtype.name().into()),
            count: op.count,
            reduction: op.reduction.as_deref().map(Into::into),
            root: op.root.map(|root| root.index() as u32),
            path: op.path.name().into(),
            waited_ns: op.waited,
            last: op.last.map(|last| last.index() as u32),
            rank,
            behind: op.behind,
        }
    }

    fn decode(self, intern: &mut impl FnMut(&str) -> Arc<str>) -> Result<OpDetails, String> {
        let mut op = OpDetails::new(intern(&self.comm), self.number);
        op.dtype = self.dtype.map(|name| name.parse()).transpose().map_err(|error| format!("{error}"))?;
        op.count = self.count;
        op.reduction = self.reduction.map(|name| intern(&name));
        op.root = self.root.map(Rank::new);
        op.path = find("path", &DataPath::ALL, DataPath::name, &self.path)?;
        op.waited = self.waited_ns;
        op.kind = match (&*self.ranks, self.rank) {
            (WORLD, None) => CommKind::World,
            (GROUP, None) => CommKind::Group,
            (SPLIT, Some(rank)) => CommKind::Split(Rank::new(rank)),
            (ranks, _) => return Err(format!("unknown ranks `{ranks}` of a communicator")),
        };
        op.behind = self.behind;
        op.last = self.last.map(Rank::new);
        Ok(op)
    }
}

/// The value with a name.
fn find<T: Copy>(what: &str, all: &[T], name: impl Fn(T) -> &'static str, text: &str) -> Result<T, String> {
    all.iter().copied().find(|value| name(*value) == text).ok_or_else(|| format!("unknown {what} `{text}`"))
}
