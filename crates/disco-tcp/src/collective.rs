//! Schedules of collectives. Each rank has a connection to each other one, so most need one or two steps:
//!
//! | operation | small | large |
//! |---|---|---|
//! | `all_reduce` | each rank sends its input to all, and reduces all inputs | each rank reduces its share of all inputs, and sends the result to all |
//! | `reduce` | all send their inputs to the root, which reduces them | each rank reduces its share of all inputs, and sends the result to the root |
//! | `broadcast` | the root sends to all | the root sends each rank its share, and all ranks send their shares to all |
//! | others | each block goes straight to its rank | the same |
//!
//! In the large form, no rank sends more than twice the bytes of the tensor. All inputs of an element are reduced by the same
//! [function](disco_local::reduce) in the order of the ranks, so results have the same bits in both forms, on all ranks, and
//! over `local`.

use std::ops::Range;

use disco_core::{DType, Error, Op, Reduction, Result};

use crate::buffers::Buffers;
use crate::exchange::{Call, Exchange, Label, Wires};

/// Bytes of a tensor up to which the small form is used, divided by the number of ranks that each rank sends to.
const SMALL_BYTES: usize = 64 << 10;

/// The most ranks that meet in a barrier in one step.
const MAX_DIRECT_RANKS: usize = 8;

/// One collective on one rank.
pub(crate) struct Collective<'a, 'w> {
    pub(crate) call: Call<'a>,
    pub(crate) wires: &'a mut Wires<'w>,
    pub(crate) me: usize,
    pub(crate) size: usize,
}

impl<'a> Collective<'_, '_> {
    /// Runs the operation, whose memory `buffers` are.
    ///
    /// # Errors
    /// Errors of [`Exchange::run`].
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

    fn exchange(&mut self, exchange: Exchange<'_>) -> Result<()> {
        exchange.run(self.call, self.wires)
    }

    /// The other ranks, from the next one on, so that not all send to one rank first.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, size) = (self.me, self.size);
        (1..size).map(move |step| (me + step) % size)
    }

    /// Gives each rank something of all others, so that none goes on before all have come.
    fn barrier(&mut self) -> Result<()> {
        let label = self.label();
        if self.size <= MAX_DIRECT_RANKS {
            let mut exchange = Exchange::default();
            for peer in self.others() {
                exchange.send(peer, label, &[]);
                exchange.receive(peer, label, &mut []);
            }
            return self.exchange(exchange);
        }
        // A dissemination barrier: after step k, a rank has heard of 2^k ranks.
        let mut distance = 1;
        while distance < self.size {
            let mut exchange = Exchange::default();
            exchange.send((self.me + distance) % self.size, label, &[]);
            exchange.receive((self.me + self.size - distance) % self.size, label, &mut []);
            self.exchange(exchange)?;
            distance *= 2;
        }
        Ok(())
    }

    fn all_reduce(&mut self, rule: Rule, input: Option<&[u8]>, output: &mut [u8]) -> Result<()> {
        if output.len() <= SMALL_BYTES / (self.size - 1).max(1) {
            let inputs = self.exchange_inputs(input.unwrap_or(output))?;
            return rule.reduce(self.me, &inputs, input, output);
        }
        let shares = shares(output.len(), self.size, rule.dtype);
        self.reduce_shares(rule, input, output, &shares)?;
        self.all_gather(None, output, &shares)
    }

    /// Reduces this rank's share of all inputs into its place in `output`. In place, `input` is in `output`.
    fn reduce_shares(
        &mut self,
        rule: Rule,
        input: Option<&[u8]>,
        output: &mut [u8],
        shares: &[Range<usize>],
    ) -> Result<()> {
        let mine = shares[self.me].clone();
        let inputs = self.exchange_blocks(input.unwrap_or(output), shares, mine.len())?;
        rule.reduce(self.me, &inputs, input.map(|input| &input[mine.clone()]), &mut output[mine])
    }

    fn reduce(&mut self, rule: Rule, input: Option<&[u8]>, output: Option<&mut [u8]>, root: usize) -> Result<()> {
        let label = self.label();
        let bytes = input.map_or_else(|| output.as_ref().map_or(0, |output| output.len()), <[u8]>::len);
        if bytes <= SMALL_BYTES || self.size < 3 {
            let Some(output) = output.filter(|_| self.me == root) else {
                let mut exchange = Exchange::default();
                exchange.send(root, label, input.unwrap_or_default());
                return self.exchange(exchange);
            };
            let mut inputs = vec![vec![0; bytes]; self.size - 1];
            let mut exchange = Exchange::default();
            for (input, peer) in inputs.iter_mut().zip(peers(self.me, self.size)) {
                exchange.receive(peer, label, input);
            }
            self.exchange(exchange)?;
            return rule.reduce(self.me, &inputs, input, output);
        }
        let shares = shares(bytes, self.size, rule.dtype);
        match output.filter(|_| self.me == root) {
            Some(output) => {
                self.reduce_shares(rule, input, output, &shares)?;
                self.gather(None, Some(output), root, &shares)
            }
            None => {
                let (input, mine) = (input.unwrap_or_default(), shares[self.me].clone());
                let inputs = self.exchange_blocks(input, &shares, mine.len())?;
                let mut result = input[mine].to_vec();
                rule.reduce(self.me, &inputs, None, &mut result)?;
                self.gather(Some(&result), None, root, &shares)
            }
        }
    }

    fn reduce_scatter(&mut self, rule: Rule, input: Option<&[u8]>, output: &mut [u8]) -> Result<()> {
        let bytes = input.map_or(output.len(), <[u8]>::len);
        let blocks = even(bytes / self.size, self.size);
        let mine = blocks[self.me].clone();
        let inputs = self.exchange_blocks(input.unwrap_or(output), &blocks, mine.len())?;
        // In place, the result goes to the first block, and this rank's input may be in another one.
        let copy = if input.is_none() { output[mine.clone()].to_vec() } else { Vec::new() };
        let own = input.map_or(&*copy, |input| &input[mine.clone()]);
        rule.reduce(self.me, &inputs, Some(own), &mut output[..mine.len()])
    }

    fn broadcast(&mut self, dtype: DType, input: Option<&[u8]>, output: &mut [u8], root: usize) -> Result<()> {
        let (label, is_root) = (self.label(), self.me == root);
        if let Some(input) = input.filter(|_| is_root) {
            output.copy_from_slice(input);
        }
        if output.len() > SMALL_BYTES && self.size > 2 {
            let shares = shares(output.len(), self.size, dtype);
            if is_root {
                self.scatter(Some(output), None, root, &shares)?;
            } else {
                self.scatter(None, Some(&mut output[shares[self.me].clone()]), root, &shares)?;
            }
            return self.all_gather(None, output, &shares);
        }
        let mut exchange = Exchange::default();
        if is_root {
            self.others().for_each(|peer| exchange.send(peer, label, output));
        } else {
            exchange.receive(root, label, output);
        }
        self.exchange(exchange)
    }

    /// Gathers the ranks' blocks in `output`. In place, this rank's block is there.
    fn all_gather(&mut self, input: Option<&[u8]>, output: &mut [u8], blocks: &[Range<usize>]) -> Result<()> {
        let label = self.label();
        if let Some(input) = input {
            output[blocks[self.me].clone()].copy_from_slice(input);
        }
        let mut parts = split(output, blocks);
        let mine = std::mem::take(&mut parts[self.me]);
        let mut exchange = Exchange::default();
        self.others().for_each(|peer| exchange.send(peer, label, mine));
        receive_parts(&mut exchange, label, parts, self.me);
        self.exchange(exchange)
    }

    fn gather(
        &mut self,
        input: Option<&[u8]>,
        output: Option<&mut [u8]>,
        root: usize,
        blocks: &[Range<usize>],
    ) -> Result<()> {
        let (label, mut exchange) = (self.label(), Exchange::default());
        let Some(output) = output.filter(|_| self.me == root) else {
            exchange.send(root, label, input.unwrap_or_default());
            return self.exchange(exchange);
        };
        if let Some(input) = input {
            output[blocks[root].clone()].copy_from_slice(input);
        }
        receive_parts(&mut exchange, label, split(output, blocks), root);
        self.exchange(exchange)
    }

    /// Gives each rank its block of the root's `input`. `output` is that of this rank; none if it stays in the input.
    fn scatter(
        &mut self,
        input: Option<&[u8]>,
        output: Option<&mut [u8]>,
        root: usize,
        blocks: &[Range<usize>],
    ) -> Result<()> {
        let (label, mut exchange) = (self.label(), Exchange::default());
        match (input.filter(|_| self.me == root), output) {
            (Some(input), output) => {
                if let Some(output) = output {
                    output.copy_from_slice(&input[blocks[root].clone()]);
                }
                self.others().for_each(|peer| exchange.send(peer, label, &input[blocks[peer].clone()]));
            }
            (None, Some(output)) => exchange.receive(root, label, output),
            (None, None) => {}
        }
        self.exchange(exchange)
    }

    fn all_to_all(
        &mut self,
        input: Option<&[u8]>,
        output: &mut [u8],
        send: &[Range<usize>],
        recv: &[Range<usize>],
    ) -> Result<()> {
        // In place, received blocks would overwrite blocks that are not sent yet.
        let copy = if input.is_none() { output.to_vec() } else { Vec::new() };
        let (input, label) = (input.unwrap_or(&copy), self.label());
        let mut exchange = Exchange::default();
        self.others().for_each(|peer| exchange.send(peer, label, &input[send[peer].clone()]));
        let mine = send[self.me].clone();
        for (peer, part) in split(output, recv).into_iter().enumerate() {
            if peer == self.me {
                let own = &input[mine.clone()];
                if part.len() != own.len() {
                    let (sent, expected) = (own.len(), part.len());
                    let detail = format!("rank {peer} sends {sent} bytes to itself, which expects {expected}");
                    return Err(Error::Mismatch { operation: "all_to_all_v".into(), detail });
                }
                part.copy_from_slice(own);
            } else {
                exchange.receive(peer, label, part);
            }
        }
        self.exchange(exchange)
    }

    /// Sends `input` to all, and returns the inputs of the others in the order of their ranks.
    fn exchange_inputs(&mut self, input: &[u8]) -> Result<Vec<Vec<u8>>> {
        let whole: Vec<_> = (0..self.size).map(|_| 0..input.len()).collect();
        self.exchange_blocks(input, &whole, input.len())
    }

    /// Sends each rank its block of `input`, and returns those of the others for this rank, in the order of their ranks.
    fn exchange_blocks(&mut self, input: &[u8], blocks: &[Range<usize>], mine: usize) -> Result<Vec<Vec<u8>>> {
        let (label, mut exchange) = (self.label(), Exchange::default());
        let mut received = vec![vec![0; mine]; self.size - 1];
        self.others().for_each(|peer| exchange.send(peer, label, &input[blocks[peer].clone()]));
        for (block, peer) in received.iter_mut().zip(peers(self.me, self.size)) {
            exchange.receive(peer, label, block);
        }
        self.exchange(exchange)?;
        Ok(received)
    }
}

/// How elements are reduced.
#[derive(Clone, Copy)]
struct Rule {
    dtype: DType,
    reduction: Reduction,
}

impl Rule {
    /// Reduces the inputs of the `others`, in the order of their ranks, and that of rank `me` between them, into `output`.
    /// Without `own`, that input is in `output`.
    fn reduce(self, me: usize, others: &[Vec<u8>], own: Option<&[u8]>, output: &mut [u8]) -> Result<()> {
        let mut inputs: Vec<_> = others.iter().map(|input| Some(&**input)).collect();
        inputs.insert(me, own);
        disco_local::reduce(self.dtype, self.reduction, &inputs, output)
    }
}

/// Receives the parts of all ranks but this one.
fn receive_parts<'b>(exchange: &mut Exchange<'b>, label: Label<'b>, parts: Vec<&'b mut [u8]>, me: usize) {
    for (peer, part) in parts.into_iter().enumerate().filter(|(peer, _)| *peer != me) {
        exchange.receive(peer, label, part);
    }
}

/// All ranks but this one, in their order.
fn peers(me: usize, size: usize) -> impl Iterator<Item = usize> {
    (0..size).filter(move |peer| *peer != me)
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
fn shares(bytes: usize, size: usize, dtype: DType) -> Vec<Range<usize>> {
    let (width, elements) = (dtype.size(), bytes / dtype.size());
    let start = |rank: usize| (elements / size * rank + rank.min(elements % size)) * width;
    (0..size).map(|rank| start(rank)..start(rank + 1)).collect()
}

/// The parts of `whole` at ranges that follow each other.
fn split<'b>(whole: &'b mut [u8], blocks: &[Range<usize>]) -> Vec<&'b mut [u8]> {
    let mut rest = whole;
    let mut next = |block: &Range<usize>| {
        let (part, behind) = std::mem::take(&mut rest).split_at_mut(block.len());
        rest = behind;
        part
    };
    blocks.iter().map(&mut next).collect()
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
            let shares = shares(elements * 4, size, DType::F32);
            assert_eq!((shares[0].start, shares[size - 1].end), (0, elements * 4));
            assert!(shares.windows(2).all(|two| two[0].end == two[1].start));
            assert!(shares.iter().all(|share| share.len() % 4 == 0 && share.len() / 4 <= elements.div_ceil(size)));
        }
    }
}
