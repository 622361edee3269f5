//! Schedules of collectives. Each rank has a connection to each other one, so most need one or two steps:
//!
//! | operation | small | large |
//! |---|---|---|
//! | `all_reduce` | each rank sends its input to all, and reduces all inputs | each rank reduces its share of all inputs, and sends the result to all |
//! | `reduce` | all send their inputs to the root, which reduces them | each rank reduces its share of all inputs, and sends the result to the root |
//! | `reduce_scatter` | | each rank reduces its block of all inputs |
//! | `broadcast` | the root sends to all | the root sends each rank its share, and all ranks send their shares to all |
//! | `all_gather` | each block goes straight to all ranks | the same, to each machine once |
//! | others | each block goes straight to its rank | the same |
//!
//! In the large form, tensors go in pieces, and machines with several ranks send and receive each byte once ([`shares`](crate::shares)). All
//! reductions have the tree of [`disco_local::reduce`], so results have the same bits in both forms, on all ranks, and over `local`.

use std::ops::Range;

use disco_core::{DType, Error, Op, Result};

use crate::buffers::Buffers;
use crate::exchange;
use crate::machines::Machines;
use crate::plan::{Label, Part, Plan, StepId};
use crate::shares::{Broadcast, Collect, Results, Rule, Shares, Spread, schedule};
use crate::wires::{Call, Wires};

/// Bytes of a tensor up to which the small form is used; where all ranks send to all, divided by the number of other ranks.
const SMALL_BYTES: usize = 64 << 10;

/// The most ranks that meet in a barrier in one step.
const MAX_DIRECT_RANKS: usize = 8;

/// One collective on one rank.
pub(crate) struct Collective<'a, 'w> {
    pub(crate) call: Call<'a>,
    pub(crate) wires: &'a mut Wires<'w>,
    pub(crate) machines: &'a Machines,
    pub(crate) me: usize,
    pub(crate) size: usize,
}

impl<'a, 'c> Collective<'c, '_> {
    /// Runs the operation, whose memory `buffers` are.
    ///
    /// # Errors
    /// Errors of [`exchange::run`].
    pub(crate) fn run(&mut self, op: &Op, buffers: Buffers<'a>) -> Result<()> {
        let Buffers { input, output } = buffers;
        let size = self.size;
        let rule = || Ok::<_, Error>(Rule { dtype: width(op)?, reduction: op.reduction().ok_or_else(|| bug(op))? });
        let no_output = || bug(op);
        match op {
            Op::Barrier => self.barrier(),
            Op::AllReduce { .. } => self.all_reduce(rule()?, input, output.ok_or_else(no_output)?),
            Op::Reduce { root, .. } => self.reduce(rule()?, input, output, root.index()),
            Op::ReduceScatter { .. } => self.reduce_scatter(rule()?, input, output.ok_or_else(no_output)?),
            Op::Broadcast { root, .. } => {
                self.broadcast(width(op)?, input, output.ok_or_else(no_output)?, root.index())
            }
            Op::AllGather { .. } => {
                let output = output.ok_or_else(no_output)?;
                let block = output.len() / size;
                self.all_gather(input, output, &even(block, size))
            }
            Op::AllGatherV { counts, .. } => {
                self.all_gather(input, output.ok_or_else(no_output)?, &uneven(counts, width(op)?.size()))
            }
            Op::Gather { root, .. } => {
                let block = op.count(size) * width(op)?.size();
                self.gather(input, output, root.index(), &even(block, size))
            }
            Op::Scatter { root, .. } => {
                let block = op.count(size) * width(op)?.size();
                self.scatter(input, output, root.index(), &even(block, size))
            }
            Op::AllToAll { .. } => {
                let output = output.ok_or_else(no_output)?;
                let blocks = even(output.len() / size, size);
                self.all_to_all(input, output, &blocks, &blocks)
            }
            Op::AllToAllV { send_counts, recv_counts, .. } => {
                let bytes = width(op)?.size();
                let (send, recv) = (uneven(send_counts, bytes), uneven(recv_counts, bytes));
                self.all_to_all(input, output.ok_or_else(no_output)?, &send, &recv)
            }
            Op::Send { .. } | Op::Recv { .. } => Err(bug(op)),
            _ => {
                let operation = op.kind().name().into();
                Err(Error::Unsupported { backend: crate::NAME, operation, dtype: op.dtype() })
            }
        }
    }

    fn label(&self) -> Label<'static> {
        Label { number: self.call.number, text: None }
    }

    fn execute(&mut self, plan: Plan<'_>) -> Result<()> {
        exchange::run(plan, self.call, self.wires)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.size).filter(move |peer| *peer != me)
    }

    fn shares<'s>(&self, ranges: &'s [Range<usize>]) -> Shares<'s>
    where
        'c: 's,
    {
        Shares { machines: self.machines, me: self.me, ranges, label: self.label() }
    }

    /// Gives each rank something of all others, so that none goes on before all have come.
    fn barrier(&mut self) -> Result<()> {
        let label = self.label();
        // A dissemination barrier for many ranks: after step k, a rank has heard of 2^k ranks. Otherwise each hears of all.
        let (mut distance, size) = (1, self.size);
        while distance < size {
            let last = if size <= MAX_DIRECT_RANKS { size } else { distance + 1 };
            let mut plan = Plan::default();
            let nothing = plan.buffer(0);
            for distance in distance..last {
                plan.send((self.me + distance) % size, label, nothing.clone(), None);
                plan.receive((self.me + size - distance) % size, label, nothing.clone(), None);
            }
            self.execute(plan)?;
            distance = if size <= MAX_DIRECT_RANKS { size } else { distance * 2 };
        }
        Ok(())
    }

    fn all_reduce(&mut self, rule: Rule, input: Option<&'a [u8]>, output: &'a mut [u8]) -> Result<()> {
        let bytes = output.len();
        let mut plan = Plan::default();
        let output = plan.write(output);
        let input = input.map_or(output.clone(), |input| plan.read(input));
        if bytes <= SMALL_BYTES / (self.size - 1).max(1) {
            self.exchange_inputs(&mut plan, rule, &input, &output);
            return self.execute(plan);
        }
        let ranges = share_ranges(bytes, self.size, rule.dtype);
        let shares = self.shares(&ranges);
        let results = Results::Spread(Spread::new(shares, output, None));
        let mut collect = Collect::new(&mut plan, shares, rule, input, results);
        schedule(&mut plan, shares, &mut collect);
        self.execute(plan)
    }

    /// Sends the input to all, and reduces all inputs into the output.
    fn exchange_inputs(&self, plan: &mut Plan<'a>, rule: Rule, input: &Part, output: &Part) {
        // In place, the output has to be sent before it is overwritten.
        let mut after: Vec<_> = self.others().map(|peer| plan.send(peer, self.label(), input.clone(), None)).collect();
        let mut inputs = vec![input.clone(); self.size];
        for peer in self.others() {
            inputs[peer] = plan.buffer(input.len());
            after.push(plan.receive(peer, self.label(), inputs[peer].clone(), None));
        }
        reduce(plan, rule, inputs, output.clone(), after);
    }

    fn reduce(&mut self, rule: Rule, input: Option<&'a [u8]>, output: Option<&'a mut [u8]>, root: usize) -> Result<()> {
        let (label, mut plan) = (self.label(), Plan::default());
        let output = output.filter(|_| self.me == root).map(|output| plan.write(output));
        let input = input.map(|input| plan.read(input)).or(output.clone());
        let input = input.unwrap_or_else(|| plan.buffer(0));
        if input.len() > SMALL_BYTES {
            // Of two ranks, the root reduces all.
            let ranges = match (self.size, root) {
                (2, 0) => vec![0..input.len(), input.len()..input.len()],
                (2, _) => vec![0..0, 0..input.len()],
                (size, _) => share_ranges(input.len(), size, rule.dtype),
            };
            let shares = self.shares(&ranges);
            let mut collect = Collect::new(&mut plan, shares, rule, input, Results::Root(root, output));
            schedule(&mut plan, shares, &mut collect);
            return self.execute(plan);
        }
        let Some(output) = output else {
            plan.send(root, label, input, None);
            return self.execute(plan);
        };
        let mut inputs = vec![input.clone(); self.size];
        let mut received = Vec::new();
        for peer in self.others() {
            inputs[peer] = plan.buffer(input.len());
            received.push(plan.receive(peer, label, inputs[peer].clone(), None));
        }
        reduce(&mut plan, rule, inputs, output, received);
        self.execute(plan)
    }

    fn reduce_scatter(&mut self, rule: Rule, input: Option<&'a [u8]>, output: &'a mut [u8]) -> Result<()> {
        let bytes = input.map_or(output.len(), <[u8]>::len);
        let ranges = even(bytes / self.size, self.size);
        let mine = ranges[self.me].len();
        let shares = self.shares(&ranges);
        let plan = |input, output| {
            let mut plan = Plan::default();
            let (input, output) = (plan.read(input), plan.write(output));
            let mut collect = Collect::new(&mut plan, shares, rule, input, Results::Kept(output));
            schedule(&mut plan, shares, &mut collect);
            plan
        };
        if let Some(input) = input {
            return self.execute(plan(input, &mut output[..mine]));
        }
        // In place, the result goes to the first block, which is the input for another rank.
        let mut result = vec![0; mine];
        self.execute(plan(output, &mut result))?;
        output[..mine].copy_from_slice(&result);
        Ok(())
    }

    fn broadcast(&mut self, dtype: DType, input: Option<&[u8]>, output: &'a mut [u8], root: usize) -> Result<()> {
        let (label, is_root, bytes) = (self.label(), self.me == root, output.len());
        if let Some(input) = input.filter(|_| is_root) {
            output.copy_from_slice(input);
        }
        let mut plan = Plan::default();
        let tensor = plan.write(output);
        if bytes > SMALL_BYTES && self.size > 2 {
            let ranges = share_ranges(bytes, self.size, dtype);
            let shares = self.shares(&ranges);
            let spread = Spread::new(shares, tensor, Some(root));
            schedule(&mut plan, shares, &mut Broadcast { root, spread });
        } else if is_root {
            for peer in self.others() {
                plan.send(peer, label, tensor.clone(), None);
            }
        } else {
            plan.receive(root, label, tensor, None);
        }
        self.execute(plan)
    }

    /// Gathers the ranks' blocks in `output`. In place, this rank's block is there.
    fn all_gather(&mut self, input: Option<&[u8]>, output: &'a mut [u8], blocks: &[Range<usize>]) -> Result<()> {
        if let Some(input) = input {
            output[blocks[self.me].clone()].copy_from_slice(input);
        }
        let (label, mut plan) = (self.label(), Plan::default());
        let tensor = plan.write(output);
        let longest = blocks.iter().map(Range::len).max().unwrap_or(0);
        if longest > SMALL_BYTES / (self.size - 1).max(1) {
            let shares = self.shares(blocks);
            schedule(&mut plan, shares, &mut Spread::new(shares, tensor, None));
            return self.execute(plan);
        }
        for peer in self.others() {
            plan.send(peer, label, tensor.part(blocks[self.me].clone()), None);
            plan.receive(peer, label, tensor.part(blocks[peer].clone()), None);
        }
        self.execute(plan)
    }

    fn gather(
        &mut self,
        input: Option<&'a [u8]>,
        output: Option<&'a mut [u8]>,
        root: usize,
        blocks: &[Range<usize>],
    ) -> Result<()> {
        let (label, mut plan) = (self.label(), Plan::default());
        let Some(output) = output.filter(|_| self.me == root) else {
            let input = plan.read(input.unwrap_or_default());
            plan.send(root, label, input, None);
            return self.execute(plan);
        };
        if let Some(input) = input {
            output[blocks[root].clone()].copy_from_slice(input);
        }
        let tensor = plan.write(output);
        for peer in self.others() {
            plan.receive(peer, label, tensor.part(blocks[peer].clone()), None);
        }
        self.execute(plan)
    }

    /// Gives each rank its block of the root's `input`. `output` is that of this rank; none if it stays in the input.
    fn scatter(
        &mut self,
        input: Option<&'a [u8]>,
        output: Option<&'a mut [u8]>,
        root: usize,
        blocks: &[Range<usize>],
    ) -> Result<()> {
        let (label, mut plan) = (self.label(), Plan::default());
        match (input.filter(|_| self.me == root), output) {
            (Some(input), output) => {
                if let Some(output) = output {
                    output.copy_from_slice(&input[blocks[root].clone()]);
                }
                let input = plan.read(input);
                for peer in self.others() {
                    plan.send(peer, label, input.part(blocks[peer].clone()), None);
                }
            }
            (None, Some(output)) => {
                let output = plan.write(output);
                plan.receive(root, label, output, None);
            }
            (None, None) => {}
        }
        self.execute(plan)
    }

    fn all_to_all(
        &mut self,
        input: Option<&'a [u8]>,
        output: &'a mut [u8],
        send: &[Range<usize>],
        recv: &[Range<usize>],
    ) -> Result<()> {
        // In place, received blocks would overwrite blocks that are not sent yet.
        let copy = if input.is_none() { output.to_vec() } else { Vec::new() };
        let input = input.unwrap_or(&copy);
        let (own, mine) = (&input[send[self.me].clone()], recv[self.me].clone());
        if mine.len() != own.len() {
            let (rank, sent, expected) = (self.me, own.len(), mine.len());
            let detail = format!("rank {rank} sends {sent} bytes to itself, which expects {expected}");
            return Err(Error::Mismatch { operation: "all_to_all_v".into(), detail });
        }
        output[mine].copy_from_slice(own);
        let (label, mut plan) = (self.label(), Plan::default());
        let (input, output) = (plan.read(input), plan.write(output));
        for peer in self.others() {
            plan.send(peer, label, input.part(send[peer].clone()), None);
            plan.receive(peer, label, output.part(recv[peer].clone()), None);
        }
        self.execute(plan)
    }
}

/// Reduces the inputs of all ranks into a part, which may be one of them.
fn reduce(plan: &mut Plan<'_>, rule: Rule, inputs: Vec<Part>, to: Part, after: Vec<StepId>) {
    plan.compute(after, move |memory| {
        memory.write(&to, |memory, output| {
            let inputs: Vec<_> = inputs.iter().map(|part| (*part != to).then(|| memory.get(part))).collect();
            disco_local::reduce(rule.dtype, rule.reduction, &inputs, output)
        })
    });
}

/// The ranges of blocks of the same size.
fn even(block: usize, size: usize) -> Vec<Range<usize>> {
    (0..size).map(|rank| rank * block..(rank + 1) * block).collect()
}

/// The ranges of blocks of these numbers of elements.
fn uneven(counts: &[usize], width: usize) -> Vec<Range<usize>> {
    let mut end = 0;
    let mut next = |count: &usize| {
        let start = end;
        end += count * width;
        start..end
    };
    counts.iter().map(&mut next).collect()
}

/// The ranges of a tensor's shares, which are equal but for an element.
fn share_ranges(bytes: usize, size: usize, dtype: DType) -> Vec<Range<usize>> {
    let (width, elements) = (dtype.size(), bytes / dtype.size());
    let start = |rank: usize| (elements / size * rank + rank.min(elements % size)) * width;
    (0..size).map(|rank| start(rank)..start(rank + 1)).collect()
}

/// The dtype of an operation that has elements.
fn width(op: &Op) -> Result<DType> {
    op.dtype().ok_or_else(|| bug(op))
}

/// The error of an operation that `Op::check` should have refused.
fn bug(op: &Op) -> Error {
    Error::state(format!("tcp: {} without a tensor that it needs", op.kind().name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_elements_and_cover_the_tensor() {
        for (elements, size) in [(0, 3), (2, 3), (7, 3), (64, 4)] {
            let shares = share_ranges(elements * 4, size, DType::F32);
            assert_eq!((shares[0].start, shares[size - 1].end), (0, elements * 4));
            assert!(shares.windows(2).all(|two| two[0].end == two[1].start));
            assert!(shares.iter().all(|share| share.len() % 4 == 0 && share.len() / 4 <= elements.div_ceil(size)));
        }
    }
}
