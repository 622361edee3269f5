//! Schedules of the collectives. Between two synchronisations, each byte has either one writer or any number of
//! readers.
//!
//! Small tensors are **eager**: ranks post their data on the board and read the posts of their peers, with one
//! synchronisation: tensors of up to 64 bytes inside the posts, and larger ones, up to a limit of the group and the
//! operation, in areas beside the posts. Large tensors are **zero-copy**: ranks post the locations of their tensors and
//! share the work. Each byte is read from its source and written to its destination once, and a second synchronisation
//! ends the collective. Both reduce in the same [tree](crate::reduction) over the ranks, so all ranks get the same bits.

use disco_core::{Op, Result};

use crate::active_call::{ActiveCall, InlineVec, Memory, Region};
use crate::agree::Call;
use crate::board::{self, MAX_POST_BYTES};
use crate::parts::{STREAMING_MIN_BYTES, parts, reduce, uneven, unit, unsupported, width};
use crate::{placement, staged};

/// The most bytes of all posted tensors of a collective. Each rank reads them all, so the work grows with the square of
/// the number of ranks.
const MAX_TENSORS_BYTES: usize = 128 << 10;

/// Runs one collective.
pub(crate) fn run<'t>(call: &mut ActiveCall<'t>, buffer: &mut [u8], op: &'t Op) -> Result<()> {
    let size = call.size();
    match posted_bytes(op, size) {
        Some(bytes) if bytes <= MAX_POST_BYTES && bytes * size <= buffer.len() => run_eager(call, buffer, op),
        Some(bytes) if bytes <= call.board().tensor_bytes(op.kind()) && bytes * size <= MAX_TENSORS_BYTES => {
            run_posted(call, op)
        }
        _ => run_zero_copy(call, op),
    }
}

/// Size of a rank's buffer for the posts of all ranks, in bytes.
pub(crate) fn buffer_bytes(size: usize) -> usize {
    MAX_POST_BYTES * size.min(8)
}

/// The largest eager post of any rank in bytes, if all ranks compute the same. None for V-forms, which are never eager.
fn posted_bytes(op: &Op, size: usize) -> Option<usize> {
    let block = op.count(size) * width(op);
    match op {
        Op::Barrier => Some(0),
        Op::AllReduce { .. } | Op::Reduce { .. } | Op::AllGather { .. } | Op::Gather { .. } | Op::Broadcast { .. } => {
            Some(block)
        }
        Op::ReduceScatter { .. } | Op::Scatter { .. } | Op::AllToAll { .. } => Some(block * size),
        _ => None,
    }
}

/// Posts the input of this rank, and makes its output from the posts of all ranks.
fn run_eager<'t>(call: &mut ActiveCall<'t>, buffer: &mut [u8], op: &'t Op) -> Result<()> {
    let (me, size) = (call.rank(), call.size());
    let (input, output) = parts(op, me, size)?;
    let mine = &mut buffer[..input.bytes()];
    call.own().read(input, mine)?;
    call.meet(Call::Op(op), board::to_words(mine))?;
    if output.bytes() == 0 {
        return Ok(());
    }
    match op {
        Op::AllReduce { .. } | Op::Reduce { .. } => {
            read_all(call, buffer, 0, output.bytes());
            reduce(&call.own(), op, read_blocks(buffer, output.bytes(), size), [Ok(output)])
        }
        Op::ReduceScatter { .. } => {
            let block = input.bytes() / size;
            read_all(call, buffer, me * block, block);
            reduce(&call.own(), op, read_blocks(buffer, block, size), [output.part(0, block)])
        }
        Op::AllGather { .. } | Op::Gather { .. } | Op::AllToAll { .. } => {
            let block = output.bytes() / size;
            let start = if let Op::AllToAll { .. } = op { me * block } else { 0 };
            read_all(call, buffer, start, block);
            call.own().write(output, &buffer[..block * size])
        }
        Op::Broadcast { root, .. } | Op::Scatter { root, .. } => {
            let block = &mut buffer[..output.bytes()];
            let start = if let Op::Scatter { .. } = op { me * block.len() } else { 0 };
            call.read(root.index(), start, block);
            call.own().write(output, block)
        }
        op => unsupported(op),
    }
}

/// Copies the same range of each rank's post to the buffer, in rank order.
fn read_all(call: &ActiveCall<'_>, buffer: &mut [u8], start: usize, bytes: usize) {
    for (peer, block) in buffer.chunks_exact_mut(bytes).take(call.size()).enumerate() {
        call.read(peer, start, block);
    }
}

/// The blocks that [`read_all`] has copied, as inputs of a reduction.
fn read_blocks(buffer: &mut [u8], bytes: usize, size: usize) -> impl Iterator<Item = Result<Region>> {
    buffer.chunks_exact_mut(bytes).take(size).map(|block| Ok(Region::from(block)))
}

/// Copies the input of this rank to its area on the board, and makes its output from the areas of all ranks.
fn run_posted<'t>(call: &mut ActiveCall<'t>, op: &'t Op) -> Result<()> {
    let (me, size) = (call.rank(), call.size());
    let (input, output) = parts(op, me, size)?;
    let area = call.next_tensor().part(0, input.bytes())?;
    call.own().copy(area, input)?;
    call.meet(Call::Op(op), std::iter::empty())?;
    if output.bytes() == 0 {
        return Ok(());
    }
    let block = output.bytes() / size;
    let tensors: InlineVec<Region> = (0..size).map(|peer| call.tensor(peer)).collect();
    let memory = call.own();
    match op {
        Op::AllReduce { .. } | Op::Reduce { .. } => {
            let inputs = tensors.iter().map(|tensor| tensor.part(0, output.bytes()));
            reduce(&memory, op, inputs, [Ok(output)])
        }
        Op::ReduceScatter { .. } => {
            let block = input.bytes() / size;
            reduce(&memory, op, tensors.iter().map(|tensor| tensor.part(me * block, block)), [output.part(0, block)])
        }
        Op::AllGather { .. } | Op::Gather { .. } | Op::AllToAll { .. } => {
            let start = if let Op::AllToAll { .. } = op { me * block } else { 0 };
            let mut blocks = tensors.iter().enumerate();
            blocks.try_for_each(|(peer, tensor)| memory.copy(output.block(peer, size)?, tensor.part(start, block)?))
        }
        Op::Broadcast { root, .. } if root.index() == me && input.is(output) => Ok(()),
        Op::Broadcast { root, .. } => memory.copy(output, tensors[root.index()].part(0, output.bytes())?),
        Op::Scatter { root, .. } => {
            memory.copy(output, tensors[root.index()].part(me * output.bytes(), output.bytes())?)
        }
        op => unsupported(op),
    }
}

/// Posts the locations of this rank's tensors, and does its share of the work on the tensors of all ranks. If a tensor
/// is private to a process, all data goes through [staging areas](staged).
fn run_zero_copy<'t>(call: &mut ActiveCall<'t>, op: &'t Op) -> Result<()> {
    let (me, size) = (call.rank(), call.size());
    let (input, output) = parts(op, me, size)?;
    let is_staged = staged::prepare(call, op, input)?;
    call.meet_at(Call::Op(op), input, output)?;
    placement::note_meeting(call.board(), me);
    if let Op::AllToAllV { .. } = op {
        call.check_exchange()?;
    }
    if !call.is_reachable() {
        return staged::run(call, op, is_staged);
    }
    let mut tensors = AllTensors { inputs: InlineVec::new(), outputs: InlineVec::new(), pairs: InlineVec::new() };
    for peer in 0..size {
        let (input, output) = call.regions(peer)?;
        tensors.inputs.push(input);
        tensors.outputs.push(output);
    }
    tensors.pairs = match op {
        Op::AllToAll { .. } => (0..size).map(|peer| Pair::even(call, peer)).collect::<Result<InlineVec<Pair>>>()?,
        Op::AllToAllV { .. } => (0..size).map(|peer| Pair::uneven(call, peer, width(op))).collect::<Result<_>>()?,
        _ => InlineVec::new(),
    };
    let AllTensors { inputs, outputs, .. } = &tensors;
    let total: usize = inputs.iter().chain(outputs).map(|region| region.bytes()).sum();
    // An in-place reduction overwrites data that it has just read, which is in the cache.
    let cached = op.reduction().is_some() && inputs.iter().zip(outputs).any(|(input, output)| input.is(*output));
    let memory = call.start()?.streaming(total >= STREAMING_MIN_BYTES && !cached);
    let result = work_on_share(&memory, op, &tensors, me, (input, output))?;
    call.sync()?;
    if let Op::ReduceScatter { .. } = op {
        call.own().copy(output.part(0, result.bytes())?, result)?;
    }
    Ok(())
}

/// The tensors of all ranks.
struct AllTensors {
    inputs: InlineVec<Region>,
    outputs: InlineVec<Region>,
    /// The blocks of an all-to-all.
    pairs: InlineVec<Pair>,
}

/// Does the share of rank `me` in an operation. Returns the region with its result.
fn work_on_share(
    memory: &Memory<'_>,
    op: &Op,
    AllTensors { inputs, outputs, pairs }: &AllTensors,
    me: usize,
    (input, output): (Region, Region),
) -> Result<Region> {
    let (size, unit) = (inputs.len(), unit(op));
    // No other rank reads or writes this share of any tensor.
    let share = |region: &Region| region.share(me, size, unit);
    let mut result = output;
    match op {
        Op::AllReduce { .. } => reduce(memory, op, inputs.iter().map(share), outputs.iter().map(share))?,
        Op::Reduce { root, .. } => reduce(memory, op, inputs.iter().map(share), [share(&outputs[root.index()])])?,
        Op::ReduceScatter { src, .. } => {
            let block = |region: &Region| region.block(me, size);
            if src.is_none() {
                // Block `me` is read by this rank only. The first block can be overwritten once all ranks are done.
                result = block(&output)?;
            }
            reduce(memory, op, inputs.iter().map(block), [Ok(result)])?;
        }
        // In place, source and destination of the own block are the same region, which `copy` skips.
        Op::AllGather { .. } => {
            inputs.iter().enumerate().try_for_each(|(peer, input)| memory.copy(output.block(peer, size)?, *input))?;
        }
        Op::AllGatherV { counts, .. } => {
            for (peer, input) in inputs.iter().enumerate() {
                memory.copy(uneven(output, counts, peer, width(op))?, *input)?;
            }
        }
        Op::Gather { root, .. } => memory.copy(outputs[root.index()].block(me, size)?, input)?,
        Op::Broadcast { root, .. } => {
            let source = share(&inputs[root.index()])?;
            outputs.iter().try_for_each(|output| memory.copy(share(output)?, source))?;
        }
        // The root's own block stays where it is, in place.
        Op::Scatter { dst: None, .. } => {}
        Op::Scatter { root, .. } => memory.copy(output, inputs[root.index()].block(me, size)?)?,
        Op::AllToAll { .. } | Op::AllToAllV { .. } => {
            pairs.iter().enumerate().try_for_each(|(peer, pair)| pair.exchange(memory, (me, peer), unit))?;
        }
        op => return unsupported(op).map(|()| result),
    }
    Ok(result)
}

/// The blocks that this rank and a peer exchange in an all-to-all.
struct Pair {
    /// This rank's block for the peer.
    send: Region,
    /// This rank's block from the peer.
    recv: Region,
    /// The peer's block for this rank.
    their_send: Region,
    /// The peer's block from this rank.
    their_recv: Region,
}

impl Pair {
    fn even(call: &ActiveCall<'_>, peer: usize) -> Result<Self> {
        let (me, size) = (call.rank(), call.size());
        let ((input, output), (their_input, their_output)) = (call.regions(me)?, call.regions(peer)?);
        Ok(Self {
            send: input.block(peer, size)?,
            recv: output.block(peer, size)?,
            their_send: their_input.block(me, size)?,
            their_recv: their_output.block(me, size)?,
        })
    }

    fn uneven(call: &ActiveCall<'_>, peer: usize, width: usize) -> Result<Self> {
        let (me, size) = (call.rank(), call.size());
        let block = |region: Region, of: usize, first: usize, index: usize| {
            let start: usize = (0..index).map(|index| call.count(of, first + index)).sum();
            region.part(start * width, call.count(of, first + index) * width)
        };
        let ((input, output), (their_input, their_output)) = (call.regions(me)?, call.regions(peer)?);
        Ok(Self {
            send: block(input, me, 0, peer)?,
            recv: block(output, me, size, peer)?,
            their_send: block(their_input, peer, 0, me)?,
            their_recv: block(their_output, peer, size, me)?,
        })
    }

    /// Does this rank's part of the exchange. In place, a received block overwrites a sent block, so one rank moves
    /// each byte in both directions.
    fn exchange(&self, memory: &Memory<'_>, (me, peer): (usize, usize), unit: usize) -> Result<()> {
        let (in_place, they_in_place) = (self.send.is(self.recv), self.their_send.is(self.their_recv));
        match (in_place, they_in_place) {
            _ if me == peer => memory.copy(self.recv, self.send),
            (false, false) => memory.copy(self.recv, self.their_send),
            (true, false) => Ok(()),
            (false, true) => {
                memory.copy(self.recv, self.their_send)?;
                memory.copy(self.their_recv, self.send)
            }
            (true, true) => {
                let half = usize::from(me > peer);
                memory.swap(self.recv.share(half, 2, unit)?, self.their_recv.share(half, 2, unit)?)
            }
        }
    }
}
