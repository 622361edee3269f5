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
pub(crate) struct Post {
    pairs: BTreeMap<(usize, usize), Pair>,
}

#[derive(Default)]
struct Pair {
    sends: VecDeque<Letter>,
    recvs: VecDeque<Letter>,
}

/// A pending send or receive.
#[derive(Clone)]
pub(crate) struct Letter {
    call: Arc<Call>,
    is_done: Arc<AtomicBool>,
}

/// Posts a rank's sends and receives.
pub(crate) fn post(clique: &Clique, rank: usize, calls: &[&Arc<Call>]) -> Vec<Letter> {
    let letter = |call: &&Arc<Call>| Letter { call: Arc::clone(call), is_done: Arc::default() };
    let letters = calls.iter().map(letter).collect::<Vec<_>>();
    if letters.is_empty() {
        return letters;
    }
    let difference = clique.change(|state| letters.iter().find_map(|letter| state.post.put(rank, letter.clone())));
    if let Some(why) = difference {
        clique.fail(Code::INVALID_USAGE, &why);
    }
    letters
}

/// Waits until all are matched.
pub(crate) fn wait(comm: &Comm, clique: &Clique, letters: &[Letter]) -> Result<(), Aborted> {
    if letters.is_empty() {
        return Ok(());
    }
    let waited = clique.wait(comm, |state| {
        let is_done = letters.iter().all(|letter| letter.is_done.load(SeqCst));
        (is_done || state.has_failed).then_some(())
    });
    withdraw(clique, letters);
    waited
}

/// Removes unmatched sends and receives.
pub(crate) fn withdraw(clique: &Clique, letters: &[Letter]) {
    let is_ours = |letter: &Letter| letters.iter().any(|ours| Arc::ptr_eq(&ours.is_done, &letter.is_done));
    clique.change(|state| {
        for pair in state.post.pairs.values_mut() {
            pair.sends.retain(|letter| !is_ours(letter));
            pair.recvs.retain(|letter| !is_ours(letter));
        }
    });
}

impl Post {
    /// Takes a letter, and copies if its other side is here. What each side has called, if that does not fit.
    fn put(&mut self, rank: usize, letter: Letter) -> Option<String> {
        let peer = letter.call.root;
        let is_send = letter.call.kind == Kind::Send;
        let (from, to) = if is_send { (rank, peer) } else { (peer, rank) };
        let pair = self.pairs.entry((from, to)).or_default();
        if is_send { &mut pair.sends } else { &mut pair.recvs }.push_back(letter);
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
