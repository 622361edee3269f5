//! Every ordered pair of operations, the second right after the first: it must not disturb the first one's result.
//!
//! The other checks compare each result before the next operation starts. Here no result is compared before the last
//! operation has ended, ranks pause at random and start operations instead of enqueuing them, and operations differ in
//! kind, dtype, size, root, layout, communicator and placement of their tensors. At the end, a rank drops a communicator that its peers use.

use std::time::Duration;
use std::{fmt, mem, thread};

use disco_core::{Communicator, DType, Error, Op, OpKind, Reduction, Result, Work};

use super::chain;
use super::collective::case::{Case, Common, Layout};
use super::collective::maker;
use super::fixture::{Fixture, HostMemory};
use super::part::Part;
use super::transfer::{Pattern, Transfer};
use super::verdict::{Tally, Verdict};
use crate::oracle::{Values, bits};

/// Number of checks, each with its own seed. The first has one communicator, so that each pair meets there; the others
/// also have one of half of the ranks.
const SEEDS: u64 = 2;
/// Elements of a block: from nothing, over the limits of small-message paths, to more than a staging piece of `local`.
const COUNTS: [usize; 11] = [0, 1, 7, 13, 257, 1024, 2053, 4096, 5003, 20_011, 40_009];
/// For communicators of more than four ranks.
const FEW_COUNTS: [usize; 6] = [0, 1, 7, 257, 1024, 2053];
/// Longest random pause of a rank between two operations.
const MAX_PAUSE: Duration = Duration::from_micros(100);

/// A random walk over all ordered pairs of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mixed {
    seed: u64,
}

/// One operation of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Collective(OpKind),
    Barrier,
    Transfer(Pattern),
}

impl Mixed {
    /// One check for each seed.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (1..=SEEDS).map(|seed| Self { seed })
    }

    /// Runs the walk on this rank.
    ///
    /// # Errors
    /// Errors of the communicator.
    pub(crate) fn run(&self, fixture: &mut Fixture<'_>) -> Result<Verdict> {
        let color = fixture.color;
        let mut walk = Walk::new(self.seed, fixture)?;
        for step in pairs(&mut *walk.shared) {
            walk.post(step)?;
        }
        walk.compare()?;
        // Ranks that do not detect a dropped peer would wait until the deadline of the session.
        let tally = if walk.fixture.detects_dropped_peers { walk.drop_child()? } else { walk.tally };
        Ok(tally.verdict(color))
    }
}

/// Like `mixed::each_pair_back_to_back::seed_1`.
impl fmt::Display for Mixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mixed::each_pair_back_to_back::seed_{}", self.seed)
    }
}

/// A source of random numbers.
type Random = Box<dyn FnMut() -> u64>;

/// One rank in a walk.
struct Walk<'w, 's> {
    fixture: &'w mut Fixture<'s>,
    /// Half of the communicator's ranks, in reverse order.
    child: Box<dyn Communicator>,
    uses_child: bool,
    /// Random numbers that are equal on all ranks.
    shared: Random,
    /// Random numbers of this rank.
    own: Random,
    /// Number of steps so far.
    steps: u64,
    /// Operations of the group that is enqueued next, and whether they run on the child.
    group: (Vec<Op>, bool),
    /// Operations that this rank has started.
    started: Vec<Work>,
    /// Operations whose results are not compared yet: description, dtype and tensors.
    open: Vec<(String, DType, Part)>,
    tally: Tally,
}

impl<'w, 's> Walk<'w, 's> {
    fn new(seed: u64, fixture: &'w mut Fixture<'s>) -> Result<Self> {
        let (me, _) = fixture.rank_and_size()?;
        let child = fixture.comm()?.split(Some(me as u32 % 2), -(me as i32))?;
        let child = child.ok_or_else(|| Error::invalid("split: a color was passed, but there is no communicator"))?;
        Ok(Self {
            fixture,
            child,
            uses_child: seed > 1,
            shared: Box::new(bits(seed)),
            own: Box::new(bits((seed << 32) + me as u64 + 1)),
            steps: 0,
            group: (Vec::new(), false),
            started: Vec::new(),
            open: Vec::new(),
            tally: Tally::default(),
        })
    }

    /// Makes the tensors of a step and adds its operations to the current group, or enqueues that group and starts
    /// another one.
    fn post(&mut self, step: Step) -> Result<()> {
        let on_child = self.uses_child && below(&mut self.shared, 4) == 0;
        let joins = below(&mut self.shared, 4) == 0;
        let part = self.part(step, on_child)?;
        if below(&mut self.own, 4) == 0 {
            thread::sleep(MAX_PAUSE.mul_f64(below(&mut self.own, 100) as f64 / 100.0));
        }
        let Some((what, dtype, part)) = part else { return Ok(()) };
        let is_transfer = |op: &Op| op.kind().is_point_to_point();
        // A group holds collectives of one communicator, or one pattern of sends and receives.
        let fits = self.group.1 == on_child && !self.group.0.iter().chain(&part.ops).any(is_transfer);
        if !(joins && fits) {
            self.enqueue()?;
        }
        self.group.0.extend(part.ops.iter().cloned());
        self.group.1 = on_child;
        self.open.push((what, dtype, part));
        Ok(())
    }

    fn enqueue(&mut self) -> Result<()> {
        let group = mem::take(&mut self.group.0);
        let comm: &mut dyn Communicator = if self.group.1 { &mut *self.child } else { self.fixture.comm()? };
        // The other ranks may do otherwise.
        match below(&mut self.own, 6) {
            0 => self.started.push(comm.start(&group)?),
            1 => comm.start(&group)?.wait()?,
            2 => drop(comm.start(&group)?),
            _ => comm.enqueue(&group)?,
        }
        Ok(())
    }

    /// Compares the results of all operations.
    fn compare(&mut self) -> Result<()> {
        self.enqueue()?;
        self.fixture.comm()?.synchronize()?;
        self.child.synchronize()?;
        self.started.drain(..).try_for_each(|work| work.wait())?;
        for (what, dtype, part) in mem::take(&mut self.open) {
            let wrong = part.inspect(self.fixture.ctx, dtype)?.wrong;
            self.tally.count(wrong.map(|wrong| format!("{what}: {wrong}")), &[]);
        }
        Ok(())
    }

    /// A random rank of the child drops it, and the other ranks of the child wait for it there.
    ///
    /// # Errors
    /// Errors of the communicator of all ranks.
    fn drop_child(mut self) -> Result<Tally> {
        let (me, size) = (self.child.rank().index(), self.child.size());
        let culprit = below(&mut self.shared, size as u64) as usize;
        let Walk { fixture, mut child, mut tally, .. } = self;
        // All ranks of the child have ended their operations on it.
        fixture.enqueue(&[Op::Barrier])?;
        if me == culprit {
            drop(child);
        } else {
            let ended = child.enqueue(&[Op::Barrier]).and_then(|()| child.synchronize());
            let detected = matches!(ended, Err(Error::Lost(_) | Error::Aborted { .. } | Error::Broken { .. }));
            let wrong =
                format!("rank {culprit} dropped a split, and the barrier of rank {me} of {size} gives {ended:?}");
            tally.count((!detected).then_some(wrong), &[]);
        }
        Ok(tally)
    }

    /// The tensors and operations of a step. None if the backend lacks the operation on all dtypes.
    fn part(&mut self, step: Step, on_child: bool) -> Result<Option<(String, DType, Part)>> {
        let (me, size) =
            if on_child { (self.child.rank().index(), self.child.size()) } else { self.fixture.rank_and_size()? };
        let capabilities = self.fixture.comm()?.capabilities();
        let supports = |dtype: DType, reduction: Option<Reduction>| match step {
            Step::Collective(kind) => {
                (dtype, reduction) != (DType::Bool, Some(Reduction::Avg))
                    && capabilities.supports(kind, dtype, reduction)
            }
            Step::Barrier => true,
            Step::Transfer(_) => capabilities.supports(OpKind::Send, dtype, None),
        };
        let reductions: &[Option<Reduction>] = if step.reduces() { &Reduction::ALL.map(Some) } else { &[None] };
        let pairs = DType::all().flat_map(|dtype| reductions.iter().map(move |reduction| (dtype, *reduction)));
        let own = chain::DTYPES.into_iter().filter(|_| step.reduces()).map(|dtype| (dtype, Some(chain::CHAIN)));
        let legal: Vec<_> = pairs.chain(own).filter(|(dtype, reduction)| supports(*dtype, *reduction)).collect();
        if legal.is_empty() {
            return Ok(None);
        }
        let shared = &mut self.shared;
        let (dtype, reduction) = *pick(shared, &legal);
        let count = *pick(shared, if size > 4 { &FEW_COUNTS } else { &COUNTS });
        let row = match reduction {
            Some(Reduction::Custom(_)) => Some(*pick(shared, &[1, 3, 64, count.max(1)])),
            _ => None,
        };
        let count = row.map_or(count, |row| count / row * row);
        let (root, salt) = (below(shared, size as u64) as usize, shared() >> 16);
        self.fixture.memory = *pick(&mut self.own, &[HostMemory::Shared, HostMemory::Private, HostMemory::Pinned]);
        let offset = below(&mut self.own, 4) as usize;
        self.steps += 1;
        let number = self.steps;
        let named =
            |what: String| format!("step {number}, on {}: {what}", if on_child { "a split" } else { "all ranks" });
        let (what, part) = match step {
            Step::Barrier => ("barrier".to_owned(), Part::new(Op::Barrier, [])),
            Step::Transfer(pattern) => {
                let transfer = Transfer { pattern, dtype };
                let steps = pattern.groups(me, size).into_iter().flatten().collect();
                let part = transfer.part(self.fixture, steps, (me, count), offset, salt)?;
                (format!("{} x {count}, rank {me} of {size}", transfer.name()), part)
            }
            Step::Collective(kind) => {
                let chooser = if Layout::may_differ_by_rank(kind) { &mut self.own } else { &mut self.shared };
                let layout = *pick(chooser, &Layout::of(kind));
                let values = if step.reduces() && row.is_none() { Values::Whole } else { Values::Bits };
                let reduction = reduction.unwrap_or(Reduction::Sum);
                let exact = self.fixture.exact;
                let case = Case {
                    kind,
                    dtype,
                    reduction,
                    count,
                    row,
                    root,
                    layout,
                    values,
                    offset,
                    me,
                    size,
                    exact,
                    salt,
                    common: &Common::default(),
                };
                (case.to_string(), maker::part(&case, self.fixture)?)
            }
        };
        Ok(Some((named(what), dtype, part)))
    }
}

impl Step {
    fn reduces(self) -> bool {
        matches!(self, Self::Collective(OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter))
    }
}

/// A sequence of steps in which each step follows each, also itself: a de Bruijn sequence of pairs over shuffled steps.
fn pairs(random: &mut dyn FnMut() -> u64) -> Vec<Step> {
    let kinds = OpKind::ALL.into_iter().filter(|kind| !kind.is_point_to_point() && *kind != OpKind::Barrier);
    let transfers = [Pattern::Ring, Pattern::Everybody].map(Step::Transfer);
    let mut steps: Vec<Step> = kinds.map(Step::Collective).chain([Step::Barrier]).chain(transfers).collect();
    for last in (1..steps.len()).rev() {
        steps.swap(last, (random() % (last as u64 + 1)) as usize);
    }
    let mut sequence = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        sequence.push(*step);
        sequence.extend(steps[index + 1..].iter().flat_map(|later| [*step, *later]));
    }
    // The last step is followed by the first one again.
    sequence.extend(sequence.first().copied());
    sequence
}

fn below(random: &mut Random, limit: u64) -> u64 {
    // The high bits are used, because the low bits of the generator have patterns.
    (random() >> 32) % limit
}

fn pick<'t, T>(random: &mut Random, from: &'t [T]) -> &'t T {
    &from[below(random, from.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_walk_has_every_ordered_pair_of_operations() {
        for seed in 1..=SEEDS {
            let sequence = pairs(&mut bits(seed));
            let names: Vec<String> = sequence.iter().map(|step| format!("{step:?}")).collect();
            let operations: HashSet<&String> = names.iter().collect();
            let found: HashSet<(&String, &String)> = names.windows(2).map(|pair| (&pair[0], &pair[1])).collect();
            assert_eq!((operations.len(), found.len()), (13, 13 * 13));
        }
    }
}
