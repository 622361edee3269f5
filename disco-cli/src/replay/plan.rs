//! The plan of a replay: how long each stand-in call takes on each worker, and which operations it makes.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::rc::Rc;

use disco_trace::command_log::{Call, Described, Operation, OperationScope};
use serde::{Deserialize, Serialize};

use super::placement::Placement;
use super::recorded::Recorded;
use super::schedule::{self, Kind, Meeting, Place};

/// The calls of one worker.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Pauses compute instead of sleeping.
    pub(super) is_busy: bool,
    pub(super) steps: Vec<Step>,
    /// For each call of a stand-in the index of its step.
    pub(super) calls: Vec<u32>,
}

/// The operations, pauses and result of a call on one worker.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Step {
    pub(super) ops: Vec<PlannedOp>,
    /// Pause after the last operation, in nanoseconds.
    pub(super) rest_ns: u64,
    /// The value that the call returns.
    pub(super) result: Option<Described>,
}

/// An operation of a worker.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct PlannedOp {
    /// Pause before it, in nanoseconds.
    pub(super) after_ns: u64,
    /// It is launched in one group with the operation before it.
    pub(super) joins: bool,
    pub(super) kind: String,
    pub(super) in_group: bool,
    pub(super) dtype: Option<String>,
    pub(super) count: usize,
    pub(super) reduction: Option<String>,
    /// The root, or the peer.
    pub(super) root: u32,
    /// Of the V-forms: the number of elements that each rank sends.
    pub(super) counts: Vec<usize>,
}

/// The plans of all workers.
pub(super) struct Plans {
    pub(super) workers: Vec<Plan>,
    /// Number of calls that stand in with the records of another call of their function.
    pub(super) sampled: u64,
    /// Number of calls without records, which take no time.
    pub(super) unknown: u64,
    /// Number of operations of all workers that are left out, because not all ranks have recorded them.
    pub(super) lonely: u64,
    /// Number of operations of communicators that worker functions had split off, which are left out.
    pub(super) splits: u64,
}

/// How a replay differs from the recording.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// How many times as fast as recorded; infinite for no pauses.
    pub(super) speed: f64,
    pub(super) is_busy: bool,
    pub(super) has_data_plane: bool,
}

/// The steps of all workers that the records of one call give. Several calls may use them.
struct Source {
    workers: Vec<SourceStep>,
}

#[derive(Default)]
struct SourceStep {
    ops: Vec<(PlannedOp, Meeting)>,
    rest_ns: u64,
    splits: u64,
}

impl Pace {
    /// A recorded time in the replay, in nanoseconds.
    pub(super) fn scaled(self, ns: u64) -> u64 {
        (ns as f64 / self.speed) as u64
    }
}

/// A call of the replay, and the recorded one whose records stand in for it.
struct Chosen {
    number: u64,
    source: Option<(u64, Rc<Source>)>,
}

impl Chosen {
    fn step(&self, worker: usize) -> Option<&SourceStep> {
        self.source.as_ref().map(|(_, source)| &source.workers[worker])
    }
}

impl Plans {
    /// Plans the calls of stand-ins.
    pub(super) fn new(recorded: &Recorded, placement: Placement, pace: Pace) -> Self {
        let mut plans = Self { workers: Vec::new(), sampled: 0, unknown: 0, lonely: 0, splits: 0 };
        let mut sources: HashMap<u64, Rc<Source>> = HashMap::new();
        let mut samples = Samples::new(recorded, placement);
        let mut calls = Vec::new();
        for call in recorded.replayed() {
            let source = samples.choose(call.number, call.function).map(|number| {
                let new = || Rc::new(Source::new(recorded, placement, pace, number));
                (number, sources.entry(number).or_insert_with(new).clone())
            });
            match &source {
                None => plans.unknown += 1,
                Some((other, _)) => plans.sampled += u64::from(*other != call.number),
            }
            calls.push(Chosen { number: call.number, source });
        }
        let lonely = schedule::lonely(placement.replayed, |call, worker, op| {
            let step = calls.get(call)?.step(worker);
            Some(step.and_then(|step| step.ops.get(op)).map(|(_, meeting)| meeting))
        });
        plans.lonely = lonely.len() as u64;
        for worker in 0..placement.replayed.size() {
            plans.splits += calls.iter().filter_map(|call| call.step(worker)).map(|step| step.splits).sum::<u64>();
            plans.workers.push(Plan::new(worker, &calls, &lonely, recorded, pace));
        }
        plans
    }
}

impl Plan {
    fn new(worker: usize, calls: &[Chosen], lonely: &BTreeSet<Place>, recorded: &Recorded, pace: Pace) -> Self {
        let mut plan = Self { is_busy: pace.is_busy, ..Self::default() };
        // Calls with the same source take the same step, unless they leave operations out or return a value.
        let mut shared: HashMap<Option<u64>, u32> = HashMap::new();
        for (index, call) in calls.iter().enumerate() {
            let of_call = lonely.range((worker, index, 0)..(worker, index + 1, 0));
            let left_out: Vec<usize> = of_call.map(|(_, _, op)| *op).collect();
            let result = recorded.results.get(&call.number);
            let source = call.source.as_ref().map(|(number, _)| *number);
            let is_shared = left_out.is_empty() && result.is_none();
            let known = shared.get(&source).copied().filter(|_| is_shared);
            let step = known.unwrap_or_else(|| {
                plan.steps.push(Step::of(call.step(worker), &left_out, result.cloned()));
                plan.steps.len() as u32 - 1
            });
            if is_shared {
                shared.insert(source, step);
            }
            plan.calls.push(step);
        }
        plan
    }
}

impl Step {
    fn of(source: Option<&SourceStep>, left_out: &[usize], result: Option<Described>) -> Self {
        let Some(source) = source else { return Self { result, ..Self::default() } };
        let (mut pause, mut ops) = (0_u64, Vec::new());
        let mut groups = Groups::default();
        for (index, (op, _)) in source.ops.iter().enumerate() {
            pause = pause.saturating_add(op.after_ns);
            groups.pass(op.joins);
            if !left_out.contains(&index) {
                ops.push(PlannedOp { after_ns: std::mem::take(&mut pause), joins: groups.keep(), ..op.clone() });
            }
        }
        Self { ops, rest_ns: pause.saturating_add(source.rest_ns), result }
    }
}

impl Source {
    fn new(recorded: &Recorded, placement: Placement, pace: Pace, number: u64) -> Self {
        let record = |worker: usize| recorded.workers[placement.source(worker)].get(&number);
        let size = placement.replayed.size();
        Self { workers: (0..size).map(|worker| SourceStep::new(&record, placement, pace, worker)).collect() }
    }
}

impl SourceStep {
    fn new<'a>(record: &impl Fn(usize) -> Option<&'a Call>, placement: Placement, pace: Pace, worker: usize) -> Self {
        let mut step = Self::default();
        let Some(call) = record(worker) else { return step };
        // The time after the last operation.
        let mut rest = call.ns.unwrap_or(0);
        let mut pause = 0_u64;
        let mut groups = Groups::default();
        for (index, op) in call.ops.iter().enumerate() {
            pause = pause.saturating_add(op.after_ns);
            groups.pass(op.joins);
            rest = rest.saturating_sub(op.after_ns.saturating_add(op.ns));
            // A failed operation has waited for other ranks, so the pauses do not include its time.
            if op.failed {
                continue;
            }
            let is_split = op.scope == OperationScope::Split;
            step.splits += u64::from(is_split);
            if is_split || !pace.has_data_plane {
                pause = pause.saturating_add(op.ns);
                continue;
            }
            let after_ns = pace.scaled(std::mem::take(&mut pause));
            if let Some((op, mut meeting)) = planned(record, placement, worker, op, index) {
                let joins = groups.keep();
                // Collectives of a group run in order.
                meeting.joins = joins && meeting.kind != Kind::Collective;
                step.ops.push((PlannedOp { after_ns, joins, ..op }, meeting));
            }
        }
        step.rest_ns = pace.scaled(pause.saturating_add(rest));
        step
    }
}

/// An operation of a worker in the replay, and its meeting.
fn planned<'a>(
    record: &impl Fn(usize) -> Option<&'a Call>,
    placement: Placement,
    worker: usize,
    op: &Operation,
    index: usize,
) -> Option<(PlannedOp, Meeting)> {
    let in_group = op.scope == OperationScope::Group;
    let world = placement.replayed;
    let members = match in_group {
        true => world.members(world.group_of(disco::WorkerId::new(worker as u32))),
        false => 0..world.size(),
    };
    let root = op.root.unwrap_or(0) as usize;
    let kind = match (&*op.kind, in_group) {
        ("send", false) => Kind::Send { to: placement.peer(worker, root) },
        ("recv", false) => Kind::Recv { from: placement.peer(worker, root) },
        ("send", true) => Kind::Send { to: placement.peer_in_group(worker, root).map(|peer| members.start + peer) },
        ("recv", true) => Kind::Recv { from: placement.peer_in_group(worker, root).map(|peer| members.start + peer) },
        _ => Kind::Collective,
    };
    let count = usize::try_from(op.count).ok()?;
    let is_v_form = op.kind.ends_with("_v");
    let counts: Vec<usize> = match is_v_form {
        false => Vec::new(),
        true => {
            let count_of = |member: usize| {
                let theirs = record(member).and_then(|call| call.ops.get(index));
                theirs.filter(|theirs| theirs.kind == op.kind).map_or(0, |theirs| theirs.count as usize)
            };
            members.clone().map(count_of).collect()
        }
    };
    // A peer is a rank of the communicator.
    let rank = match kind {
        Kind::Send { to: peer } | Kind::Recv { from: peer } => peer.unwrap_or(0).saturating_sub(members.start),
        Kind::Collective => root % members.len().max(1),
    } as u32;
    let signature = match kind {
        Kind::Collective => {
            let count = if is_v_form { 0 } else { count };
            hash(&(&op.kind, &op.dtype, &op.reduction, count, rank, &counts))
        }
        _ => hash(&(&op.dtype, count)),
    };
    let meeting = Meeting { kind, joins: false, in_group, members, signature };
    let (dtype, reduction) = (op.dtype.clone(), op.reduction.clone());
    let kind = op.kind.clone();
    let op = PlannedOp { after_ns: 0, joins: false, kind, in_group, dtype, count, reduction, root: rank, counts };
    Some((op, meeting))
}

/// The groups of operations, while some operations are left out.
#[derive(Default)]
struct Groups {
    /// Number of groups so far, and the group of the last operation that is kept.
    count: usize,
    kept: usize,
}

impl Groups {
    /// Passes an operation.
    fn pass(&mut self, joins: bool) {
        self.count += usize::from(!joins);
    }

    /// Keeps this operation. Returns whether it joins the one that was kept before.
    fn keep(&mut self) -> bool {
        std::mem::replace(&mut self.kept, self.count) == self.count
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The calls that all workers have recorded whole, by function.
struct Samples<'a> {
    recorded: &'a Recorded,
    sources: Vec<usize>,
    of_functions: Vec<Vec<u64>>,
    /// For each function the number of times that a sample was chosen.
    used: Vec<usize>,
}

impl<'a> Samples<'a> {
    fn new(recorded: &'a Recorded, placement: Placement) -> Self {
        let sources = (0..placement.replayed.size()).map(|worker| placement.source(worker)).collect();
        let functions = recorded.functions.len();
        let (of_functions, used) = (vec![Vec::new(); functions], vec![0; functions]);
        let mut this = Self { recorded, sources, of_functions, used };
        for call in recorded.replayed() {
            let has_failed = recorded.workers.iter().any(|calls| calls.get(&call.number).is_some_and(|it| it.failed));
            if this.is_whole(call.number) && !has_failed {
                this.of_functions[call.function as usize].push(call.number);
            }
        }
        this
    }

    /// Whether each worker that is needed has recorded the whole call.
    fn is_whole(&self, number: u64) -> bool {
        let is_whole = |worker: &usize| self.recorded.workers[*worker].get(&number).is_some_and(|it| it.ns.is_some());
        self.sources.iter().all(is_whole)
    }

    /// The call whose records stand in for call `number`: this call if all workers have recorded it, else the next sample of
    /// its function.
    fn choose(&mut self, number: u64, function: u32) -> Option<u64> {
        let function = function as usize;
        if self.is_whole(number) {
            return Some(number);
        }
        let samples = &self.of_functions[function];
        let index = self.used[function].checked_rem(samples.len())?;
        self.used[function] += 1;
        Some(samples[index])
    }
}
