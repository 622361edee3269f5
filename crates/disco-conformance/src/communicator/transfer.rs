//! Sends and receives in various orders that must complete.

use disco_core::{DType, Error, Op, OpKind, Result};

use super::buffer::{Buffer, POISON};
use super::fixture::{Fixture, rank};
use super::part::{Part, Want};
use super::verdict::{Tally, Verdict};
use crate::oracle::random;

/// Elements of a message.
const COUNTS: [usize; 5] = [0, 1, 7, 257, 4099];
/// Messages from one rank to another in one group.
const MANY: usize = 9;

/// The messages between ranks, and the order in which ranks post them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Each even rank sends to the next rank and receives from it, in separate groups.
    Pairs,
    /// Each rank sends to the next rank and receives from the previous one.
    Ring,
    /// Like `Ring`, with the receive posted first.
    RingReversed,
    /// Each rank sends to all ranks, also to itself. Ranks post in different orders.
    Everybody,
    /// Each rank sends many messages to the next rank in one group. Ranks post in different orders.
    Many,
    /// Each rank sends to itself.
    Itself,
}

/// One send or receive of a pattern.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    is_send: bool,
    peer: usize,
    /// Number of the message among those from one rank to the other.
    number: usize,
}

impl Pattern {
    /// All of them.
    pub(crate) const ALL: [Pattern; 6] =
        [Self::Pairs, Self::Ring, Self::RingReversed, Self::Everybody, Self::Many, Self::Itself];

    const fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Ring => "ring",
            Self::RingReversed => "ring_reversed",
            Self::Everybody => "everybody",
            Self::Many => "many",
            Self::Itself => "itself",
        }
    }

    /// The groups that a rank enqueues, one after the other.
    pub(crate) fn groups(self, me: usize, size: usize) -> Vec<Vec<Step>> {
        let send = |peer, number| Step { is_send: true, peer, number };
        let recv = |peer, number| Step { is_send: false, peer, number };
        let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
        match self {
            Self::Pairs if me.is_multiple_of(2) && me + 1 < size => vec![vec![send(me + 1, 0)], vec![recv(me + 1, 0)]],
            Self::Pairs if !me.is_multiple_of(2) => vec![vec![recv(me - 1, 0)], vec![send(me - 1, 0)]],
            Self::Pairs => Vec::new(),
            Self::Ring => vec![vec![send(next, 0), recv(previous, 0)]],
            Self::RingReversed => vec![vec![recv(previous, 0), send(next, 0)]],
            Self::Everybody => {
                let sends = (0..size).map(|peer| send(peer, 0));
                let mut group: Vec<Step> = sends.chain((0..size).rev().map(|peer| recv(peer, 0))).collect();
                group.rotate_left(me);
                vec![group]
            }
            Self::Many => {
                let sends = (0..MANY).map(|number| send(next, number));
                let recvs = (0..MANY).map(|number| recv(previous, number));
                // Even ranks post all sends first; odd ranks alternate receives and sends.
                if me.is_multiple_of(2) {
                    vec![sends.chain(recvs).collect()]
                } else {
                    vec![sends.zip(recvs).flat_map(|(send, recv)| [recv, send]).collect()]
                }
            }
            Self::Itself => vec![vec![send(me, 0), recv(me, 0)], vec![recv(me, 1), send(me, 1)]],
        }
    }
}

/// Transfers of one dtype in one pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) pattern: Pattern,
    pub(crate) dtype: DType,
}

impl Transfer {
    /// The name of the check, such as `send_recv::ring::f32`.
    pub(crate) fn name(&self) -> String {
        format!("send_recv::{}::{}", self.pattern.name(), self.dtype)
    }

    /// Runs every sub-case on this rank.
    ///
    /// # Errors
    /// Errors of the communicator.
    pub(crate) fn run(&self, fixture: &mut Fixture<'_>) -> Result<Verdict> {
        let capabilities = fixture.comm()?.capabilities();
        if ![OpKind::Send, OpKind::Recv].iter().all(|kind| capabilities.supports(*kind, self.dtype, None)) {
            return self.refused(fixture);
        }
        let (me, size) = fixture.rank_and_size()?;
        let mut tally = Tally::default();
        for (index, count) in COUNTS.into_iter().enumerate() {
            let wrong = self.run_one(fixture, (me, size), count, [0, 1, 3][index % 3])?;
            tally.count(wrong.map(|wrong| format!("x {count}, rank {me} of {size}: {wrong}")), &[]);
        }
        Ok(tally.verdict(fixture.color))
    }

    fn refused(&self, fixture: &mut Fixture<'_>) -> Result<Verdict> {
        let (me, _) = fixture.rank_and_size()?;
        let (src, dst) = (fixture.tensor(self.dtype, &[0; 8])?, fixture.tensor(self.dtype, &[0; 8])?);
        let group = [Op::Send { src, to: rank(me) }, Op::Recv { dst, from: rank(me) }];
        Ok(match fixture.enqueue(&group) {
            Err(error @ Error::Unsupported { .. }) => Verdict::Skipped(error.to_string()),
            Err(other) => Verdict::Wrong(format!("expected to be unsupported, got: {other}")),
            Ok(()) => Verdict::Wrong("ran, although the capabilities lack it".into()),
        })
    }

    fn run_one(
        &self,
        fixture: &mut Fixture<'_>,
        (me, size): (usize, usize),
        count: usize,
        offset: usize,
    ) -> Result<Option<String>> {
        let mut wrong = None;
        for steps in self.pattern.groups(me, size) {
            let part = self.part(fixture, steps, (me, count), offset, 0)?;
            fixture.enqueue(&part.ops)?;
            wrong = wrong.or(part.inspect(fixture.ctx, self.dtype)?.wrong);
        }
        Ok(wrong)
    }

    /// Makes the tensors of a group of rank `me`, each of `count` elements, and its operations.
    ///
    /// # Errors
    /// An allocation fails.
    pub(crate) fn part(
        &self,
        fixture: &mut Fixture<'_>,
        steps: Vec<Step>,
        (me, count): (usize, usize),
        offset: usize,
        salt: u64,
    ) -> Result<Part> {
        let message = |from: usize, to: usize, number: usize| {
            random(self.dtype, salt + (((from * 100 + to) * 100) + number) as u64, count)
        };
        let mut part = Part::default();
        for step in steps {
            let (content, want) = if step.is_send {
                (message(me, step.peer, step.number), Want::Unchanged)
            } else {
                (vec![POISON; count * self.dtype.size()], Want::Bytes(message(step.peer, me, step.number)))
            };
            let buffer = fixture.buffer(self.dtype, content, offset)?;
            part.push(step.op(&buffer), step.words(), buffer, want);
        }
        Ok(part)
    }
}

impl Step {
    fn op(self, buffer: &Buffer) -> Op {
        if self.is_send {
            Op::Send { src: buffer.tensor().clone(), to: rank(self.peer) }
        } else {
            Op::Recv { dst: buffer.tensor().clone(), from: rank(self.peer) }
        }
    }

    fn words(self) -> String {
        let (action, peer) = (if self.is_send { "sent to" } else { "received from" }, self.peer);
        format!("message {} {action} rank {peer}", self.number)
    }
}
