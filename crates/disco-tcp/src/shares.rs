//! The schedules of large tensors. Each rank owns a share of the tensor, which goes in pieces through these steps:
//!
//! ```text
//! gather    the ranks of a machine send their inputs to one of them, the helper of the share there, which is the owner at home
//! collect   the helper reduces the branches of the tree that are on its machine, and sends the results to the owner, which
//!           joins the branches of all machines
//! spread    the owner sends the result to its neighbours and to the helper of each other machine
//! forward   the helper sends it to its neighbours
//! ```
//!
//! So a byte of a result crosses to each machine once, and so does a partial result for each branch. Step `s` of piece `p` is added
//! to the plan at tick `p + s`, in the same order on all ranks.

use std::ops::Range;

use disco_core::{DType, Reduction, Result};

use crate::machines::Machines;
use crate::plan::{Label, Memory, Part, Plan, Slots, StepId};

/// Bytes of a piece: as many as stay in the cache of a core between two steps. Many ranks have smaller ones, since each needs
/// room for those of all its neighbours.
fn piece_bytes(ranks: usize) -> usize {
    ((4 << 20) / ranks.max(1)).next_multiple_of(MAX_WIDTH).clamp(32 << 10, 256 << 10)
}

/// A multiple of the size of each dtype.
const MAX_WIDTH: usize = 64;

/// How elements are reduced.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) dtype: DType,
    pub(crate) reduction: Reduction,
}

/// The shares of a tensor, and the place of this rank among the ranks that own them.
#[derive(Clone, Copy)]
pub(crate) struct Shares<'s> {
    pub(crate) machines: &'s Machines,
    pub(crate) me: usize,
    /// The share of each rank.
    pub(crate) ranges: &'s [Range<usize>],
    pub(crate) label: Label<'static>,
}

impl<'s> Shares<'s> {
    /// The most pieces of a share.
    fn pieces(&self) -> usize {
        (0..self.ranges.len()).map(|owner| self.pieces_of(owner)).max().unwrap_or(0)
    }

    /// The pieces of a share: one at least, so that its owner takes part in the operation.
    fn pieces_of(&self, owner: usize) -> usize {
        self.ranges[owner].len().div_ceil(self.piece_bytes()).max(1)
    }

    fn piece_bytes(&self) -> usize {
        piece_bytes(self.ranges.len())
    }

    /// A piece of a share; `None` past its end.
    fn piece(&self, owner: usize, piece: usize) -> Option<Range<usize>> {
        let range = &self.ranges[owner];
        let start = range.start + piece * self.piece_bytes();
        (piece < self.pieces_of(owner)).then(|| start..range.end.min(start + self.piece_bytes()))
    }

    /// The helper of a share on this machine.
    fn helper(&self, owner: usize) -> usize {
        self.machines.helper(self.home(), owner)
    }

    fn home(&self) -> usize {
        self.machines.of(self.me)
    }

    /// The other ranks of this machine.
    fn neighbours(self) -> impl Iterator<Item = usize> + use<'s> {
        self.machines.neighbours(self.me)
    }

    /// The other machines.
    fn machines(self) -> impl Iterator<Item = usize> + use<'s> {
        (0..self.machines.len()).filter(move |machine| *machine != self.home())
    }
}

/// What each step of a schedule adds to a plan, for one piece of one share.
pub(crate) trait Steps<'a> {
    /// The number of steps.
    const COUNT: usize;

    fn add(&mut self, plan: &mut Plan<'a>, step: usize, owner: usize, piece: usize, range: Range<usize>);
}

/// Adds all steps of all pieces to a plan.
pub(crate) fn schedule<'a, S: Steps<'a>>(plan: &mut Plan<'a>, shares: Shares<'_>, steps: &mut S) {
    for tick in 0..shares.pieces() + S::COUNT - 1 {
        // The last step first, so that a step uses the piece that the step before it has added last.
        for step in (0..S::COUNT).rev() {
            let Some(piece) = tick.checked_sub(step) else { continue };
            for owner in 0..shares.ranges.len() {
                if let Some(range) = shares.piece(owner, piece) {
                    steps.add(plan, step, owner, piece, range);
                }
            }
        }
    }
}

/// Spreads the shares to all ranks.
pub(crate) struct Spread<'s> {
    shares: Shares<'s>,
    /// The tensor that gets all shares.
    tensor: Part,
    /// A rank that has all of them already.
    has_all: Option<usize>,
    /// The step that has made the last piece of this rank's share.
    made: Option<StepId>,
    /// The step that has brought the last piece of each share that this rank forwards.
    brought: Vec<Option<StepId>>,
}

impl<'s> Spread<'s> {
    pub(crate) fn new(shares: Shares<'s>, tensor: Part, has_all: Option<usize>) -> Self {
        let brought = vec![None; shares.ranges.len()];
        Self { shares, tensor, has_all, made: None, brought }
    }

    /// The owner's step.
    fn spread(&mut self, plan: &mut Plan<'_>, owner: usize, range: Range<usize>) {
        let Shares { machines, me, label, .. } = self.shares;
        let (content, has_all) = (self.tensor.part(range), self.has_all);
        if me == owner {
            let helpers = self.shares.machines().map(|machine| machines.helper(machine, owner));
            for to in self.shares.neighbours().chain(helpers).filter(|to| has_all != Some(*to)) {
                plan.send(to, label, content.clone(), self.made);
            }
        } else if has_all != Some(me) && (machines.of(owner) == self.shares.home() || self.shares.helper(owner) == me) {
            self.brought[owner] = Some(plan.receive(owner, label, content, None));
        }
    }

    /// The helper's step.
    fn forward(&mut self, plan: &mut Plan<'_>, owner: usize, range: Range<usize>) {
        let Shares { machines, me, label, .. } = self.shares;
        if machines.of(owner) == self.shares.home() {
            return;
        }
        let (helper, content, has_all) = (self.shares.helper(owner), self.tensor.part(range), self.has_all);
        if me == helper {
            for to in self.shares.neighbours().filter(|to| has_all != Some(*to)) {
                plan.send(to, label, content.clone(), self.brought[owner]);
            }
        } else if has_all != Some(me) {
            plan.receive(helper, label, content, None);
        }
    }
}

impl<'a> Steps<'a> for Spread<'_> {
    const COUNT: usize = 2;

    fn add(&mut self, plan: &mut Plan<'a>, step: usize, owner: usize, _: usize, range: Range<usize>) {
        match step {
            0 => self.spread(plan, owner, range),
            _ => self.forward(plan, owner, range),
        }
    }
}

/// Gives each owner its share of a tensor that rank `root` has, and spreads the shares.
pub(crate) struct Broadcast<'s> {
    pub(crate) root: usize,
    pub(crate) spread: Spread<'s>,
}

impl<'a> Steps<'a> for Broadcast<'_> {
    const COUNT: usize = 3;

    fn add(&mut self, plan: &mut Plan<'a>, step: usize, owner: usize, piece: usize, range: Range<usize>) {
        let Shares { me, label, .. } = self.spread.shares;
        match step {
            0 if owner == self.root => {}
            0 if me == self.root => {
                plan.send(owner, label, self.spread.tensor.part(range), None);
            }
            0 if me == owner => {
                self.spread.made = Some(plan.receive(self.root, label, self.spread.tensor.part(range), None))
            }
            0 => {}
            step => self.spread.add(plan, step - 1, owner, piece, range),
        }
    }
}

/// Where the result of a rank's share goes.
pub(crate) enum Results<'s> {
    /// To all ranks.
    Spread(Spread<'s>),
    /// Nowhere else.
    Kept(Part),
    /// To this rank, which has the tensor for all of them.
    Root(usize, Option<Part>),
}

/// Reduces each rank's share of the inputs of all ranks.
pub(crate) struct Collect<'s> {
    shares: Shares<'s>,
    rule: Rule,
    input: Part,
    results: Results<'s>,
    /// Bytes of an element of a partial result.
    wide: usize,
    /// The branches of the tree that are reduced apart.
    branches: Vec<Branch>,
    /// The inputs of neighbours, for each share that this rank helps with, in the order of the neighbours.
    gathered: Vec<Vec<Slots>>,
    /// Partial results that this rank sends, for each share and branch of its machine.
    partials: Vec<Vec<Slots>>,
    /// Branches that come from other machines, in the order of the ranks.
    collected: Vec<Slots>,
    /// Results that go to the root.
    made: Option<Slots>,
    /// The steps that have gathered the last piece of each share.
    gathered_by: Vec<Vec<StepId>>,
    /// The step that has made the last piece of this rank's share.
    joined: Option<StepId>,
}

impl<'s> Collect<'s> {
    pub(crate) fn new(plan: &mut Plan<'_>, shares: Shares<'s>, rule: Rule, input: Part, results: Results<'s>) -> Self {
        let (machines, size, me) = (shares.machines, shares.ranges.len(), shares.me);
        let wide = disco_local::partial_dtype(rule.dtype, rule.reduction);
        let branches = match wide {
            Some(_) => machines.branches(),
            // Inputs go as they are.
            None => (0..size).map(|rank| rank..rank + 1).collect(),
        };
        let wide = wide.unwrap_or(rule.dtype).size();
        let branch = |ranks: Range<usize>| Branch { machine: machines.of(ranks.start), ranks };
        let branches: Vec<_> = branches.into_iter().map(branch).collect();
        let mut slots = |owner: usize, bytes: usize| Slots::new(plan, bytes, shares.pieces_of(owner));
        let longest = |owner: usize| shares.ranges[owner].len().min(shares.piece_bytes());
        let widest = |owner: usize| longest(owner) / rule.dtype.size() * wide;
        let (mut gathered, mut partials) = (Vec::new(), Vec::new());
        for owner in 0..size {
            let is_helper = shares.helper(owner) == me;
            let neighbours = shares.neighbours().filter(|_| is_helper);
            gathered.push(neighbours.map(|_| slots(owner, longest(owner))).collect());
            let mine = branches.iter().filter(|branch| is_helper && owner != me && branch.machine == shares.home());
            // The input of a branch of one rank is sent as it is.
            partials.push(
                mine.map(|branch| slots(owner, if branch.ranks.len() == 1 { 0 } else { widest(owner) })).collect(),
            );
        }
        let others = branches.iter().filter(|branch| branch.machine != shares.home());
        let collected =
            others.map(|branch| slots(me, if branch.ranks.len() == 1 { longest(me) } else { widest(me) })).collect();
        let made = matches!(results, Results::Root(root, _) if root != me).then(|| slots(me, longest(me)));
        let gathered_by = vec![Vec::new(); size];
        let joined = None;
        Self { shares, rule, input, results, wide, branches, gathered, partials, collected, made, gathered_by, joined }
    }

    /// The neighbours send their inputs to the helper.
    fn gather(&mut self, plan: &mut Plan<'_>, owner: usize, piece: usize, range: Range<usize>) {
        let Shares { me, label, .. } = self.shares;
        let helper = self.shares.helper(owner);
        if me != helper {
            plan.send(helper, label, self.input.part(range), None);
            return;
        }
        let mut step = |(from, slots): (usize, &Slots)| {
            let (slot, after) = slots.slot(piece, range.len());
            plan.receive(from, label, slot, after)
        };
        self.gathered_by[owner] = self.shares.neighbours().zip(&self.gathered[owner]).map(&mut step).collect();
    }

    /// The inputs of ranks of this machine, once they are gathered.
    fn inputs(&self, owner: usize, piece: usize, range: &Range<usize>, ranks: Range<usize>) -> Vec<Part> {
        let input = |rank: usize| match self.shares.neighbours().position(|other| other == rank) {
            Some(place) => self.gathered[owner][place].slot(piece, range.len()).0,
            None => self.input.part(range.clone()),
        };
        ranks.map(input).collect()
    }

    /// Notes the step after which the inputs of ranks of this machine are not used any more.
    fn note_last_use(&mut self, owner: usize, piece: usize, ranks: &Range<usize>, step: StepId) {
        for (neighbour, slots) in self.shares.neighbours().zip(&mut self.gathered[owner]) {
            if ranks.contains(&neighbour) {
                slots.note_last_use(piece, step);
            }
        }
    }

    /// The helper sends the branches of its machine.
    fn send_branches(&mut self, plan: &mut Plan<'_>, owner: usize, piece: usize, range: &Range<usize>) {
        let (label, home, rule) = (self.shares.label, self.shares.home(), self.rule);
        let mine: Vec<_> = self.branches.iter().filter(|branch| branch.machine == home).cloned().collect();
        for (place, Branch { ranks, .. }) in mine.into_iter().enumerate() {
            let inputs = self.inputs(owner, piece, range, ranks.clone());
            let gathered = self.gathered_by[owner].clone();
            if let [input] = &*inputs {
                let sent = plan.send(owner, label, input.clone(), gathered);
                self.note_last_use(owner, piece, &ranks, sent);
                continue;
            }
            let bytes = range.len() / rule.dtype.size() * self.wide;
            let (slot, free) = self.partials[owner][place].slot(piece, bytes);
            let to = slot.clone();
            let reduced = plan.compute(gathered.into_iter().chain(free), move |memory| {
                memory.write(&to, |memory, output| rule.partial(inputs.iter().map(|part| memory.get(part)), output))
            });
            self.note_last_use(owner, piece, &ranks, reduced);
            let sent = plan.send(owner, label, slot, [reduced]);
            self.partials[owner][place].note_last_use(piece, sent);
        }
    }

    /// The owner receives the branches of other machines, and joins all of them.
    fn join(&mut self, plan: &mut Plan<'_>, piece: usize, range: &Range<usize>) {
        let Shares { machines, me, label, ranges } = self.shares;
        let (mut after, mut sources, mut next) = (self.gathered_by[me].clone(), Vec::new(), 0);
        for Branch { ranks, machine } in self.branches.clone() {
            if machine == self.shares.home() {
                sources.push(Source::Inputs(self.inputs(me, piece, range, ranks)));
                continue;
            }
            let bytes = if ranks.len() == 1 { range.len() } else { range.len() / self.rule.dtype.size() * self.wide };
            let (slot, free) = self.collected[next].slot(piece, bytes);
            after.push(plan.receive(machines.helper(machine, me), label, slot.clone(), free));
            sources.push(Source::Branch(ranks.len(), slot));
            next += 1;
        }
        let to = match (&self.results, &self.made) {
            (Results::Spread(spread), _) => spread.tensor.part(range.clone()),
            (Results::Kept(part), _) => part.part(range.start - ranges[me].start..range.end - ranges[me].start),
            (Results::Root(_, Some(tensor)), None) => tensor.part(range.clone()),
            (Results::Root(..), made) => {
                let Some((slot, free)) = made.as_ref().map(|made| made.slot(piece, range.len())) else { return };
                after.extend(free);
                slot
            }
        };
        let rule = self.rule;
        let joined = plan
            .compute(after, move |memory| memory.write(&to, |memory, output| rule.join(memory, &sources, &to, output)));
        self.note_last_use(me, piece, &(0..ranges.len()), joined);
        self.collected.iter_mut().for_each(|slots| slots.note_last_use(piece, joined));
        self.joined = Some(joined);
        if let Results::Spread(spread) = &mut self.results {
            spread.made = Some(joined);
        }
    }

    /// The owners send their results to the root.
    fn send_to_root(&mut self, plan: &mut Plan<'_>, owner: usize, piece: usize, range: Range<usize>) {
        let Shares { me, label, .. } = self.shares;
        let Results::Root(root, tensor) = &self.results else { return };
        match (&mut self.made, tensor) {
            (Some(made), _) if owner == me => {
                let (slot, _) = made.slot(piece, range.len());
                let sent = plan.send(*root, label, slot, self.joined);
                made.note_last_use(piece, sent);
            }
            (None, Some(tensor)) if owner != me => {
                plan.receive(owner, label, tensor.part(range), None);
            }
            _ => {}
        }
    }
}

impl<'a> Steps<'a> for Collect<'_> {
    const COUNT: usize = 4;

    fn add(&mut self, plan: &mut Plan<'a>, step: usize, owner: usize, piece: usize, range: Range<usize>) {
        let (me, at_home) = (self.shares.me, self.shares.machines.of(owner) == self.shares.home());
        match step {
            0 => self.gather(plan, owner, piece, range),
            1 if me == owner => self.join(plan, piece, &range),
            1 if !at_home && me == self.shares.helper(owner) => self.send_branches(plan, owner, piece, &range),
            1 => {}
            step => match &mut self.results {
                Results::Spread(spread) => spread.add(plan, step - 2, owner, piece, range),
                Results::Root(..) if step == 2 => self.send_to_root(plan, owner, piece, range),
                Results::Root(..) | Results::Kept(_) => {}
            },
        }
    }
}

/// A branch of the tree over the ranks that is on one machine.
#[derive(Clone)]
struct Branch {
    ranks: Range<usize>,
    machine: usize,
}

/// What the owner of a share has of a branch.
enum Source {
    /// The inputs of its ranks.
    Inputs(Vec<Part>),
    /// The input of one rank, or the partial result of several.
    Branch(usize, Part),
}

impl Source {
    /// The inputs of its ranks; `None` if they are reduced already.
    fn inputs(&self) -> Option<Vec<Part>> {
        match self {
            Self::Inputs(inputs) => Some(inputs.clone()),
            Self::Branch(1, input) => Some(vec![input.clone()]),
            Self::Branch(..) => None,
        }
    }
}

impl Rule {
    fn partial<'m>(self, inputs: impl Iterator<Item = &'m [u8]>, output: &mut [u8]) -> Result<()> {
        disco_local::partial(self.dtype, self.reduction, &inputs.collect::<Vec<_>>(), output)
    }

    /// Joins branches into `output`, the memory of the part `to`, which may be an input.
    fn join(self, memory: &Memory<'_>, sources: &[Source], to: &Part, output: &mut [u8]) -> Result<()> {
        let inputs: Option<Vec<_>> = sources.iter().map(Source::inputs).collect();
        if let Some(inputs) = inputs {
            let inputs: Vec<_> = inputs.concat().iter().map(|part| (part != to).then(|| memory.get(part))).collect();
            return disco_local::reduce(self.dtype, self.reduction, &inputs, output);
        }
        let wide = disco_local::partial_dtype(self.dtype, self.reduction).unwrap_or(self.dtype).size();
        let partial = |source: &Source| match source {
            Source::Inputs(inputs) if inputs.len() > 1 => {
                let mut partial = vec![0; output.len() / self.dtype.size() * wide];
                let inputs = inputs.iter().map(|part| if part == to { &*output } else { memory.get(part) });
                self.partial(inputs, &mut partial).map(|()| partial)
            }
            _ => Ok(Vec::new()),
        };
        let partials: Vec<_> = sources.iter().map(partial).collect::<Result<_>>()?;
        let branches = sources.iter().zip(&partials).map(|(source, partial)| match source {
            Source::Inputs(inputs) => match &**inputs {
                [input] if input == to => disco_local::Branch::Output,
                [input] => disco_local::Branch::Rank(memory.get(input)),
                inputs => disco_local::Branch::Ranks(inputs.len(), partial),
            },
            Source::Branch(1, input) => disco_local::Branch::Rank(memory.get(input)),
            Source::Branch(ranks, partial) => disco_local::Branch::Ranks(*ranks, memory.get(partial)),
        });
        let branches: Vec<_> = branches.collect();
        disco_local::finish(self.dtype, self.reduction, &branches, output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_added_and_sent_on_before_the_next_one_has_come() {
        let machines = Machines::new([0, 1].into_iter());
        let bytes = 8 * piece_bytes(2);
        let (ranges, label) = ([0..bytes / 2, bytes / 2..bytes], Label { number: 1, text: None });
        let shares = Shares { machines: &machines, me: 0, ranges: &ranges, label };
        let rule = Rule { dtype: DType::F32, reduction: Reduction::Sum };
        let mut plan = Plan::default();
        let tensor = plan.buffer(bytes);
        let results = Results::Spread(Spread::new(shares, tensor.clone(), None));
        let mut collect = Collect::new(&mut plan, shares, rule, tensor, results);
        schedule(&mut plan, shares, &mut collect);

        let ready = |plan: &Plan<'_>| plan.outgoing[1].iter().filter(|message| plan.is_ready(message.step)).count();
        assert_eq!(ready(&plan), 4, "this rank's part of all pieces of the other share");
        let first = plan.incoming[1][0].step;
        plan.note_done(first);
        assert!(plan.run_ready().unwrap());
        assert_eq!(ready(&plan), 5, "and the sum of the first piece");
    }
}
