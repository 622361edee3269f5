//! Sends and receives: those between a pair of ranks are matched in the order of their calls, and complete together.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::abi::Code;
use super::call::{Call, Kind};
use super::clique::{Aborted, Clique};
use super::comm::Comm;

/// Unmatched sends and receives, by sender and receiver.
#[derive(Default)]
pub(crate) struct UnmatchedTransfers {
    pairs: BTreeMap<(usize, usize), Pair>,
}

#[derive(Default)]
struct Pair {
    sends: VecDeque<PendingTransfer>,
    recvs: VecDeque<PendingTransfer>,
}

/// A pending send or receive.
#[derive(Clone)]
pub(crate) struct PendingTransfer {
    call: Arc<Call>,
    is_done: Arc<AtomicBool>,
}

/// Submits a rank's sends and receives for matching.
pub(crate) fn submit(clique: &Clique, rank: usize, calls: &[&Arc<Call>]) -> Vec<PendingTransfer> {
    let transfer = |call: &&Arc<Call>| PendingTransfer { call: Arc::clone(call), is_done: Arc::default() };
    let transfers = calls.iter().map(transfer).collect::<Vec<_>>();
    if transfers.is_empty() {
        return transfers;
    }
    let difference = clique
        .change(|state| transfers.iter().find_map(|transfer| state.unmatched.add_and_match(rank, transfer.clone())));
    if let Some(why) = difference {
        clique.fail(Code::INVALID_USAGE, &why);
    }
    transfers
}

/// Waits until all are matched.
pub(crate) fn wait(comm: &Comm, clique: &Clique, transfers: &[PendingTransfer]) -> Result<(), Aborted> {
    if transfers.is_empty() {
        return Ok(());
    }
    let waited = clique.wait(comm, |state| {
        let is_done = transfers.iter().all(|transfer| transfer.is_done.load(SeqCst));
        (is_done || state.has_failed).then_some(())
    });
    withdraw(clique, transfers);
    waited
}

/// Removes unmatched sends and receives.
pub(crate) fn withdraw(clique: &Clique, transfers: &[PendingTransfer]) {
    let is_in_batch =
        |transfer: &PendingTransfer| transfers.iter().any(|own| Arc::ptr_eq(&own.is_done, &transfer.is_done));
    clique.change(|state| {
        for pair in state.unmatched.pairs.values_mut() {
            pair.sends.retain(|transfer| !is_in_batch(transfer));
            pair.recvs.retain(|transfer| !is_in_batch(transfer));
        }
    });
}

impl UnmatchedTransfers {
    /// Adds a transfer, and copies the data if its counterpart is present. Returns both calls as text if they do not
    /// match.
    fn add_and_match(&mut self, rank: usize, transfer: PendingTransfer) -> Option<String> {
        let peer = transfer.call.root;
        let is_send = transfer.call.kind == Kind::Send;
        let (from, to) = if is_send { (rank, peer) } else { (peer, rank) };
        let pair = self.pairs.entry((from, to)).or_default();
        if is_send { &mut pair.sends } else { &mut pair.recvs }.push_back(transfer);
        while !pair.sends.is_empty() && !pair.recvs.is_empty() {
            let (send, recv) = (pair.sends.pop_front()?, pair.recvs.pop_front()?);
            if send.call.count != recv.call.count || send.call.dtype != recv.call.dtype {
                let (send, recv) = (&send.call, &recv.call);
                return Some(format!("a send and its receive differ; rank {from}: {send}; rank {to}: {recv}"));
            }
            if let (Some(bytes), Some(to)) = (&send.call.send, &recv.call.recv) {
                to.write(&bytes.to_vec());
            }
            send.is_done.store(true, SeqCst);
            recv.is_done.store(true, SeqCst);
        }
        None
    }
}
