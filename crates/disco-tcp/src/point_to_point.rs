//! Sends and receives of a group, which progress together.

use std::collections::VecDeque;

use disco_core::{Error, Op, Result, Tensor};

use crate::buffers::Buffers;
use crate::exchange;
use crate::plan::{Label, Plan};
use crate::wires::{Call, Wires};

/// Numbers of the messages between this rank and another one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    sent: u64,
    received: u64,
}

/// What both ends of a message must agree on, as text.
fn extent(tensor: &Tensor) -> String {
    format!("{} x {}", tensor.dtype(), tensor.elements())
}

/// Runs a group of sends and receives. `buffers` are those of `ops`, and `counts` those of each rank.
///
/// # Errors
/// [`Error::Mismatch`] of a message of this rank to itself; errors of [`exchange::run`].
pub(crate) fn run(
    call: Call<'_>,
    wires: &mut Wires<'_>,
    ops: &[Op],
    buffers: Vec<Buffers<'_>>,
    counts: &mut [Counts],
) -> Result<()> {
    let texts: Vec<_> = ops.iter().map(|op| op.src().or(op.dst()).map(extent).unwrap_or_default()).collect();
    let (mut plan, mut to_self) = (Plan::default(), VecDeque::new());
    let (mut from_self, me) = (VecDeque::new(), wires.rank);
    for ((op, text), Buffers { input, output }) in ops.iter().zip(&texts).zip(buffers) {
        let Some(peer) = op.peer().map(disco_core::Rank::index) else { continue };
        let (counts, text) = (&mut counts[peer], Some(&**text));
        match (input, output) {
            (Some(content), _) if peer == me => to_self.push_back((content, text)),
            (_, Some(content)) if peer == me => from_self.push_back((content, text)),
            (Some(content), _) => {
                let content = plan.read(content);
                plan.send(peer, Label { number: counts.sent, text }, content, None);
                counts.sent += 1;
            }
            (_, Some(content)) => {
                let content = plan.write(content);
                plan.receive(peer, Label { number: counts.received, text }, content, None);
                counts.received += 1;
            }
            (None, None) => {}
        }
    }
    while let (Some((content, sent)), Some((into, expected))) = (to_self.pop_front(), from_self.pop_front()) {
        if sent != expected {
            let (sent, expected) = (sent.unwrap_or_default(), expected.unwrap_or_default());
            let detail = format!("rank {me} sends {sent} to itself, which expects {expected}");
            return Err(Error::Mismatch { operation: wires.operation.to_owned(), detail });
        }
        into.copy_from_slice(content);
    }
    exchange::run(plan, call, wires)
}
