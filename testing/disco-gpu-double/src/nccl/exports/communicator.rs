//! Communicators.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_void};

use super::{null, write_output};
use crate::cuda::memory::Span;
use crate::nccl::abi::{Code, CommHandle, UniqueId};
use crate::nccl::comm::{self, Comm, Membership};
use crate::nccl::config::{self, Config};
use crate::nccl::{lifecycle, split, text};
use crate::sync::lock;

/// `ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRank(at: Option<&mut CommHandle>, ranks: c_int, id: UniqueId, rank: c_int) -> Code {
    let at = at.ok_or_else(null);
    Code::of(at.and_then(|at| lifecycle::init("ncclCommInitRank", at, id, (ranks, rank), true)))
}

/// `ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *)`
///
/// # Safety
/// The configuration is null, or of as many bytes as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    at: Option<&mut CommHandle>,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    let blocking = unsafe { config::blocking(config) }.map(|blocking| blocking.unwrap_or(true));
    let at = at.ok_or_else(null);
    Code::of(at.and_then(|at| lifecycle::init("ncclCommInitRankConfig", at, id, (ranks, rank), blocking?)))
}

/// `ncclCommSplit(ncclComm_t, int color, int key, ncclComm_t *child, ncclConfig_t *)`
///
/// # Safety
/// The configuration is null, or of as many bytes as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    parent: CommHandle,
    color: c_int,
    key: c_int,
    at: Option<&mut CommHandle>,
    config: *const Config,
) -> Code {
    // SAFETY: the caller guarantees what `# Safety` requires.
    let blocking = unsafe { config::blocking(config) };
    let at = at.ok_or_else(null);
    Code::of(at.and_then(|at| split::begin(parent, (color, key), at, blocking?)))
}

/// `ncclCommFinalize(ncclComm_t)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(comm: CommHandle) -> Code {
    Code::of(lifecycle::finalize(comm))
}

/// `ncclCommDestroy(ncclComm_t)`: does nothing for null.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: CommHandle) -> Code {
    if comm.is_null() { Code::SUCCESS } else { Code::of(lifecycle::destroy(comm)) }
}

/// `ncclCommAbort(ncclComm_t)`: does nothing for null. May be called on any thread.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: CommHandle) -> Code {
    if comm.is_null() { Code::SUCCESS } else { Code::of(lifecycle::abort(comm)) }
}

/// `ncclCommGetAsyncError(ncclComm_t, ncclResult_t *error)`: may be called on any thread.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(comm: CommHandle, error: Option<&mut Code>) -> Code {
    Code::of(comm::find(comm).and_then(|comm| write_output(error, comm.async_error())))
}

/// `ncclCommCount(ncclComm_t, int *count)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommCount(comm: CommHandle, count: Option<&mut c_int>) -> Code {
    ask(comm, count, |_, membership| membership.clique.ranks())
}

/// `ncclCommUserRank(ncclComm_t, int *rank)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommUserRank(comm: CommHandle, rank: Option<&mut c_int>) -> Code {
    ask(comm, rank, |_, membership| membership.rank)
}

/// `ncclCommRegister(ncclComm_t, void *buff, size_t size, void **handle)`: makes a handle, without further effect.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommRegister(
    comm: CommHandle,
    buffer: *mut c_void,
    size: usize,
    handle: Option<&mut *mut c_void>,
) -> Code {
    Code::of(comm::find(comm).and_then(|comm| {
        let _turn = comm.begin_call()?;
        if Span::find(buffer.addr(), size).is_none() {
            return Err(text::refuse(Code::INVALID_ARGUMENT, "ncclCommRegister: it is not in one allocation"));
        }
        let mut registered = lock(&comm.registered);
        let number = registered.last().map_or(1, |last| last + 1);
        write_output(handle, std::ptr::without_provenance_mut(number))?;
        registered.insert(number);
        Ok(())
    }))
}

/// `ncclCommDeregister(ncclComm_t, void *handle)`: does nothing for null.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDeregister(comm: CommHandle, handle: *mut c_void) -> Code {
    Code::of(comm::find(comm).and_then(|comm| {
        let _turn = comm.begin_call()?;
        if handle.is_null() || lock(&comm.registered).remove(&handle.addr()) {
            return Ok(());
        }
        Err(text::refuse(Code::INVALID_ARGUMENT, "ncclCommDeregister: there is no such handle"))
    }))
}

fn ask(comm: CommHandle, at: Option<&mut c_int>, answer: impl FnOnce(&Comm, &Membership) -> usize) -> Code {
    Code::of(comm::find(comm).and_then(|comm| {
        let _turn = comm.begin_call()?;
        write_output(at, answer(&comm, comm.membership()?) as c_int)
    }))
}
