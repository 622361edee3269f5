//! What a rank does in one operation: messages and computations, and what each of them waits for.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;

use disco_core::{Error, Result};

/// The number of a message among those of its kind, and its text if it is not that of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label<'a> {
    pub(crate) number: u64,
    pub(crate) text: Option<&'a str>,
}

/// Bytes of a buffer of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    buffer: usize,
    pub(crate) range: Range<usize>,
}

impl Part {
    /// The bytes at `range` of this part.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        Self { buffer: self.buffer, range: self.range.start + range.start..self.range.start + range.end }
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }
}

/// The buffers of a plan.
#[derive(Default)]
pub(crate) struct Memory<'a>(Vec<Buffer<'a>>);

enum Buffer<'a> {
    Read(&'a [u8]),
    Write(&'a mut [u8]),
    Own(Vec<u8>),
}

impl<'a> Memory<'a> {
    fn add(&mut self, buffer: Buffer<'a>, bytes: usize) -> Part {
        self.0.push(buffer);
        Part { buffer: self.0.len() - 1, range: 0..bytes }
    }

    pub(crate) fn get(&self, part: &Part) -> &[u8] {
        match &self.0[part.buffer] {
            Buffer::Read(bytes) => &bytes[part.range.clone()],
            Buffer::Write(bytes) => &bytes[part.range.clone()],
            Buffer::Own(bytes) => &bytes[part.range.clone()],
        }
    }

    /// # Errors
    /// A tensor that is only read.
    pub(crate) fn get_mut(&mut self, part: &Part) -> Result<&mut [u8]> {
        self.0[part.buffer].bytes_mut().map(|bytes| &mut bytes[part.range.clone()])
    }

    /// Writes a part from parts of other buffers.
    ///
    /// # Errors
    /// Those of `write`; a tensor that is only read.
    pub(crate) fn write(&mut self, to: &Part, write: impl FnOnce(&Self, &mut [u8]) -> Result<()>) -> Result<()> {
        let mut buffer = mem::replace(&mut self.0[to.buffer], Buffer::Read(&[]));
        let result = buffer.bytes_mut().and_then(|bytes| write(self, &mut bytes[to.range.clone()]));
        self.0[to.buffer] = buffer;
        result
    }
}

impl Buffer<'_> {
    fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        match self {
            Buffer::Read(_) => Err(Error::state("tcp: an operation writes a tensor that it only reads")),
            Buffer::Write(bytes) => Ok(bytes),
            Buffer::Own(bytes) => Ok(bytes),
        }
    }
}

/// A step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepId(usize);

/// A computation on the buffers of a plan.
type Compute<'a> = Box<dyn FnOnce(&mut Memory<'a>) -> Result<()> + 'a>;

/// A message or a computation.
struct Step<'a> {
    /// The number of steps that it waits for.
    waits: usize,
    /// The steps that wait for it.
    then: Vec<StepId>,
    /// `None` for a message.
    compute: Option<Compute<'a>>,
}

/// A message of a plan.
pub(crate) struct Message<'a> {
    pub(crate) step: StepId,
    pub(crate) label: Label<'a>,
    pub(crate) content: Part,
}

/// The steps of one rank. Messages to one rank are sent in the order in which they were added, and so are those from one rank
/// received.
///
/// Whatever the order of other events, all ranks end if each step waits only for steps that were added before it, and if both
/// ends add their messages in the same order.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    pub(crate) memory: Memory<'a>,
    steps: Vec<Step<'a>>,
    /// Steps that are not done.
    left: usize,
    /// Computations that wait for nothing.
    ready: VecDeque<StepId>,
    /// Messages to each rank.
    pub(crate) outgoing: Vec<VecDeque<Message<'a>>>,
    /// Messages from each rank.
    pub(crate) incoming: Vec<VecDeque<Message<'a>>>,
}

impl<'a> Plan<'a> {
    /// Adds a buffer that is read.
    pub(crate) fn read(&mut self, bytes: &'a [u8]) -> Part {
        self.memory.add(Buffer::Read(bytes), bytes.len())
    }

    /// Adds a buffer that is read and written.
    pub(crate) fn write(&mut self, bytes: &'a mut [u8]) -> Part {
        let len = bytes.len();
        self.memory.add(Buffer::Write(bytes), len)
    }

    /// Adds a buffer of the plan.
    pub(crate) fn buffer(&mut self, bytes: usize) -> Part {
        self.memory.add(Buffer::Own(vec![0; bytes]), bytes)
    }

    /// Sends a part to a rank.
    pub(crate) fn send(
        &mut self,
        to: usize,
        label: Label<'a>,
        content: Part,
        after: impl IntoIterator<Item = StepId>,
    ) -> StepId {
        let step = self.add(None, after);
        queue(&mut self.outgoing, to).push_back(Message { step, label, content });
        step
    }

    /// Receives a message of a rank into a part, which has its size.
    pub(crate) fn receive(
        &mut self,
        from: usize,
        label: Label<'a>,
        content: Part,
        after: impl IntoIterator<Item = StepId>,
    ) -> StepId {
        let step = self.add(None, after);
        queue(&mut self.incoming, from).push_back(Message { step, label, content });
        step
    }

    /// Computes something on the buffers.
    pub(crate) fn compute(
        &mut self,
        after: impl IntoIterator<Item = StepId>,
        compute: impl FnOnce(&mut Memory<'a>) -> Result<()> + 'a,
    ) -> StepId {
        let step = self.add(Some(Box::new(compute)), after);
        if self.is_ready(step) {
            self.ready.push_back(step);
        }
        step
    }

    fn add(&mut self, compute: Option<Compute<'a>>, after: impl IntoIterator<Item = StepId>) -> StepId {
        let step = StepId(self.steps.len());
        let mut waits = 0;
        for before in after {
            self.steps[before.0].then.push(step);
            waits += 1;
        }
        self.left += 1;
        self.steps.push(Step { waits, then: Vec::new(), compute });
        step
    }

    /// Whether nothing that a step waits for is left.
    pub(crate) fn is_ready(&self, step: StepId) -> bool {
        self.steps[step.0].waits == 0
    }

    /// Marks a step as done, and queues the computations that wait for nothing else.
    pub(crate) fn note_done(&mut self, step: StepId) {
        self.left -= 1;
        for next in mem::take(&mut self.steps[step.0].then) {
            let later = &mut self.steps[next.0];
            later.waits -= 1;
            if later.waits == 0 && later.compute.is_some() {
                self.ready.push_back(next);
            }
        }
    }

    /// Runs the computations that wait for nothing. Returns whether there were any.
    ///
    /// # Errors
    /// Those of the computations.
    pub(crate) fn run_ready(&mut self) -> Result<bool> {
        let mut has_run = false;
        while let Some(step) = self.ready.pop_front() {
            if let Some(compute) = self.steps[step.0].compute.take() {
                compute(&mut self.memory)?;
            }
            self.note_done(step);
            has_run = true;
        }
        Ok(has_run)
    }

    /// Whether all messages and computations are done.
    pub(crate) fn is_done(&self) -> bool {
        self.left == 0
    }
}

/// The messages of a rank.
fn queue<'q, 'a>(queues: &'q mut Vec<VecDeque<Message<'a>>>, rank: usize) -> &'q mut VecDeque<Message<'a>> {
    if queues.len() <= rank {
        queues.resize_with(rank + 1, VecDeque::new);
    }
    &mut queues[rank]
}

/// A buffer that is used again and again: several slots, each of which waits for the last use of its content.
pub(crate) struct Slots {
    whole: Part,
    last_uses: Vec<Option<StepId>>,
}

impl Slots {
    /// While one piece is computed or sent, another one comes, and a third one may begin.
    const MAX_COUNT: usize = 3;

    /// Slots of this size, for this number of pieces.
    pub(crate) fn new(plan: &mut Plan<'_>, bytes: usize, pieces: usize) -> Self {
        let count = pieces.clamp(1, Self::MAX_COUNT);
        Self { whole: plan.buffer(bytes * count), last_uses: vec![None; count] }
    }

    /// The first `bytes` bytes of the slot of a piece, and the step that it waits for.
    pub(crate) fn slot(&self, piece: usize, bytes: usize) -> (Part, Option<StepId>) {
        let count = self.last_uses.len();
        let slot = piece % count;
        let start = slot * (self.whole.len() / count);
        (self.whole.part(start..start + bytes), self.last_uses[slot])
    }

    /// Notes the last use of a piece.
    pub(crate) fn note_last_use(&mut self, piece: usize, step: StepId) {
        let slot = piece % self.last_uses.len();
        self.last_uses[slot] = Some(step);
    }
}
