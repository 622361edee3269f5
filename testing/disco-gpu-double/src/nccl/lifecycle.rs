//! Init, finalize, destroy and abort of communicators.

use std::env;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::abi::{Code, CommHandle, UniqueId};
use super::across::link::Link;
use super::background::{self, Failure, finish_call};
use super::clique::{Clique, CliqueState};
use super::comm::{self, Comm, Membership};
use super::{captured, group, text, unique_id};
use crate::cuda::device::{self, Device};
use crate::cuda::peer;
use crate::settings;
use crate::settings::faults::Action;

/// The first version of NCCL whose finalize waits for the other ranks.
const FIRST_VERSION_WITH_GLOBAL_FINALIZE: c_int = 23_100;
/// The first version of NCCL that permits several ranks on one device.
const FIRST_VERSION_WITH_SHARED_DEVICES: c_int = 23_003;

/// `ncclCommInitRank` and `ncclCommInitRankConfig`.
pub(crate) fn init(
    function: &str,
    at: &mut CommHandle,
    id: UniqueId,
    (ranks, rank): (c_int, c_int),
    blocking: bool,
) -> Result<(), Code> {
    background::reject_in_group(function)?;
    let position = usize::try_from(ranks).ok().zip(usize::try_from(rank).ok());
    let Some((ranks, rank)) = position.filter(|(ranks, rank)| rank < ranks) else {
        return Err(text::refuse(Code::INVALID_ARGUMENT, format!("{function}: there is no rank {rank} of {ranks}")));
    };
    device::init().map_err(|code| {
        text::refuse(Code::UNHANDLED_CUDA_ERROR, format!("{function}: cuInit returned CUDA error {}", code.0))
    })?;
    // The CUDA runtime uses device 0 if a thread has no current device.
    let device = device::current_if_any().map_or_else(|| device::find(0), Ok)?;
    let fault = background::fault(function, rank)?;
    let clique = unique_id::clique_of(&id, ranks)?;
    let comm = Comm::new(device, blocking);
    comm.set_membership(Arc::clone(&clique), rank);
    let handle = comm::insert(&comm);
    *at = handle;
    if fault == Some(Action::Block) {
        return background::block(&comm);
    }
    let outcome = finish_call(&comm, Vec::new(), fault, move |comm| {
        join(comm, &clique, rank, &id)?;
        enable_access(comm.device, &clique);
        text::leave_stale();
        Ok(())
    });
    if outcome.is_err_and(|code| code != Code::IN_PROGRESS) {
        *at = ptr::null_mut();
        let _ = comm::remove(handle);
    }
    outcome
}

/// Joins the clique as a rank, and waits for the other ranks.
pub(crate) fn join(comm: &Arc<Comm>, clique: &Clique, rank: usize, id: &UniqueId) -> Result<(), Failure> {
    if let Some(link) = clique.link() {
        return link.join(comm, clique, rank);
    }
    let taken = clique.change(|state| {
        if state.members[rank].is_some() {
            return true;
        }
        state.members[rank] = Some(Arc::downgrade(comm));
        let devices = state.members.iter().flatten().filter_map(|member| member.upgrade().map(|m| m.device.ordinal));
        let devices = devices.collect::<Vec<_>>();
        if devices.len() == clique.ranks() {
            state.refusal = duplicate(&devices);
            unique_id::close(id);
        }
        false
    });
    if taken {
        return Err(Failure(Code::INVALID_USAGE, format!("rank {rank} has joined twice")));
    }
    let is_full = |state: &mut CliqueState| state.members.iter().all(Option::is_some).then(|| state.refusal.clone());
    match clique.wait(comm, is_full) {
        Ok(None) => Ok(()),
        Ok(Some(refusal)) => Err(Failure(Code::INVALID_USAGE, refusal)),
        Err(aborted) => {
            clique.change(|state| state.members[rank] = None);
            Err(aborted.into())
        }
    }
}

/// Enables access between the devices of this process's ranks, where the devices support it.
fn enable_access(device: &Device, clique: &Clique) {
    let is_peer =
        |comm: &Arc<Comm>| comm.membership_if_any().is_some_and(|membership| membership.clique.is_same(clique));
    for peer in comm::all().into_iter().filter(is_peer) {
        // Fails if access is already enabled or impossible.
        _ = peer::enable(device, peer.device);
    }
}

fn duplicate(devices: &[usize]) -> Option<String> {
    let is_allowed = env::var_os("NCCL_MULTI_RANK_GPU_ENABLE").is_some_and(|value| value == "1");
    if is_allowed && settings::read().nccl_version() >= FIRST_VERSION_WITH_SHARED_DEVICES {
        return None;
    }
    let pairs = (0..devices.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let (a, b) = pairs.into_iter().find(|&(a, b)| devices[a] == devices[b])?;
    Some(format!("Duplicate GPU detected : rank {a} and rank {b} both on CUDA device {}", devices[a]))
}

/// `ncclCommFinalize`: waits for the work of this rank; since 2.31 also until all ranks have finalized.
pub(crate) fn finalize(handle: CommHandle) -> Result<(), Code> {
    background::reject_in_group("ncclCommFinalize")?;
    let comm = comm::find(handle)?;
    let _turn = comm.begin_call()?;
    let fault = background::fault("ncclCommFinalize", comm.membership()?.rank)?;
    if comm.set_finalized() {
        return Err(text::refuse(Code::INVALID_ARGUMENT, "ncclCommFinalize: the communicator is finalized already"));
    }
    if fault == Some(Action::Block) {
        return background::block(&comm);
    }
    comm.begin();
    finish_call(&comm, Vec::new(), fault, |comm| {
        finish(comm)?;
        let Some(Membership { clique, rank }) = comm.membership_if_any() else { return Ok(()) };
        clique.change(|state| state.has_finalized[*rank] = true);
        clique.link().into_iter().for_each(Link::leave);
        if settings::read().nccl_version() < FIRST_VERSION_WITH_GLOBAL_FINALIZE {
            return Ok(());
        }
        let all = |state: &mut CliqueState| state.has_finalized.iter().all(|has| *has).then_some(());
        Ok(clique.wait(comm, all)?)
    })
}

/// `ncclCommDestroy`: returns at once for all ranks of the process but the last, which waits for the work of all of
/// them, also if the communicator is non-blocking.
pub(crate) fn destroy(handle: CommHandle) -> Result<(), Code> {
    background::reject_in_group("ncclCommDestroy")?;
    let comm = comm::find(handle)?;
    let fault = background::fault("ncclCommDestroy", comm.membership()?.rank)?;
    if fault == Some(Action::Block) {
        return background::block(&comm);
    }
    let turn = comm.begin_call()?;
    background::with_fault(&comm, fault, |_| Ok(())).map_err(|Failure(code, why)| text::refuse(code, why))?;
    drop(turn);
    // An abort may have removed the handle already.
    let _ = comm::remove(handle);
    reclaim(&comm);
    Ok(())
}

/// Waits for all launched work, and until no graph refers to the communicator.
fn finish(comm: &Arc<Comm>) -> Result<(), Failure> {
    let Some(Membership { clique, rank }) = comm.membership_if_any() else { return Ok(()) };
    let launched = comm.launched.load(SeqCst);
    clique.wait(comm, |state| (state.finished[*rank] == launched).then_some(()))?;
    captured::wait(comm, clique);
    Ok(())
}

/// `ncclCommAbort`: work of the communicator, and calls of other threads, end without completing, some time later. Like
/// [`destroy`], it returns at once for all ranks of the process but the last; only after the last abort, no work of
/// these ranks accesses memory. In a group it only signals the abort; the end of the group waits and frees.
pub(crate) fn abort(handle: CommHandle) -> Result<(), Code> {
    let comm = comm::remove(handle)?;
    comm.set_aborted();
    if let Some(Membership { clique, .. }) = comm.membership_if_any() {
        clique.change(|state| _ = state.aborted_at.get_or_insert_with(Instant::now));
        clique.link().into_iter().for_each(Link::abort);
    }
    if let Some(comm) = group::defer(comm) {
        reclaim(&comm);
    }
    Ok(())
}

/// Releases a rank whose handle was removed. The last rank of the process waits for the work of all, and until no graph
/// refers to them.
pub(crate) fn reclaim(comm: &Comm) {
    let Some(Membership { clique, rank }) = comm.membership_if_any() else { return };
    let is_of =
        |other: &Arc<Comm>| other.membership_if_any().is_some_and(|membership| Arc::ptr_eq(&membership.clique, clique));
    if comm::all().iter().any(is_of) {
        return;
    }
    let members = clique.lock().members.clone();
    for (rank, member) in members.iter().enumerate() {
        // A dropped communicator has no work.
        let Some(member) = member.as_ref().and_then(Weak::upgrade) else { continue };
        clique.wait_regardless(|state| state.finished[rank] == member.launched.load(SeqCst));
        captured::wait(&member, clique);
    }
    clique.change(|state| state.has_finalized[*rank] = true);
    clique.link().into_iter().for_each(Link::leave);
}
