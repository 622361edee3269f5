//! Collectives: the last rank to arrive computes the results of all ranks. All outputs are computed before any is
//! written.

use std::sync::Arc;

use super::abi::Code;
use super::call::{Call, Kind};
use super::clique::{Aborted, Clique, CliqueState};
use super::comm::Comm;
use super::one_rank;
use super::reduce::{self, Operation};
use crate::cuda;
use crate::cuda::memory::Span;

/// Fill byte of outputs of an aborted collective.
const ABORTED_FILL_BYTE: u8 = 0xB5;

/// An unfinished collective.
pub(crate) struct PendingCollective {
    calls: Vec<Option<Arc<Call>>>,
    /// Calls of all ranks of this process that have arrived, including aborted ones: kernels of their peers may access
    /// their buffers.
    arrived: Vec<Arc<Call>>,
    /// Whether all ranks have arrived: then none leaves before the collective is done.
    is_complete: bool,
    is_done: bool,
    /// Number of ranks that have not left.
    left: usize,
}

/// Runs a rank's part in a collective.
pub(crate) fn meet(comm: &Comm, clique: &Clique, rank: usize, number: u64, call: &Arc<Call>) -> Result<(), Aborted> {
    let complete = clique.change(|state| arrive(state, clique.ranks(), rank, number, call));
    if let Some(calls) = complete {
        match difference(&calls) {
            Some(why) => clique.fail(Code::INVALID_USAGE, &why),
            None => compute_results(&calls),
        }
        clique.change(|state| state.collectives.get_mut(&number).map(|collective| collective.is_done = true));
    }
    let is_done = |state: &CliqueState| state.collectives.get(&number).is_none_or(|collective| collective.is_done);
    let met = clique.wait(comm, |state| {
        let is_aborted =
            state.has_failed && state.collectives.get(&number).is_none_or(|collective| !collective.is_complete);
        (is_aborted || is_done(state)).then_some(())
    });
    let is_too_late = clique.change(|state| match (&met, state.collectives.get_mut(&number)) {
        (Err(Aborted), Some(collective)) if !collective.is_complete => {
            collective.calls[rank] = None;
            false
        }
        (Err(Aborted), Some(_)) => true,
        _ => false,
    });
    if is_too_late {
        clique.wait_regardless(is_done);
    }
    clique.change(|state| leave(state, number));
    met
}

/// Adds the call of an arriving rank. Returns all calls if the rank is the last.
fn arrive(state: &mut CliqueState, ranks: usize, rank: usize, number: u64, call: &Arc<Call>) -> Option<Vec<Arc<Call>>> {
    if state.has_failed {
        return None;
    }
    let new = || PendingCollective {
        calls: vec![None; ranks],
        arrived: Vec::new(),
        is_complete: false,
        is_done: false,
        left: ranks,
    };
    let collective = state.collectives.entry(number).or_insert_with(new);
    collective.calls[rank] = Some(Arc::clone(call));
    if !call.is_foreign() {
        collective.arrived.push(Arc::clone(call));
    }
    let calls = collective.calls.iter().cloned().collect::<Option<Vec<_>>>();
    collective.is_complete = calls.is_some();
    calls
}

/// Removes a rank. A rank that leaves before the collective is done was aborted; the others keep waiting.
fn leave(state: &mut CliqueState, number: u64) {
    let Some(collective) = state.collectives.get_mut(&number).filter(|collective| collective.is_done) else { return };
    collective.left -= 1;
    if collective.left == 0 {
        state.collectives.remove(&number);
    }
}

/// Overwrites outputs after the abort of a rank's kernel in a collective that never completes: the kernel may have
/// written to the outputs of all ranks that have arrived, including ranks whose own kernels have ended.
pub(crate) fn overwrite_outputs(clique: &Clique, number: u64) -> Result<(), cuda::abi::Code> {
    let arrived = clique.change(|state| {
        let collective = state.collectives.get(&number).filter(|collective| !collective.is_complete);
        collective.map(|collective| collective.arrived.clone()).unwrap_or_default()
    });
    for recv in arrived.iter().filter_map(|call| call.recv.as_ref()) {
        recv.check_late()?;
        recv.write(&vec![ABORTED_FILL_BYTE; recv.bytes()]);
    }
    Ok(())
}

/// The calls of all ranks as text, if they differ.
fn difference(calls: &[Arc<Call>]) -> Option<String> {
    let first = calls.first()?;
    if calls.iter().all(|call| call.matches(first)) {
        return None;
    }
    let each = calls.iter().enumerate().map(|(rank, call)| format!("rank {rank}: {call}"));
    Some(format!("ranks have called different collectives; {}", each.collect::<Vec<_>>().join("; ")))
}

fn compute_results(calls: &[Arc<Call>]) {
    let inputs = || calls.iter().filter_map(|call| call.send.as_ref()).map(Span::to_vec).collect::<Vec<_>>();
    let Some(first) = calls.first() else { return };
    match first.kind {
        Kind::AllReduce | Kind::Reduce => write_to_all(calls, &reduced(first, calls, &inputs())),
        Kind::ReduceScatter => write_blocks(calls, &reduced(first, calls, &inputs())),
        Kind::AllGather | Kind::Gather | Kind::Broadcast => write_to_all(calls, &inputs().concat()),
        Kind::Scatter => write_blocks(calls, &inputs().concat()),
        Kind::AlltoAll => all_to_all(calls, &inputs()),
        Kind::Send | Kind::Recv => {}
    }
}

/// The result of a reduction. On one rank, the end may be missing.
fn reduced(first: &Call, calls: &[Arc<Call>], inputs: &[Vec<u8>]) -> Vec<u8> {
    let operations = calls.iter().map(|call| &call.operation).collect::<Vec<&Operation>>();
    let mut result = reduce::reduce(first.dtype, inputs, &operations);
    if calls.len() == 1 {
        result.truncate(one_rank::written_bytes(first));
    }
    result
}

/// Writes all of the data to each receiving rank.
fn write_to_all(calls: &[Arc<Call>], bytes: &[u8]) {
    for recv in calls.iter().filter_map(|call| call.recv.as_ref()) {
        recv.write(bytes);
    }
}

/// Writes one block to each rank.
fn write_blocks(calls: &[Arc<Call>], bytes: &[u8]) {
    let block = bytes.len() / calls.len();
    for (call, bytes) in calls.iter().zip(bytes.chunks(block)) {
        if let Some(recv) = &call.recv {
            recv.write(bytes);
        }
    }
}

fn all_to_all(calls: &[Arc<Call>], inputs: &[Vec<u8>]) {
    for (rank, call) in calls.iter().enumerate() {
        let Some(recv) = &call.recv else { continue };
        let block = recv.bytes() / calls.len();
        for (from, bytes) in inputs.iter().enumerate() {
            recv.part(from * block, block).write(&bytes[rank * block..][..block]);
        }
    }
}
