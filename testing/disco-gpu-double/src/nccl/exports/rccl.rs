//! Functions that RCCL has in addition to those of NCCL.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_void;
use std::slice;

use super::collective::collectives;
use super::{communicate, submit};
use crate::nccl::abi::{Code, CommHandle, DataType, Stream};
use crate::nccl::call::{Args, Kind};
use crate::nccl::tally;
use crate::nccl::{background, comm as comms, group, text};
use crate::settings::faults::Action;

collectives! {
    /// `ncclAllToAll(sendbuff, recvbuff, size_t count, datatype, comm, stream)`: NCCL's `ncclAlltoAll`.
    ncclAllToAll() => Kind::AlltoAll;
}

/// `ncclAllToAllv(sendbuff, const size_t sendcounts[], const size_t sdispls[], recvbuff, const size_t recvcounts[],
/// const size_t rdispls[], datatype, comm, stream)`: a group of a send to each rank and a receive from each rank, also
/// of 0 elements.
///
/// # Safety
/// Each array has a number for each rank of the communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllToAllv(
    send: *const c_void,
    send_counts: *const usize,
    send_offsets: *const usize,
    recv: *mut c_void,
    recv_counts: *const usize,
    recv_offsets: *const usize,
    dtype: DataType,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    tally::call();
    let sends = Side { kind: Kind::Send, base: send.addr(), counts: send_counts, offsets: send_offsets };
    let recvs = Side { kind: Kind::Recv, base: recv.addr(), counts: recv_counts, offsets: recv_offsets };
    // SAFETY: the caller guarantees what `# Safety` requires.
    group::note(unsafe { exchange([sends, recvs], dtype, comm, stream) })
}

/// The arguments of all sends, or of all receives.
struct Side {
    kind: Kind,
    base: usize,
    counts: *const usize,
    offsets: *const usize,
}

const FUNCTION: &str = "ncclAllToAllv";

/// # Safety
/// Each array has a number for each rank of the communicator.
unsafe fn exchange(sides: [Side; 2], dtype: DataType, comm: CommHandle, stream: Stream) -> Result<(), Code> {
    let found = comms::find(comm)?;
    drop(found.begin_call()?);
    let membership = found.membership()?;
    let fault = background::fault(FUNCTION, membership.rank)?;
    if fault == Some(Action::Block) {
        return background::block(&found);
    }
    let ranks = membership.clique.ranks();
    let mut calls = Vec::with_capacity(2 * ranks);
    for side in &sides {
        // SAFETY: the caller guarantees what `# Safety` requires.
        calls.extend(unsafe { side.calls(ranks, dtype) }?);
    }
    group::start();
    let outcome = calls.into_iter().try_for_each(|args| submit(args, comm, stream, fault));
    // The end of the outermost group returns the error too.
    group::note(outcome);
    group::end().and(outcome)
}

impl Side {
    /// One call for each rank.
    ///
    /// # Safety
    /// Arrays that are not null have a number for each rank.
    unsafe fn calls(&self, ranks: usize, dtype: DataType) -> Result<Vec<Args>, Code> {
        let refuse = |why: String| text::refuse(Code::INVALID_ARGUMENT, format!("{FUNCTION}: {why}"));
        if self.counts.is_null() || self.offsets.is_null() {
            return Err(refuse("counts or offsets are missing".to_owned()));
        }
        let size = dtype.size().ok_or_else(|| refuse(format!("there is no data type {}", dtype.0)))?;
        // SAFETY: the caller guarantees what `# Safety` requires.
        let counts = unsafe { slice::from_raw_parts(self.counts, ranks) };
        // SAFETY: the caller guarantees what `# Safety` requires.
        let offsets = unsafe { slice::from_raw_parts(self.offsets, ranks) };
        let parts = (0..).zip(counts.iter().zip(offsets));
        let call = |(peer, (&count, &offset)): (_, (&usize, &usize))| {
            let address = offset.checked_mul(size).and_then(|bytes| self.base.checked_add(bytes));
            let address = address.ok_or_else(|| refuse(format!("the offset of {offset} elements is too large")))?;
            let (send, recv) = if self.kind == Kind::Send { (address, 0) } else { (0, address) };
            Ok(Args { send, recv, root: peer, ..Args::new(self.kind, count, dtype) })
        };
        parts.map(call).collect()
    }
}
