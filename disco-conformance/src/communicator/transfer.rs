//! Sends and receives in every order that can end.

use disco_core::{DType, Error, Op, OpKind, Result};

use super::buffer::{Buffer, POISON};
use super::stage::{Stage, rank};
use super::verdict::{Tally, Verdict};
use crate::oracle::{Elements, random};

/// Elements of a message.
const COUNTS: [usize; 5] = [0, 1, 7, 257, 4099];
/// Messages from one rank to another in one group.
const MANY: usize = 9;

/// Who sends to whom, and in which order it is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Even ranks send to the next one and receive from it, each outside of a group.
    Pairs,
    /// Everybody sends to the next one and receives from the one before.
    Ring,
    /// As `Ring`, with the receive posted first.
    RingReversed,
    /// Everybody sends to everybody, itself too; each rank posts in an order of its own.
    Everybody,
    /// Many messages from each rank to the next in one group, received in order; ranks post in different orders.
    Many,
    /// Each rank sends to itself.
    Itself,
}

/// One operation of a plan.
#[derive(Clone, Copy, Debug)]
struct Step {
    is_send: bool,
    peer: usize,
    /// Which of the messages between the two.
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
    fn groups(self, me: usize, size: usize) -> Vec<Vec<Step>> {
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
                // Even ranks post all sends first, odd ones take turns.
                match me.is_multiple_of(2) {
                    true => vec![sends.chain(recvs).collect()],
                    false => vec![sends.zip(recvs).flat_map(|(send, recv)| [recv, send]).collect()],
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
    /// Like `send_recv::ring::f32`.
    pub(crate) fn name(&self) -> String {
        format!("send_recv::{}::{}", self.pattern.name(), self.dtype)
    }

    /// Runs every sub-case on this rank.
    ///
    /// # Errors
    /// The communicator's own.
    pub(crate) fn run(&self, stage: &mut Stage<'_>) -> Result<Verdict> {
        let capabilities = stage.comm()?.capabilities();
        if ![OpKind::Send, OpKind::Recv].iter().all(|kind| capabilities.supports(*kind, self.dtype, None)) {
            return self.refused(stage);
        }
        let (me, size) = stage.seat()?;
        let mut tally = Tally::default();
        for (index, count) in COUNTS.into_iter().enumerate() {
            let wrong = self.run_one(stage, (me, size), count, [0, 1, 3][index % 3])?;
            tally.count(wrong.map(|wrong| format!("x {count}, rank {me} of {size}: {wrong}")), &[]);
        }
        Ok(tally.verdict(stage.color))
    }

    fn refused(&self, stage: &mut Stage<'_>) -> Result<Verdict> {
        let (me, _) = stage.seat()?;
        let (src, dst) = (stage.tensor(self.dtype, &[0; 8])?, stage.tensor(self.dtype, &[0; 8])?);
        let group = [Op::Send { src, to: rank(me) }, Op::Recv { dst, from: rank(me) }];
        Ok(match stage.enqueue(&group) {
            Err(error @ Error::Unsupported { .. }) => Verdict::Skipped(error.to_string()),
            Err(other) => Verdict::Wrong(format!("expected to be unsupported, got: {other}")),
            Ok(()) => Verdict::Wrong("ran, although the capabilities lack it".into()),
        })
    }

    fn run_one(
        &self,
        stage: &mut Stage<'_>,
        (me, size): (usize, usize),
        count: usize,
        offset: usize,
    ) -> Result<Option<String>> {
        let message = |from: usize, to: usize, number: usize| {
            random(self.dtype, (((from * 100 + to) * 100) + number) as u64, count)
        };
        let mut wrong = None;
        for steps in self.pattern.groups(me, size) {
            let mut posted: Vec<(Step, Buffer)> = Vec::new();
            for step in steps {
                let content = match step.is_send {
                    true => message(me, step.peer, step.number),
                    false => vec![POISON; count * self.dtype.size()],
                };
                posted.push((step, stage.buffer(self.dtype, content, offset)?));
            }
            let group: Vec<Op> = posted.iter().map(|(step, buffer)| step.op(buffer)).collect();
            stage.enqueue(&group)?;
            for (step, buffer) in &posted {
                let expected = match step.is_send {
                    true => buffer.content().to_vec(),
                    false => message(step.peer, me, step.number),
                };
                let (bytes, touched) = buffer.read(stage.ctx)?;
                let found = touched.or_else(|| self.first_difference(&bytes, &expected));
                wrong = wrong.or_else(|| found.map(|found| format!("{}: {found}", step.words())));
            }
        }
        Ok(wrong)
    }

    fn first_difference(&self, bytes: &[u8], expected: &[u8]) -> Option<String> {
        let at = bytes.iter().zip(expected).position(|(got, expected)| got != expected)?;
        let index = at / self.dtype.size();
        let show = |bytes: &[u8]| Elements::decode(self.dtype, bytes).show(index);
        Some(format!("element {index}: expected {}, got {}", show(expected), show(bytes)))
    }
}

impl Step {
    fn op(self, buffer: &Buffer) -> Op {
        match self.is_send {
            true => Op::Send { src: buffer.tensor().clone(), to: rank(self.peer) },
            false => Op::Recv { dst: buffer.tensor().clone(), from: rank(self.peer) },
        }
    }

    fn words(self) -> String {
        let (action, peer) = (if self.is_send { "sent to" } else { "received from" }, self.peer);
        format!("message {} {action} rank {peer}", self.number)
    }
}
