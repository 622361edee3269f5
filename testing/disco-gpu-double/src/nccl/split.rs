//! Splits: each rank of a communicator submits color and key, and the last one makes the children.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::abi::{Code, CommHandle, SPLIT_NO_COLOR};
use super::background::{self, Failure, finish_call};
use super::clique::Clique;
use super::comm::{self, Comm, Membership};
use super::text;
use crate::settings::faults::Action;

/// An unfinished split.
pub(crate) struct PendingSplit {
    args: Vec<Option<SplitArgs>>,
    is_done: bool,
    left: usize,
}

/// A rank's arguments of a split.
#[derive(Clone)]
pub(crate) struct SplitArgs {
    /// The color.
    pub(crate) color: c_int,
    /// The key.
    pub(crate) key: c_int,
    /// The child communicator, which gets a membership; `None` without a color.
    pub(crate) child: Option<Arc<Comm>>,
}

/// `ncclCommSplit`: the child's handle is null until the split is done, possibly later in the background.
pub(crate) fn begin(
    parent: CommHandle,
    (color, key): (c_int, c_int),
    at: &mut CommHandle,
    blocking: Option<bool>,
) -> Result<(), Code> {
    background::reject_in_group("ncclCommSplit")?;
    let parent = comm::find(parent)?;
    let _turn = parent.begin_call()?;
    let rank = parent.membership()?.rank;
    if color < SPLIT_NO_COLOR {
        return Err(text::refuse(Code::INVALID_ARGUMENT, format!("ncclCommSplit: there is no color {color}")));
    }
    let fault = background::fault("ncclCommSplit", rank)?;
    let child = Comm::new(parent.device, blocking.unwrap_or(parent.is_blocking));
    let child = (color != SPLIT_NO_COLOR).then_some(child);
    *at = ptr::null_mut();
    let place = ChildHandleOut(at);
    let number = parent.splits.fetch_add(1, SeqCst);
    if fault == Some(Action::Block) {
        return background::block(&parent);
    }
    parent.begin();
    let args = SplitArgs { color, key, child: child.clone() };
    finish_call(&parent, child.iter().cloned().collect(), fault, move |parent| {
        gather(parent, number, args)?;
        if let Some(child) = child {
            place.fill(comm::insert(&child));
        }
        Ok(())
    })
}

/// The caller's output parameter for the child's handle. The caller keeps it valid until the parent reports that the
/// split is done.
struct ChildHandleOut(*mut CommHandle);

// SAFETY: only the thread that runs the split writes to the pointer.
unsafe impl Send for ChildHandleOut {}

impl ChildHandleOut {
    fn fill(self, handle: CommHandle) {
        // SAFETY: the caller of `ncclCommSplit` keeps the pointer valid until the split is done.
        unsafe { self.0.write(handle) };
    }
}

/// Submits this rank's arguments and waits for the split.
pub(crate) fn gather(parent: &Arc<Comm>, number: u64, args: SplitArgs) -> Result<(), Failure> {
    let Some(Membership { clique, rank }) = parent.membership_if_any() else { return Ok(()) };
    if let Some(link) = clique.link() {
        return link.split(parent, clique, (number, args.color, args.key), args.child.as_ref());
    }
    clique.change(|state| {
        let new = || PendingSplit { args: vec![None; clique.ranks()], is_done: false, left: clique.ranks() };
        let split = state.splits.entry(number).or_insert_with(new);
        split.args[*rank] = Some(args);
        if let Some(args) = split.args.iter().cloned().collect::<Option<Vec<_>>>() {
            assign_children(&args);
            split.is_done = true;
        }
    });
    let done = clique.wait(parent, |state| {
        let split = state.splits.get_mut(&number).filter(|split| split.is_done)?;
        split.left -= 1;
        if split.left == 0 {
            state.splits.remove(&number);
        }
        Some(())
    });
    done.map_err(|aborted| {
        clique.change(|state| state.splits.get_mut(&number).map(|split| split.args[*rank] = None));
        aborted.into()
    })
}

/// Gives each child its membership: ranks of a color are ordered by key, then by parent rank.
fn assign_children(args: &[SplitArgs]) {
    let mut colors = args.iter().map(|args| args.color).collect::<Vec<_>>();
    colors.sort_unstable();
    colors.dedup();
    for color in colors {
        let mut members = args.iter().filter(|args| args.color == color).collect::<Vec<_>>();
        members.sort_by_key(|args| args.key);
        let children = members.iter().filter_map(|args| args.child.as_ref()).collect::<Vec<_>>();
        let clique = Arc::new(Clique::new(children.len()));
        clique.change(|state| {
            state.members = children.iter().map(|child| Some(Arc::downgrade(child))).collect();
        });
        for (rank, child) in children.into_iter().enumerate() {
            child.set_membership(Arc::clone(&clique), rank);
        }
    }
}
